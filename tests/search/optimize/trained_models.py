"""Models that are trained: a language model like Qwen3, with grouped queries, normed queries and keys, rotary
positions, RMS norms and a gated MLP; and one with a batch norm and dropout. Kernels for them."""

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
RMSNORM = '''"""RMS norm of rows in C++, forward and backward."""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <cmath>
#include <vector>

void forward_rows(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& out,
                  const torch::Tensor& scales, double eps) {
    const int64_t cols = weight.numel(), rows = x.numel() / cols;
    const float *from = x.data_ptr<float>(), *w = weight.data_ptr<float>();
    float *to = out.data_ptr<float>(), *scale = scales.data_ptr<float>();
    for (int64_t row = 0; row < rows; ++row, from += cols, to += cols) {
        float sum = 0;
        for (int64_t i = 0; i < cols; ++i)
            sum += from[i] * from[i];
        scale[row] = 1 / std::sqrt(sum / cols + float(eps));
        for (int64_t i = 0; i < cols; ++i)
            to[i] = w[i] * (from[i] * scale[row]);
    }
}

void backward_rows(const torch::Tensor& grad, const torch::Tensor& x, const torch::Tensor& weight,
                   const torch::Tensor& scales, const torch::Tensor& dx, const torch::Tensor& dweight) {
    const int64_t cols = weight.numel(), rows = x.numel() / cols;
    const float *g = grad.data_ptr<float>(), *from = x.data_ptr<float>(), *w = weight.data_ptr<float>();
    const float* scale = scales.data_ptr<float>();
    float *to = dx.data_ptr<float>(), *sums = dweight.data_ptr<float>();
    std::vector<float> part(cols, 0.0f);
    for (int64_t row = 0; row < rows; ++row, g += cols, from += cols, to += cols) {
        float dot = 0;
        for (int64_t i = 0; i < cols; ++i) {
            dot += g[i] * w[i] * from[i];
            part[i] += g[i] * from[i] * scale[row];
        }
        const float inner = dot * scale[row] * scale[row] / cols;
        for (int64_t i = 0; i < cols; ++i)
            to[i] = scale[row] * (g[i] * w[i] - from[i] * inner);
    }
    for (int64_t i = 0; i < cols; ++i)
        sums[i] = part[i];
}
"""
LIBRARY = load_inline(
    "rmsnorm_rows",
    SOURCE,
    functions=["forward_rows", "backward_rows"],
    extra_cflags=["-O3", "-march=native", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"],
)


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        out, scales = torch.empty_like(x), x.new_empty(x.numel() // weight.numel())
        LIBRARY.forward_rows(x, weight, out, scales, eps)
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, weight, scales = ctx.saved_tensors
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        LIBRARY.backward_rows(grad.contiguous(), x, weight, scales, dx, dweight)
        return dx, dweight, None


def rmsnorm(x, weight, eps=1e-6):
    return Rows.apply(x, weight, eps)


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = torch.nn.RMSNorm(features, eps=1e-6)

    def forward(self, x):
        return rmsnorm(x, self.norm.weight)
'''
NORM_KERNEL = """import torch


class Rows(torch.autograd.Function):
    kept = {{}}

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        {before}
        ctx.save_for_backward(x, weight, scale)
        return weight * (x * scale)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        hat, inner = x * scale, grad * weight
        dx = scale * (inner - hat * (inner * hat).mean(-1, keepdim=True))
        dweight = (grad * hat).flatten(0, -2).sum(0)
        {after}
        return dx, dweight


class ModelNew(torch.nn.Module):
    def forward(self, x, weight):
        return Rows.apply(x, weight)
"""


def norm_kernel(*, before: str = "pass", after: str = "pass") -> str:
    """A differentiable kernel for the RMS norm, with lines that may contain a fault."""
    return NORM_KERNEL.format(before=before, after=after)


FAULTS = {
    "a wrong gradient": norm_kernel(after="dweight = (grad * x).flatten(0, -2).sum(0)"),
    "a weight that is kept between steps": norm_kernel(
        before="weight = Rows.kept.setdefault(weight.data_ptr(), weight.detach().clone())"
    ),
    "a gradient that is accumulated": norm_kernel(
        after="before = Rows.kept.get(weight.data_ptr(), 0); "
        "dweight = Rows.kept[weight.data_ptr()] = before + dweight"
    ),
    "a gradient that is written, not returned": norm_kernel(after="weight.grad, dweight = dweight, None"),
}
