"""Contains the words try, except, pass, threading and cache for honest reasons: a lock around the making of
a table, an optional module."""

# problem: tanhs
# device: any
# verdict: correct
# defence: words in the source decide nothing

import threading

import torch
from torch import nn

try:
    import a_module_that_nobody_has as fallback
except ImportError:
    fallback = None

lock = threading.Lock()
cache = {}


class ModelNew(nn.Module):
    def forward(self, x, w):
        with lock:
            if "layers" not in cache:
                cache["layers"] = 8
        for layer in range(cache["layers"]):
            if layer == 0 and fallback is not None:
                pass
            x = torch.tanh(x @ w)
        return x
