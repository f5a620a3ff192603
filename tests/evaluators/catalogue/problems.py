"""The problems that the catalogue's kernels are for: about a millisecond a call on one CPU core, tens to
hundreds of microseconds on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluators.problem import Problem, Size

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


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference at the size for a GPU, what to change for a CPU, and the rules."""

    source: str
    cpu_sizes: Mapping[str, Size] = field(default_factory=dict)
    tolerance: str = "kernelbench"
    libraries: str = "any"


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
    "residual": Case(source=RESIDUAL, cpu_sizes={"width": 256}, tolerance="strict"),
    "layernorm": Case(source=LAYERNORM, cpu_sizes={"rows": 512, "columns": 2048}),
    "conv": Case(source=CONV, cpu_sizes={"batch": 4, "channels": 8, "width": 48}),
    "two_linear": Case(source=TWO_LINEAR, cpu_sizes={"rows": 64, "outer": 128, "inner": 2048}),
    "steep_exp": Case(source=STEEP_EXP, cpu_sizes={"rows": 256}, tolerance="strict"),
    "cross_entropy": Case(source=CROSS_ENTROPY, cpu_sizes={"rows": 512, "classes": 1024}),
}


def problem(name: str, device: str) -> Problem:
    """The problem of this name on `cpu` or `cuda`. Raises KeyError."""
    case = CASES[name]
    return Problem(
        name=f"catalogue/{name}",
        source=case.source,
        overrides=case.cpu_sizes if device == "cpu" else {},
        tolerance=case.tolerance,
        libraries=case.libraries,
        device=device,
    )
