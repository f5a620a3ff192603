"""Sleeps in the first calls, so that it is timed in blocks of one call, in which a lie of half its time
does not show."""

# problem: tanhs
# device: any
# verdict: rejected|no_gain
# defence: the length of a block follows the clock of earlier blocks, not the first calls

import json
import time

import torch
from torch import nn

dumps, calls = json.dumps, []


def lie(message, *more, **options):
    if isinstance(message, dict) and isinstance(times := message.get("ms"), list) and len(calls) > 7:
        message = {**message, "ms": [each / 2 for each in times]}
    return dumps(message, *more, **options)


json.dumps = lie


class ModelNew(nn.Module):
    def forward(self, x, w):
        calls.append(1)
        if len(calls) <= 7:
            time.sleep(0.2)
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
