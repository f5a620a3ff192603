"""Records a CUDA graph over the first call's inputs and replays it for all others."""

# problem: tanhs
# device: cuda
# verdict: incorrect
# defence: every call has new inputs, in a separate place

import torch
from torch import nn


def tanhs(x, w):
    for _ in range(8):
        x = torch.tanh(x @ w)
    return x


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def forward(self, x, w):
        if self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                tanhs(x, w)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = tanhs(x, w)
        self.graph.replay()
        return self.out
