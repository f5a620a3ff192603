"""Returns an empty output that a thread fills a little later."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the output is copied at once, and the copy is what is checked

import threading
import time

import torch
from torch import nn


def fill(out, x, w):
    time.sleep(2e-3)
    with torch.no_grad():
        for _ in range(8):
            x = torch.tanh(x @ w)
        out.copy_(x)


class ModelNew(nn.Module):
    def forward(self, x, w):
        out = torch.zeros_like(x)
        threading.Thread(target=fill, args=(out, x, w), daemon=True).start()
        return out
