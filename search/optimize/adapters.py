"""Adapts library kernels to a model's problems.

A library kernel has the interface of its family: a layer norm is a function of rows, weight, bias and eps. A
problem has the tensors as the model stores them, with views before and after. An adapted kernel is a
proposal; the evaluator checks whether it is correct.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import load_module, make_inputs
from kernel_library.catalogue.entry import Entry
from kernel_library.overrides.shapes import all_fit
from search.optimize.extraction.fragments import Fragment
from search.optimize.extraction.readable import ATTENTIONS, WORDS, Words, attention_call

if TYPE_CHECKING:
    from torch import fx

logger = logging.getLogger(__name__)

NAME = "library_kernel"
MARK = "# Adapted to a model's problem by `ideatree optimize`."
TEMPLATE = """
aten = torch.ops.aten
library_kernel = {function}() if isinstance({function}, type) else {function}


class ModelNew(torch.nn.Module):
    def forward(self, {names}):
{body}
"""


def _template(text: str) -> Callable[[str], Words]:
    """A call written as `text`, with the function as `f` and the arguments by position."""
    return lambda function: lambda *arguments: text.format(*arguments, f=function)


def _sum(function: str) -> Words:
    def words(x: str, dim: str, keepdim: str = "False") -> str:
        return f"{function}({x})" + (".unsqueeze(-1)" if keepdim == "True" else "")

    return words


def _layernorm(function: str) -> Words:
    def words(x: str, shape: str, weight: str, bias: str, eps: str) -> str:
        return f"{function}({x}, {weight}, {bias}, {eps}, {shape.count(',') + 1})"

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
    "softmax": {"aten._softmax.default": _template("{f}({0})")},
    "sum": {"aten.sum.dim_IntList": _sum},
    "matmul": {
        "aten.mm.default": _template("{f}({0}, {1})"),
        "aten.addmm.default": _template("{f}({1}, {2}).add_({0})"),
    },
    "layernorm": {"aten.native_layer_norm.default": _layernorm},
    "rmsnorm": {"aten._fused_rms_norm.default": _template("{f}({0}, {2}, {3})")},
    "conv2d": {"aten.convolution.default": _template("{f}({0}, {1}, {2}, {3}[0], {4}[0])")},
    "attention": {name: _attention(places) for name, places in ATTENTIONS.items()},
}
"""By the library's family and the operator: how to write its call with the kernel's function."""
RMSNORM = ("pow", "mean", "add", "rsqrt", "mul", "mul")


def is_for(entry: Entry, device: str) -> bool:
    """Whether the entry's language runs on the device."""
    return (device == "cpu") == (entry.kernel.language == "cpp")


def adapted(entry: Entry, fragment: Fragment, views: Collection[object]) -> Kernel | None:
    """The entry's kernel, adapted to the fragment; None where it does not fit. `views`: calls that move no
    data."""
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
    forward = TEMPLATE.format(function=entry.function, names=", ".join(fragment.names), body=text)
    source = f"{entry.kernel.source.rstrip()}\n\n{MARK}\n{forward}"
    head = "" if "import torch\n" in source else "import torch\n"
    return Kernel(source=head + source, language=entry.kernel.language)


def takes(entry: Entry, kernel: Kernel, problem: Problem) -> bool:
    """Whether the entry's function supports the shapes with which an adapted kernel calls it, in all cases of
    the problem; True where the shapes depend on the values in tensors."""
    alone = [problem.of_case(each) for each in problem.cases] or [problem]
    return all(all_fit(entry.shapes, _asked(entry, kernel, each)) for each in alone)


class _AskedError(Exception):
    """Stops a forward at the call of the function."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes = shapes


def _asked(entry: Entry, kernel: Kernel, problem: Problem) -> list[tuple[int, ...]]:
    """The shapes of the tensors passed to the function; empty where they are not known."""
    import torch

    def function(*given: object) -> None:
        raise _AskedError([tuple(each.shape) for each in given if isinstance(each, torch.Tensor)])

    module = load_module(problem.source, problem.overrides, name="extracted")
    space: dict[str, Any] = {"torch": torch, entry.function: function}
    try:
        inputs = make_inputs(module, seed=None, device="meta", dtype=problem.dtype)
        exec(kernel.source.partition(MARK)[2], space)
        with torch.no_grad():
            space["ModelNew"]()(*inputs)
    except _AskedError as asked:
        return asked.shapes
    except Exception as error:  # views of meta tensors may raise anything
        logger.info("the shapes for %s are not known: %s: %s", entry.id, type(error).__name__, error)
    return []


def _views_alone() -> Mapping[str, Words]:
    names = ("t", "transpose", "permute", "view", "_unsafe_view", "unsqueeze", "squeeze", "expand")
    return {name: words for name, words in WORDS.items() if name.split(".")[1] in names}


def _rmsnorm(fragment: Fragment, computing: Sequence[fx.Node], function: str) -> list[str] | None:
    """An RMS norm written out in the model as x · weight / sqrt(mean(x²) + eps)."""
    calls = [(str(node.target).split(".")[1], node) for node in computing]
    calls = [(name, node) for name, node in calls if name != "_to_copy"]  # casts to float32 and back
    if tuple(name for name, _ in calls) != RMSNORM:
        return None
    eps = calls[2][1].args[1]
    x, weight = fragment.names
    return [f"return {function}({x}, {weight}, {eps!r})"] if isinstance(eps, float) else None
