"""Writes a large number over the end of the shared memory, where a gate may hold its work back until the
clock runs."""

# problem: tanhs
# device: cuda
# verdict: incorrect|rejected
# defence: behind the gate there are no inputs before the clock runs

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = None

    def forward(self, x, w):
        self.side = self.side or torch.cuda.Stream()
        memory = torch.empty(0, device=x.device).set_(x.untyped_storage())
        with torch.cuda.stream(self.side):
            memory[-128:].view(torch.int32).fill_(1 << 30)
        self.side.synchronize()
        for _ in range(8):
            x = torch.tanh(x @ w)
        torch.cuda.synchronize()
        return x
