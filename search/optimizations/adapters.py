"""The library's kernels in the form of a model's problem.

A library kernel has the interface of its family: a layer norm is a function of rows, weight, bias and eps. A
problem has the tensors as the model holds them, with views before and after. What is made here is a proposal:
whether it is right, the evaluator says.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from evaluators.problem import Kernel
from kernel_library.entry import Entry
from search.optimizations.extraction.fragments import Fragment
from search.optimizations.extraction.readable import ATTENTIONS, WORDS, Words, attention_call

if TYPE_CHECKING:
    from torch import fx

NAME = "library_kernel"
TEMPLATE = """

# As a problem of a model: by search.optimize.

aten = torch.ops.aten
library_kernel = {function}() if isinstance({function}, type) else {function}


class ModelNew(torch.nn.Module):
    def forward(self, {names}):
{body}
"""


def _softmax(function: str) -> Words:
    return lambda x, dim, half_to_float: f"{function}({x})"


def _sum(function: str) -> Words:
    def words(x: str, dim: str, keepdim: str = "False") -> str:
        return f"{function}({x})" + (".unsqueeze(-1)" if keepdim == "True" else "")

    return words


def _mm(function: str) -> Words:
    return lambda a, b: f"{function}({a}, {b})"


def _addmm(function: str) -> Words:
    return lambda bias, a, b: f"{function}({a}, {b}).add_({bias})"


def _layernorm(function: str) -> Words:
    def words(x: str, shape: str, weight: str, bias: str, eps: str) -> str:
        return f"{function}({x}, {weight}, {bias}, {eps}, {shape.count(',') + 1})"

    return words


def _fused_rms_norm(function: str) -> Words:
    return lambda x, shape, weight, eps: f"{function}({x}, {weight}, {eps})"


def _conv2d(function: str) -> Words:
    def words(x: str, weight: str, bias: str, stride: str, padding: str, *rest: str) -> str:
        return f"{function}({x}, {weight}, {bias}, {stride}[0], {padding}[0])"

    return words


def _attention(places: tuple[int | None, int, int]) -> Callable[[str], Words]:
    def of(function: str) -> Words:
        def words(*given: str, **named: str) -> str | None:
            call = attention_call(places, *given, **named)
            if call is None or call.causal != "True" or call.mask != "None":
                return None
            return f"{function}({call.q}, {call.k}, {call.v})"

        return words

    return of


OPERATORS: Mapping[str, Mapping[str, Callable[[str], Words]]] = {
    "softmax": {"aten._softmax.default": _softmax},
    "sum": {"aten.sum.dim_IntList": _sum},
    "matmul": {"aten.mm.default": _mm, "aten.addmm.default": _addmm},
    "layernorm": {"aten.native_layer_norm.default": _layernorm},
    "rmsnorm": {"aten._fused_rms_norm.default": _fused_rms_norm},
    "conv2d": {"aten.convolution.default": _conv2d},
    "attention": {name: _attention(places) for name, places in ATTENTIONS.items()},
}
"""By the library's family: how an operator is written with the kernel's function."""
RMSNORM = ("pow", "mean", "add", "rsqrt", "mul", "mul")


def is_for(entry: Entry, device: str) -> bool:
    """Whether the entry's language is one of the device's."""
    return (device == "cpu") == (entry.kernel.language == "cpp")


def adapted(entry: Entry, fragment: Fragment, views: Collection[object]) -> Kernel | None:
    """The entry's kernel for the fragment, whose calls in `views` move nothing; None where it is not for
    that."""
    if not entry.function:
        return None
    computing = [node for node in fragment.calls if node not in views]
    body: Sequence[str] | None = None
    words = {name: make(NAME) for name, make in OPERATORS.get(entry.op, {}).items()}
    if len(computing) == 1 and str(computing[0].target) in words:
        body = fragment.code({**_views_alone(), **words})
    elif entry.op == "rmsnorm" and len(fragment.inputs) == 2:
        body = _rmsnorm(fragment, computing, NAME)
    if body is None or NAME not in "".join(body):
        return None
    text = textwrap.indent("\n".join(body), " " * 8)
    source = entry.kernel.source.rstrip() + TEMPLATE.format(
        function=entry.function, names=", ".join(fragment.names), body=text
    )
    head = "" if "import torch\n" in source else "import torch\n"
    return Kernel(source=head + source, language=entry.kernel.language)


def _views_alone() -> Mapping[str, Words]:
    names = ("t", "transpose", "permute", "view", "_unsafe_view", "unsqueeze", "squeeze", "expand")
    return {name: words for name, words in WORDS.items() if name.split(".")[1] in names}


def _rmsnorm(fragment: Fragment, computing: Sequence[fx.Node], function: str) -> list[str] | None:
    """x · weight / sqrt(mean(x²) + eps), written out."""
    calls = [(str(node.target).split(".")[1], node) for node in computing]
    calls = [(name, node) for name, node in calls if name != "_to_copy"]  # in float32 between
    if tuple(name for name, _ in calls) != RMSNORM:
        return None
    eps = calls[2][1].args[1]
    x, weight = fragment.names
    return [f"return {function}({x}, {weight}, {eps!r})"] if isinstance(eps, float) else None
