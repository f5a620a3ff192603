"""Spreads the rows over several threads and joins them before it returns."""

# problem: softmax
# device: cpu
# verdict: correct
# defence: work that is done before the return is part of the time

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

threads = ThreadPoolExecutor(2)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)

        def rows(part):
            with torch.no_grad():
                torch.softmax(x[part], dim=-1, out=y[part])

        half = len(x) // 2
        list(threads.map(rows, [slice(0, half), slice(half, None)]))
        return y
