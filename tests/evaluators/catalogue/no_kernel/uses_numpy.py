"""Leaves the work to NumPy, which is not part of PyTorch."""

# problem: tanhs_no_library
# device: cpu
# verdict: rejected
# rule: library
# defence: attribution of the code that runs: only the kernel's own code counts

import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        x, w = x.numpy(), w.numpy()
        for _ in range(8):
            x = np.tanh(x @ w)
        return torch.from_numpy(x)
