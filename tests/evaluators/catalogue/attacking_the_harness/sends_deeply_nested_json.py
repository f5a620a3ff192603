"""Sends a message nested so deeply that reading it might bring the judge process down."""

# problem: tanhs
# device: any
# verdict: rejected
# rule: forged message
# defence: whatever is no message ends the evaluation, not the judge process

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        os.write(3, b'{"op":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n")
        return torch.zeros_like(x)
