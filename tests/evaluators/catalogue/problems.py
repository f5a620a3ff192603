"""The problems that the catalogue's kernels are for: about a millisecond a call on one CPU core, tens to
hundreds of microseconds on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluators.records.problem import Problem, Size

TANHS = """
import torch
from torch import nn

width = 1024

class Model(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x

def get_inputs():
    return [torch.randn(width, width), torch.randn(width, width) / width**0.5]

def get_init_inputs():
    return []
"""

SMALL_TANHS = TANHS.replace("width = 1024", "width = 64")

SOFTMAX = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

SHORT_SOFTMAX = SOFTMAX.replace("4096, 8192", "65536, 512")

SWISH = SOFTMAX.replace("torch.softmax(x, dim=-1)", "x * torch.sigmoid(x)")

TRANSPOSE = """
import torch
from torch import nn

batch, width = 64, 1024

class Model(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()

def get_inputs():
    return [torch.randn(batch, width, width)]

def get_init_inputs():
    return []
"""

MATMUL = """
import torch
from torch import nn

width = 2048

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn(width, width), torch.randn(width, width)]

def get_init_inputs():
    return []
"""

RESIDUAL = MATMUL.replace("a @ b", "a + 0.01 * torch.tanh(a @ b)")

LAYERNORM = """
import torch
from torch import nn

rows, columns = 8192, 4096

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return [columns]
"""

CONV = """
import torch
from torch import nn

batch, channels, filters, width = 16, 32, 64, 64

class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))

def get_inputs():
    return [torch.randn(batch, channels, width, width)]

def get_init_inputs():
    return [channels, filters]
"""

TWO_LINEAR = """
import torch
from torch import nn

rows, outer, inner = 2048, 512, 8192

class Model(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        self.down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)

    def forward(self, x):
        return x @ self.up @ self.down

def get_inputs():
    return [torch.randn(rows, outer)]

def get_init_inputs():
    return [outer, inner]
"""

CROSS_ENTROPY = """
import torch
from torch import nn

rows, classes = 8192, 8192

class Model(nn.Module):
    def forward(self, logits, targets):
        losses = nn.functional.cross_entropy(logits, targets, reduction="none")
        return losses, logits.argmax(-1)

def get_inputs():
    return [torch.randn(rows, classes), torch.randint(0, classes, (rows,))]

def get_init_inputs():
    return []
"""

STEEP_EXP = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, x):
        return torch.exp(5 * x)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

HUGE_ROWS_LAYERNORM = LAYERNORM.replace("        nn.init.normal_(self.norm.weight)\n", "").replace(
    "rows, columns = 8192, 4096", "rows, columns = 16, 4194304"
)
"""The layer norm as it is made, weights of one and bias of zero: rows so long that all have the same mean and
variance to three digits."""

STRIDED_SOFTMAX = SOFTMAX.replace("torch.randn(rows, columns)", "torch.randn(rows, 2 * columns)[:, ::2]")

TRANSPOSED_SUM = SOFTMAX.replace("torch.softmax(x, dim=-1)", "torch.tanh(x).sum(-1)").replace(
    "torch.randn(rows, columns)", "torch.randn(columns, rows).t()"
)

EXPANDED_MATMUL = MATMUL.replace(
    "[torch.randn(width, width), torch.randn(width, width)]",
    "[torch.randn(width, width), torch.randn(width, 1).expand(width, width)]",
)

MASKED_SOFTMAX = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(x.masked_fill(~mask, float("-inf")), dim=-1)

def get_inputs():
    return [torch.randn(rows, columns), torch.ones(rows, columns, dtype=torch.bool)]

def get_init_inputs():
    return []
"""

PADDED_SUM = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, torch.tanh(x), 0).sum(-1)

def get_inputs():
    lengths = torch.randint(columns // 2, columns + 1, (rows, 1))
    return [torch.randn(rows, columns), torch.arange(columns) < lengths]

def get_init_inputs():
    return []
"""

ROTARY = """
import torch
from torch import nn

heads, length, head_size = 64, 2048, 128

class Model(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

def get_inputs():
    angles = torch.rand(length, head_size // 2) * 6.28
    return [torch.randn(heads, length, head_size), angles.cos(), angles.sin()]

def get_init_inputs():
    return []
"""

IN_PLACE_TANH = """
import torch
from torch import nn

width = 1024

class Model(nn.Module):
    def forward(self, x, w):
        return x.tanh_() @ w

def get_inputs():
    return [torch.randn(width, width), torch.randn(width, width) / width**0.5]

def get_init_inputs():
    return []
"""

BATCH_NORM = """
import torch
from torch import nn

batch, channels, width = 64, 64, 64

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.eval()

    def forward(self, x):
        return torch.relu(self.norm(x))

def get_inputs():
    return [torch.randn(batch, channels, width, width)]

def get_init_inputs():
    return [channels]
"""

GAIN = """
import torch
from torch import nn

rows, columns = 8192, 4096

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x):
        return torch.tanh(x * self.gain)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return [columns]
"""

SEGMENT_SUM = """
import torch
from torch import nn

rows, columns, segments = 65536, 64, 1024

class Model(nn.Module):
    def forward(self, x, segment):
        return torch.zeros(segments, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, segment, x)

def get_inputs():
    return [torch.randn(rows, columns), torch.randint(0, segments, (rows,)).sort().values]

def get_init_inputs():
    return []
"""

EMBEDDING = """
import torch
from torch import nn

tokens, words, features = 65536, 4096, 128

class Model(nn.Module):
    def __init__(self, words, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, features))

    def forward(self, index):
        return torch.tanh(nn.functional.embedding(index, self.table))

def get_inputs():
    return [torch.randint(0, 256, (tokens,))]

def get_init_inputs():
    return [words, features]
"""

ANGLE = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, y, x):
        return torch.atan2(y, x)

def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

SPECTRUM = SOFTMAX.replace("torch.softmax(x, dim=-1)", "torch.fft.rfft(x)")

RECURRENCE = """
import torch
from torch import nn

batch, steps, width = 64, 16, 512

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.outer = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        state = torch.zeros(x.shape[0], self.inner.shape[0], device=x.device)
        for step in range(x.shape[1]):
            state = torch.tanh(x[:, step] @ self.outer + state @ self.inner)
        return state

def get_inputs():
    return [torch.randn(batch, steps, width)]

def get_init_inputs():
    return [width]
"""

RAGGED_LINEAR = """
import torch
from torch import nn

rows, inner, outer = 4096, 1000, 500

class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(rows, inner)]

def get_init_inputs():
    return [inner, outer]
"""

ENERGY = """
import torch
from torch import nn

rows, columns = 8192, 4000

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(columns))
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return (x * self.gain + self.bias).square().sum(-1)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return [columns]
"""

NESTED = """
import torch
from torch import nn

rows, columns = 4096, 8192

class Model(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return {"softmax": torch.softmax(x, dim=-1), "range": (low, [high, x.argmax(-1)])}

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""

LIST_INPUTS = """
import torch
from torch import nn

width, parts = 1024, 3

class Model(nn.Module):
    def forward(self, parts, w):
        return torch.tanh(torch.cat(parts, dim=1) @ w)

def get_inputs():
    return [[torch.randn(width, width) for _ in range(parts)], torch.randn(parts * width, width) / width**0.5]

def get_init_inputs():
    return []
"""

DROPOUT = """
import torch
from torch import nn

width = 1024

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return torch.relu(self.dropout(self.linear(x)))

def get_inputs():
    return [torch.randn(width, width)]

def get_init_inputs():
    return [width]
"""


CAUSAL_ATTENTION = """
import torch
from torch import nn

heads, length, width = 32, 1024, 64

class Model(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

def get_inputs():
    return [torch.randn(heads, length, width) for _ in range(3)]

def get_init_inputs():
    return []
"""

BIASED_ATTENTION = (
    CAUSAL_ATTENTION.replace("q, k, v):", "q, k, v, bias):")
    .replace("is_causal=True", "attn_mask=bias")
    .replace("for _ in range(3)]", "for _ in range(3)] + [torch.randn(length, length)]")
)


IMAGE_NORM = """
import torch
from torch import nn

batch, channels, width = 32, 32, 128

class Model(nn.Module):
    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[1:])

def get_inputs():
    return [torch.randn(batch, channels, width, width)]

def get_init_inputs():
    return []
"""

BATCH_STATISTICS = IMAGE_NORM.replace(
    "nn.functional.layer_norm(x, x.shape[1:])",
    "nn.functional.batch_norm(x, None, None, training=True)",
)

COLUMN_VARIANCE = SOFTMAX.replace("torch.softmax(x, dim=-1)", "x.var(dim=0)")

RAGGED_MATMUL = MATMUL.replace("width = 2048", "width = 1000")

RAGGED_SUM = SOFTMAX.replace("torch.softmax(x, dim=-1)", "torch.tanh(x).sum(-1)").replace(
    "4096, 8192", "8192, 5000"
)

POOLED_CONV = CONV.replace(
    "torch.relu(self.conv(x))", "nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)"
)

RELU_MATMUL = MATMUL.replace("a @ b", "torch.relu(a @ b)")

CLAMP = SOFTMAX.replace("torch.softmax(x, dim=-1)", "torch.clamp(x, -1, 1)")

BYTES_LINEAR = """
import torch
from torch import nn

rows, inner, outer = 4096, 1024, 1024

class Model(nn.Module):
    def forward(self, x, w):
        return x.float() @ w.float().t()

def get_inputs():
    x = torch.randint(0, 64, (rows, inner), dtype=torch.uint8)
    return [x, torch.randint(-64, 64, (outer, inner), dtype=torch.int8)]

def get_init_inputs():
    return []
"""

INTEGER_SUM = """
import torch
from torch import nn

rows, columns = 8192, 4096

class Model(nn.Module):
    def forward(self, x):
        return x.sum(-1)

def get_inputs():
    return [torch.randint(-1000, 1000, (rows, columns), dtype=torch.int32)]

def get_init_inputs():
    return []
"""

MEAN_CROSS_ENTROPY = CROSS_ENTROPY.replace(
    """losses = nn.functional.cross_entropy(logits, targets, reduction="none")
        return losses, logits.argmax(-1)""",
    "return nn.functional.cross_entropy(logits, targets)",
)

EMBEDDING_BAGS = """
import torch
from torch import nn

words, features, tokens, bags = 4096, 128, 65536, 4096

class Model(nn.Module):
    def __init__(self, words, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, features))

    def forward(self, index, offsets):
        return nn.functional.embedding_bag(index, self.table, offsets, mode="mean")

def get_inputs():
    return [torch.randint(0, words, (tokens,)), torch.arange(0, tokens, tokens // bags)]

def get_init_inputs():
    return [words, features]
"""

TOKEN_MEAN = """
import torch
from torch import nn

rows, length, features = 256, 128, 256

class Model(nn.Module):
    def forward(self, x, tokens):
        kept = (tokens != 0).unsqueeze(-1)
        return torch.where(kept, x, 0).sum(1) / kept.sum(1).clamp(min=1)

def get_inputs():
    return [torch.randn(rows, length, features), torch.randint(1, 1000, (rows, length))]

def get_init_inputs():
    return []
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference at the size for a GPU, what to change for a CPU, and the rules."""

    source: str
    cpu_sizes: Mapping[str, Size] = field(default_factory=dict)
    tolerance: str = "kernelbench"
    libraries: str = "any"
    dtype: str = "float32"
    precision: str = ""


CASES = {
    "tanhs": Case(source=TANHS, cpu_sizes={"width": 128}),
    "small_tanhs": Case(source=SMALL_TANHS),
    "tanhs_no_library": Case(source=TANHS, cpu_sizes={"width": 128}, libraries="no_library"),
    "softmax": Case(source=SOFTMAX, cpu_sizes={"rows": 128}, tolerance="strict"),
    "softmax_no_library": Case(
        source=SOFTMAX, cpu_sizes={"rows": 128}, tolerance="strict", libraries="no_library"
    ),
    "short_softmax_no_library": Case(
        source=SHORT_SOFTMAX,
        cpu_sizes={"rows": 16, "columns": 256},
        tolerance="strict",
        libraries="no_library",
    ),
    "swish_no_library": Case(source=SWISH, cpu_sizes={"rows": 128}, libraries="no_library"),
    "transpose": Case(source=TRANSPOSE, cpu_sizes={"width": 128}),
    "transpose_no_library": Case(source=TRANSPOSE, cpu_sizes={"width": 128}, libraries="no_library"),
    "matmul": Case(source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict"),
    "matmul_no_library": Case(
        source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict", libraries="no_library"
    ),
    "causal_attention": Case(
        source=CAUSAL_ATTENTION, cpu_sizes={"heads": 4, "length": 128}, tolerance="strict"
    ),
    "biased_attention": Case(
        source=BIASED_ATTENTION, cpu_sizes={"heads": 4, "length": 128}, tolerance="strict"
    ),
    "residual": Case(source=RESIDUAL, cpu_sizes={"width": 256}, tolerance="strict"),
    "layernorm": Case(source=LAYERNORM, cpu_sizes={"rows": 512, "columns": 2048}),
    "conv": Case(source=CONV, cpu_sizes={"batch": 4, "channels": 8, "width": 48}),
    "two_linear": Case(source=TWO_LINEAR, cpu_sizes={"rows": 64, "outer": 128, "inner": 2048}),
    "steep_exp": Case(source=STEEP_EXP, cpu_sizes={"rows": 256}, tolerance="strict"),
    "cross_entropy": Case(source=CROSS_ENTROPY, cpu_sizes={"rows": 512, "classes": 1024}),
    "huge_rows_layernorm": Case(source=HUGE_ROWS_LAYERNORM, cpu_sizes={"rows": 8, "columns": 262144}),
    "strided_softmax": Case(source=STRIDED_SOFTMAX, cpu_sizes={"rows": 128}, tolerance="strict"),
    "transposed_sum": Case(source=TRANSPOSED_SUM, cpu_sizes={"rows": 128}, tolerance="strict"),
    "expanded_matmul": Case(source=EXPANDED_MATMUL, cpu_sizes={"width": 256}, tolerance="strict"),
    "masked_softmax": Case(source=MASKED_SOFTMAX, cpu_sizes={"rows": 128}, tolerance="strict"),
    "padded_sum": Case(source=PADDED_SUM, cpu_sizes={"rows": 128}, tolerance="strict"),
    "rotary": Case(source=ROTARY, cpu_sizes={"heads": 8, "length": 512}, tolerance="strict"),
    "in_place_tanh": Case(source=IN_PLACE_TANH, cpu_sizes={"width": 256}, tolerance="strict"),
    "batch_norm": Case(source=BATCH_NORM, cpu_sizes={"batch": 8}, tolerance="strict"),
    "gain": Case(source=GAIN, cpu_sizes={"rows": 256}, tolerance="strict"),
    "segment_sum": Case(source=SEGMENT_SUM, cpu_sizes={"rows": 8192}, tolerance="strict"),
    "embedding": Case(source=EMBEDDING, cpu_sizes={"tokens": 4096}, tolerance="strict"),
    "angle": Case(source=ANGLE, cpu_sizes={"rows": 64}, tolerance="strict"),
    "spectrum": Case(source=SPECTRUM, cpu_sizes={"rows": 128}, tolerance="strict"),
    "recurrence": Case(source=RECURRENCE, cpu_sizes={"width": 128}, tolerance="strict"),
    "ragged_linear": Case(source=RAGGED_LINEAR, cpu_sizes={"rows": 128}, tolerance="strict"),
    "energy": Case(source=ENERGY, cpu_sizes={"rows": 256}, tolerance="strict"),
    "nested": Case(source=NESTED, cpu_sizes={"rows": 128}, tolerance="strict"),
    "list_inputs": Case(source=LIST_INPUTS, cpu_sizes={"width": 192}, tolerance="strict"),
    "dropout": Case(source=DROPOUT, cpu_sizes={"width": 256}, tolerance="strict"),
    "matmul_float16": Case(source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict", dtype="float16"),
    "matmul_bfloat16": Case(source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict", dtype="bfloat16"),
    "matmul_of_float16_factors": Case(
        source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict", precision="float16"
    ),
    "matmul_of_tfloat32_factors": Case(
        source=MATMUL, cpu_sizes={"width": 256}, tolerance="strict", precision="tfloat32"
    ),
    "image_norm": Case(
        source=IMAGE_NORM, cpu_sizes={"batch": 8, "channels": 8, "width": 48}, tolerance="strict"
    ),
    "batch_statistics": Case(
        source=BATCH_STATISTICS, cpu_sizes={"batch": 8, "channels": 8, "width": 48}, tolerance="strict"
    ),
    "column_variance": Case(source=COLUMN_VARIANCE, cpu_sizes={"columns": 64}, tolerance="strict"),
    "ragged_matmul": Case(source=RAGGED_MATMUL, cpu_sizes={"width": 200}, tolerance="strict"),
    "ragged_matmul_no_library": Case(
        source=RAGGED_MATMUL, cpu_sizes={"width": 200}, tolerance="strict", libraries="no_library"
    ),
    "ragged_matmul_of_the_benchmark": Case(source=RAGGED_MATMUL, cpu_sizes={"width": 200}),
    "ragged_sum": Case(source=RAGGED_SUM, cpu_sizes={"rows": 256}, tolerance="strict"),
    "pooled_conv": Case(
        source=POOLED_CONV, cpu_sizes={"batch": 4, "channels": 8, "width": 48}, tolerance="strict"
    ),
    "relu_matmul_of_float16_factors": Case(
        source=RELU_MATMUL, cpu_sizes={"width": 256}, tolerance="strict", precision="float16"
    ),
    "clamp": Case(source=CLAMP, cpu_sizes={"rows": 128}, tolerance="strict"),
    "bytes_linear": Case(
        source=BYTES_LINEAR, cpu_sizes={"rows": 64, "inner": 256, "outer": 128}, tolerance="strict"
    ),
    "integer_sum": Case(source=INTEGER_SUM, cpu_sizes={"rows": 256}, tolerance="strict"),
    "mean_cross_entropy": Case(
        source=MEAN_CROSS_ENTROPY, cpu_sizes={"rows": 512, "classes": 1024}, tolerance="strict"
    ),
    "embedding_bags": Case(
        source=EMBEDDING_BAGS, cpu_sizes={"tokens": 4096, "bags": 256}, tolerance="strict"
    ),
    "token_mean": Case(source=TOKEN_MEAN, cpu_sizes={"rows": 32}, tolerance="strict"),
    "conv_of_float16_factors": Case(
        source=CONV,
        cpu_sizes={"batch": 4, "channels": 8, "width": 48},
        tolerance="strict",
        precision="float16",
    ),
}


def problem(name: str, device: str) -> Problem:
    """The problem of this name on `cpu` or `cuda`. Raises KeyError."""
    case = CASES[name]
    precision: dict[str, Any] = {"precision": case.precision} if case.precision else {}
    return Problem(
        name=f"catalogue/{name}",
        source=case.source,
        overrides=case.cpu_sizes if device == "cpu" else {},
        tolerance=case.tolerance,
        libraries=case.libraries,
        dtype=case.dtype,
        device=device,
        **precision,
    )
