"""Copies each call's inputs to where a CUDA graph reads them, replays the graph, and returns a copy of its
output."""

# problem: tanhs
# device: cuda
# verdict: correct
# defence: the copies are part of the time

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

    def record(self, x, w):
        self.x, self.w = x.clone(), w.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            tanhs(self.x, self.w)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = tanhs(self.x, self.w)

    def forward(self, x, w):
        if self.graph is None:
            self.record(x, w)
        self.x.copy_(x)
        self.w.copy_(w)
        self.graph.replay()
        return self.y.clone()
