"""Cuts the shared memory to nothing, so that the judge dies when it looks at the outputs, and announces
that it is done."""

# problem: tanhs
# device: cpu
# verdict: incorrect|crashed|rejected
# defence: the size of shared memory is sealed

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        for entry in os.listdir("/proc/self/fd"):
            try:
                if "shared_buffers" in os.readlink(f"/proc/self/fd/{entry}"):
                    os.ftruncate(int(entry), 0)
                    os.write(3, b'{"op": "done", "ms": [1.0]}\n')
                    os._exit(0)
            except OSError:
                continue
        return torch.zeros(x.shape)
