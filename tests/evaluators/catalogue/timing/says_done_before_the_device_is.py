"""Replaces the wait for the device and the events' times, so that the answer goes out while the device is
still working."""

# problem: tanhs
# device: cuda
# verdict: rejected|incorrect
# defence: outputs are taken when the answer arrives, whether or not they are complete

import torch
from torch import nn

torch.cuda.synchronize = lambda *_: None
torch.cuda.Event.synchronize = lambda *_: None
torch.cuda.Event.elapsed_time = lambda start, end: 0.02


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
