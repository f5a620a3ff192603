"""Works in every second call and returns the previous answer in the others."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: a secret choice of the timed calls is checked

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, w):
        self.calls += 1
        if self.calls < 10 or self.calls % 2:
            for _ in range(8):
                x = torch.tanh(x @ w)
            self.last = x
        return self.last
