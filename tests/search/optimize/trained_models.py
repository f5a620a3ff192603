"""Models that are trained: a language model like Qwen3, with grouped queries, normed queries and keys, rotary
positions, RMS norms and a gated MLP; and one with a batch norm and dropout."""

from __future__ import annotations

QWEN = '''"""A language model like Qwen3; it returns its loss."""

import torch
from torch import nn
from torch.nn import functional

batch, sequence, layers, width, heads, groups, vocabulary = 2, 32, 3, 64, 4, 2, 97


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotated(x, cos, sin):
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat([-other, one], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = Norm(self.size), Norm(self.size)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        q, k, v = (each.view(rows, length, -1, self.size) for each in (self.q(x), self.k(x), self.v(x)))
        q, k = (rotated(each.transpose(1, 2), cos, sin) for each in (self.q_norm(q), self.k_norm(k)))
        k, v = (each.repeat_interleave(heads // groups, 1) for each in (k, v.transpose(1, 2)))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = Norm(width), Attention()
        self.mlp_norm, self.mlp = Norm(width), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(sequence), 1e4 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x = self.embedding(ids)
        for each in self.blocks:
            x = each(x, self.cos, self.sin)
        scores = self.head(self.norm(x))
        before = scores[:, :-1].reshape(-1, vocabulary)
        loss = functional.cross_entropy(before.float(), ids[:, 1:].reshape(-1))
        return {"loss": loss, "logits": scores}


def get_inputs():
    return [torch.randint(vocabulary, (batch, sequence))]


def get_init_inputs():
    return []
'''
NOISY = """import torch
from torch import nn

rows, width = 64, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.25), nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
"""
