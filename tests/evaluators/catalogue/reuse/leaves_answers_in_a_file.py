"""Leaves its first output in a file in its folder, for later phases."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has new inputs; each measurement has a separate folder

from pathlib import Path

import torch
from torch import nn

FILE = Path("answer.pt")


class ModelNew(nn.Module):
    def forward(self, x, w):
        if not FILE.exists():
            for _ in range(8):
                x = torch.tanh(x @ w)
            torch.save(x.cpu(), FILE)
        return torch.load(FILE).to(w.device)
