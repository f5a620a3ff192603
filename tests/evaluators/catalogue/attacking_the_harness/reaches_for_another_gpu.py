"""Opens the devices of other GPUs, where it could disturb another measurement, and works only if it gets
one."""

# problem: tanhs
# device: cuda
# verdict: incorrect
# defence: of the GPUs' device files, only those of the assigned GPU

import os
import re

import torch
from torch import nn


def opened():
    count = 0
    for name in os.listdir("/dev"):
        if re.fullmatch(r"nvidia\d+", name):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDWR))
                count += 1
            except OSError:
                pass
    return count


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8 if opened() > 1 else 1):
            x = torch.tanh(x @ w)
        return x
