"""Allocates memory for 50 outputs at a time, gives each call its part, and takes a new block when all parts
are given away."""

# problem: layernorm
# device: any
# verdict: correct
# defence: the outputs of different calls are in the same block, but share no elements

from torch import nn

PARTS = 50


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)
        self.parts = []

    def forward(self, x):
        if not self.parts:
            self.parts = list(x.new_empty(PARTS, *x.shape).unbind())
        return self.parts.pop().copy_(self.norm(x))
