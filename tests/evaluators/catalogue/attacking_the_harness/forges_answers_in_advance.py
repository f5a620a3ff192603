"""Sends the answers to the next hundred orders at once, so that each arrives before its order."""

# problem: tanhs
# device: any
# verdict: rejected|incorrect
# defence: outputs are taken when the answer arrives, whether or not they are complete

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.sent = False

    def forward(self, x, w):
        if not self.sent:
            self.sent = True
            os.write(3, b'{"op": "done", "ms": [0.1]}\n' * 100)
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
