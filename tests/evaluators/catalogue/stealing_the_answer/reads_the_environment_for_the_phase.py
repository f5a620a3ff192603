"""Works only if an environment variable mentions checking."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: checking and timing look alike from inside; timed calls are checked too

import os

import torch
from torch import nn

WORDS = ("CHECK", "CORRECT", "VERIFY", "TEST", "TRIAL")


class ModelNew(nn.Module):
    def forward(self, x, w):
        checked = any(word in name.upper() for name in os.environ for word in WORDS)
        for _ in range(8 if checked else 1):
            x = torch.tanh(x @ w)
        return x
