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
from search.optimize.extraction.readable import ATTENTIONS, NLL_LOSS, WORDS, Words, attention_call

if TYPE_CHECKING:
    from torch import fx

logger = logging.getLogger(__name__)

NAME = "library_kernel"
MARK = "# Adapted to a model's problem by `ideatree optimize`."
TEMPLATE = """
aten = torch.ops.aten
library_kernel = {function}() if isinstance({function}, type) else {function}
{helper}

class ModelNew(torch.nn.Module):
    def forward(self, {names}):
{body}
"""
HELPERS = {
    "scaled(": """

def scaled(q, scale):
    # The kernel divides by the root of the size of a head.
    factor = scale * q.shape[-1] ** 0.5
    return q if abs(factor - 1) < 1e-6 else q * factor
""",
    "lengths_of(": """

import functools


@functools.cache
def full(batch, length, device):
    return torch.full((batch,), length, device=device)


def lengths_of(k):
    # The cache holds nothing beyond what is attended to.
    return full(k.shape[0], k.shape[2], k.device)
""",
}
"""What adapted kernels call, by the call's beginning."""


def _softmax(function: str) -> Words:
    def words(x: str, dim: str, half_to_float: str) -> str | None:
        if half_to_float != "False":
            return None
        return f"{function}({x})" if dim == "-1" else f"{function}({x}.movedim({dim}, -1)).movedim(-1, {dim})"

    return words


def _sum(function: str) -> Words:
    def words(x: str, dims: str, keepdim: str = "False", dtype: str = "None") -> str | None:
        dim = dims.strip("[]")
        if dtype != "None" or not dim.lstrip("-").isdigit():
            return None
        call = f"{function}({x})" if dim == "-1" else f"{function}({x}.movedim({dim}, -1))"
        return f"{call}.unsqueeze({dim})" if keepdim == "True" else call

    return words


def _mm(function: str) -> Words:
    return lambda a, b: f"{function}({a}, {b})"


def _addmm(function: str) -> Words:
    def words(bias: str, a: str, b: str, beta: str = "1", alpha: str = "1") -> str | None:
        return f"{function}({a}, {b}).add_({bias})" if beta == alpha == "1" else None

    return words


def _layernorm(function: str) -> Words:
    def words(x: str, shape: str, weight: str, bias: str, eps: str) -> str:
        return f"{function}({x}, {weight}, {bias}, {eps}, {shape.count(',') + 1})"

    return words


def _fused_rmsnorm(function: str) -> Words:
    def words(x: str, shape: str, weight: str, eps: str) -> str | None:
        return f"{function}({x}, {weight}, {eps})" if "," not in shape and eps != "None" else None

    return words


def _conv2d(function: str) -> Words:
    """A convolution of images, with the same stride and padding in both directions."""

    def words(
        x: str,
        weight: str,
        bias: str,
        stride: str,
        padding: str,
        dilation: str,
        transposed: str,
        output_padding: str,
        groups: str,
    ) -> str | None:
        strides, paddings = (each.strip("[]").split(", ") for each in (stride, padding))
        equal = len(strides) == 2 and len({*strides}) == len({*paddings}) == 1
        plain = (dilation, transposed, groups) == ("[1, 1]", "False", "1")
        return f"{function}({x}, {weight}, {bias}, {strides[0]}, {paddings[0]})" if equal and plain else None

    return words


def _attention(places: tuple[int | None, int, int], *, causal: bool = True) -> Callable[[str], Words]:
    """Causal attention, or attention of one query to all keys, whose function takes the lengths of the
    caches, too."""

    def of(function: str) -> Words:
        def words(*given: str, **named: str) -> str | None:
            call = attention_call(places, *given, **named)
            if call is None or call.causal != str(causal) or call.mask != "None":
                return None
            q = call.q if call.scale == "None" else f"scaled({call.q}, {call.scale})"
            lengths = "" if causal else f", lengths_of({call.k})"
            return f"{function}({q}, {call.k}, {call.v}{lengths})"

        return words

    return of


OPERATORS: Mapping[str, Mapping[str, Callable[[str], Words]]] = {
    "softmax": {"aten._softmax.default": _softmax},
    "sum": {"aten.sum.dim_IntList": _sum},
    "matmul": {"aten.mm.default": _mm, "aten.addmm.default": _addmm},
    "layernorm": {"aten.native_layer_norm.default": _layernorm},
    "rmsnorm": {"aten._fused_rms_norm.default": _fused_rmsnorm},
    "conv2d": {"aten.convolution.default": _conv2d},
    "attention": {name: _attention(places) for name, places in ATTENTIONS.items()},
    "decode_attention": {name: _attention(places, causal=False) for name, places in ATTENTIONS.items()},
}
"""By the library's family and the operator: how to write its call with the kernel's function."""
CROSS_ENTROPY = ("_log_softmax", "nll_loss_forward")
COPIES = ("_to_copy", "clone", "constant_pad_nd")
"""Operators that stay as they are: casts, copies, and the shift of a language model's labels."""
RMSNORM = ("pow", "mean", "add", "rsqrt", "mul", "mul")


def is_for(entry: Entry, device: str, *, backward: bool = False) -> bool:
    """Whether the entry's language runs on the device; with `backward`, whether it was measured with its
    backward pass, too."""
    trained = not backward or any(each.problem.backward for each in entry.measurements)
    return trained and (device == "cpu") == (entry.kernel.language == "cpp")


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
    elif entry.op == "rmsnorm" and len(fragment.inputs) == 2 and not fragment.constant:
        body = _rmsnorm(fragment, computing, NAME)
    elif entry.op == "cross_entropy" and _names(computing) == CROSS_ENTROPY:
        body = fragment.code({**_views_alone(), **_cross_entropy(NAME)})
    if body is None or NAME not in "".join(body):
        return None
    text = textwrap.indent("\n".join(body), " " * 8)
    helper = "".join(each for call, each in HELPERS.items() if call in text)
    names = ", ".join(fragment.names)
    forward = TEMPLATE.format(function=entry.function, helper=helper, names=names, body=text)
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


def _cross_entropy(function: str) -> Mapping[str, Words]:
    """A mean or a sum of the function's losses, one per row, in place of a log-softmax and what picks from
    it."""

    def log_softmax(x: str, dim: str, half_to_float: str) -> str | None:
        return x if dim in ("1", "-1") and half_to_float == "False" else None

    def nll_loss(x: str, target: str, weight: str, reduction: str, ignored: str) -> str | None:
        losses = f"{function}({x}, {target}, {ignored})"
        found = {"0": losses, "1": f"{losses}.sum() / ({target} != {ignored}).sum()", "2": f"{losses}.sum()"}
        return found[reduction] if weight == "None" else None

    return {"aten._log_softmax.default": log_softmax, NLL_LOSS: nll_loss}


def _name(node: fx.Node) -> str:
    """The operator's name, the same in place and not."""
    return str(node.target).split(".")[1].rstrip("_")


def _names(computing: Sequence[fx.Node]) -> tuple[str, ...]:
    """The operators' names, without casts and copies."""
    return tuple(name for name in map(_name, computing) if name not in COPIES)


def _rmsnorm(fragment: Fragment, computing: Sequence[fx.Node], function: str) -> list[str] | None:
    """An RMS norm written out in the model as x · weight / sqrt(mean(x²) + eps)."""
    if _names(computing) != RMSNORM:
        return None
    squares, mean, sums, *_ = (node for node in computing if _name(node) not in COPIES)
    eps = sums.args[1]
    if squares.args[1] != 2 or list(mean.args[1:]) != [[-1], True] or not isinstance(eps, float):
        return None
    x, weight = fragment.names
    return [f"return {function}({x}, {weight}, {eps!r})"]
