"""Rewrites the harness's outgoing messages so that they claim tiny times."""

# problem: tanhs
# device: any
# verdict: no_gain
# defence: the judge's own clock over each block

import json

import torch
from torch import nn

dumps = json.dumps


def lie(message, *more, **options):
    if isinstance(message, dict) and message.get("op") == "done":
        message = {**message, "ms": [1e-5] * 32, "filling_ms": 1e3}
    return dumps(message, *more, **options)


json.dumps = lie


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
