"""Leaves its first output in a file of its folder, for the phases that come later."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has inputs of its own; a folder for each measurement

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
