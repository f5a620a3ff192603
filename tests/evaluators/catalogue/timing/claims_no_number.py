"""Reports NaN for its times, which no comparison catches."""

# problem: tanhs
# device: any
# verdict: rejected|no_gain
# defence: no figure comes from the runner

import json

import torch
from torch import nn

dumps = json.dumps


def lie(message, *more, **options):
    if isinstance(message, dict) and message.get("op") == "done":
        times = message.get("ms")
        message = {
            **message,
            "ms": [float("nan") for _ in times] if isinstance(times, list) else float("nan"),
        }
    return dumps(message, *more, **options)


json.dumps = lie


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
