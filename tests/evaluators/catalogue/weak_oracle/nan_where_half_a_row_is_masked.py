"""Merges two halves of the keys by their sums, so a row with one half masked with -inf becomes NaN."""

# problem: biased_attention
# device: any
# verdict: incorrect
# defence: masked inputs (-inf), for the inputs that can be masks

import math

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, bias):
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        halves = list(zip(scores.chunk(2, -1), v.chunk(2, -2), strict=True))
        shares = torch.softmax(torch.stack([part.logsumexp(-1) for part, _ in halves]), 0)
        return sum(
            torch.softmax(part, -1) @ values * share[..., None]
            for (part, values), share in zip(halves, shares, strict=True)
        )
