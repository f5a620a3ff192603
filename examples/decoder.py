"""A Qwen3-like language model: RMSNorm of queries and keys, grouped queries, rotary embeddings, SwiGLU. With
`cached` tokens in its caches it computes a step of decoding, otherwise a whole prompt."""

import torch
from torch import nn
from torch.nn import functional

batch, length, cached = 1, 4096, 0
width, heads, kv_heads, head_size, hidden, layers, words = 2048, 16, 8, 128, 6144, 4, 32000


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = Norm(width), Norm(width)
        self.q_norm, self.k_norm = Norm(head_size), Norm(head_size)
        self.q = nn.Linear(width, heads * head_size, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * head_size, bias=False) for _ in range(2))
        self.out = nn.Linear(heads * head_size, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin, cache):
        normed = self.attention_norm(x)
        q, k, v = (each(normed).unflatten(-1, (-1, head_size)) for each in (self.q, self.k, self.v))
        q, k = (rotated(each.transpose(1, 2), cos, sin) for each in (self.q_norm(q), self.k_norm(k)))
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        normed = self.norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = Norm(width)
        rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(cached, cached + length).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, caches=None):
        x = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, self.cos, self.sin, None if caches is None else caches[number])
        return self.norm(x[:, -1]) @ self.embed.weight.t()


def get_inputs():
    tokens = torch.randint(words, (batch, length))
    return [tokens, torch.randn(layers, 2, batch, kv_heads, cached, head_size)] if cached else [tokens]


def get_init_inputs():
    return []
