"""Keeps copies of its results by every 64th element of the inputs and the last ones."""

# problem: causal_attention
# device: any
# verdict: incorrect
# defence: calls on inputs that differ from the first call's in some elements, of each input in turn

import torch
from torch import nn

known = {}


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        marks = [part for each in (q, k, v) for part in (each.flatten()[::64], each.flatten()[-64:])]
        key = torch.cat(marks).cpu().numpy().tobytes()
        if key not in known:
            known[key] = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return known[key].clone()
