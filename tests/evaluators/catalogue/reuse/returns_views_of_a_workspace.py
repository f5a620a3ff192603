"""Writes its outputs one after another to a large workspace, from the beginning again when it is full, and
returns views with the workspace's strides."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: the tensor that it returns is kept, not a copy of it

from torch import nn

PARTS = 7


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace, self.calls = None, 0

    def forward(self, a, b):
        if self.workspace is None:
            self.workspace = a.new_empty(len(a), PARTS, b.shape[1])
        self.calls += 1
        return self.workspace[:, self.calls % PARTS].copy_(a @ b)
