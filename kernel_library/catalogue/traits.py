"""Recognises what a reference computes: its operators, as torch dispatches them, and the operation they form.

The reference runs once, on the meta device, where tensors have shapes but no numbers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.records.problem import Problem
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.loading import ConstructorArguments, constructor_arguments, load_module, make_inputs
from kernel_library.overrides.shapes import shape_text

logger = logging.getLogger(__name__)

FAMILIES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"), "matmul"),
    **dict.fromkeys(("_softmax", "_safe_softmax"), "softmax"),
    "_log_softmax": "log_softmax",
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), "nll_loss"),
    **dict.fromkeys(("native_layer_norm", "_fused_layer_norm"), "layernorm"),
    "_fused_rms_norm": "rmsnorm",
    "native_group_norm": "groupnorm",
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), "batchnorm"),
    **dict.fromkeys((f"max_pool{n}d_with_indices" for n in (2, 3)), "maxpool"),
    **dict.fromkeys((f"avg_pool{n}d" for n in (2, 3)), "avgpool"),
    **dict.fromkeys((f"_adaptive_avg_pool{n}d" for n in (2, 3)), "avgpool"),
    **dict.fromkeys(("amax", "max"), "max"),
    **dict.fromkeys(("amin", "min"), "min"),
}
"""The operation names of torch's operators; others keep their names."""

MADE = re.compile(
    r"(empty|zeros|ones|full|rand|randn|randint|randperm|new_\w+|\w+_like|arange|scalar_tensor)"
)
"""Operators that make constants."""
MOVES = {"clone", "_to_copy", "copy", "contiguous", "_unsafe_view", "stack", "lift_fresh", "detach", "fill"}
"""Operators that compute nothing."""
GLUE = {
    *("add", "sub", "rsub", "mul", "div", "neg", "pow", "sqrt", "rsqrt", "cat", "where", "masked_fill"),
    *("tril", "triu", "addcmul", "reciprocal", "abs", "clamp", "bitwise_not", "logical_not"),
    *("lt", "gt", "le", "ge", "eq", "ne"),
}
"""Operators that connect operations; ignored if there are others."""

COMPOSED = (
    ("attention", ("matmul", "softmax", "matmul")),
    ("cross_entropy", ("log_softmax", "nll_loss")),
    ("swiglu", ("matmul", "silu", "mul")),
    ("rmsnorm", ("pow", "mean", "rsqrt", "mul")),
    ("rmsnorm", ("mul", "mean", "rsqrt", "mul")),
    ("rmsnorm", ("pow", "mean", "sqrt", "div")),
    ("layernorm", ("mean", "var", "sqrt", "div")),
    ("layernorm", ("mean", "sub", "pow", "mean", "rsqrt")),
    ("layernorm", ("mean", "var", "rsqrt")),
    ("softmax", ("max", "sub", "exp", "sum", "div")),
    ("softmax", ("exp", "sum", "div")),
    ("rotary", ("neg", "cat", "mul", "add")),
    ("rotary", ("mul", "sub", "mul", "add", "cat")),
)
"""Operations that torch, or the author of a reference, writes as several operators in this order, possibly
with others in between. These become the parts of the operation."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a reference computes: its operation `op`, the operations in it (`parts`), and the shapes of its
    input tensors; `bare` if its `Model` has neither arguments nor tensors. Empty if it could not be
    traced."""

    op: str = ""
    parts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    bare: bool = False


def traits_of(problem: Problem) -> Traits:
    """What the problem's reference computes; empty traits if it cannot run on the meta device."""
    try:
        return _trace(problem)
    except Exception as error:  # the reference is the user's code, and may raise anything
        logger.info("%s cannot be traced: %s: %s", problem.name, type(error).__name__, error)
        return Traits()


def family(operators: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The operation of a reference that calls these operators in this order, and its parts."""
    called = [FAMILIES.get(name, name) for name in operators]
    whole = [*dict.fromkeys(called)]
    parts = [each for each in whole if each not in GLUE]
    for name, way in COMPOSED:
        calls = iter(called)
        if set(way) <= set(whole) and all(each in calls for each in way):
            place = min(whole.index(each) for each in way)
            whole = [
                name if at == place else each
                for at, each in enumerate(whole)
                if at == place or each not in way
            ]
            parts = [name, *parts]
    named = [each for each in whole if each not in GLUE] or whole
    return "_".join(named), tuple(dict.fromkeys(parts or named))


def on_meta(problem: Problem) -> tuple[ConstructorArguments, Any, list[Any]]:
    """A reference's constructor arguments, `Model` and inputs on the meta device. Raises what the reference
    raises."""
    import torch

    module = load_module(problem.source, problem.overrides, name="library_reference")
    with torch.device("meta"), torch.no_grad():
        arguments = constructor_arguments(module)
        model = arguments.make(module.Model).to(dtype=getattr(torch, problem.dtype))
        return arguments, model, make_inputs(module, seed=None, device="meta", dtype=problem.dtype)


def _trace(problem: Problem) -> Traits:
    import torch

    operators: list[str] = []

    class Recorder(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._overloadpacket.__name__.rstrip("_")
            if name == "convolution":
                weight, transposed = args[1], args[6]
                name = f"conv{'_transpose' if transposed else ''}{weight.dim() - 2}d"
            if not (func.is_view or name in MOVES or MADE.fullmatch(name)):
                operators.append(name)
            return func(*args, **(kwargs or {}))

    arguments, model, inputs = on_meta(problem)
    with torch.device("meta"), torch.no_grad(), Recorder():
        model(*inputs)
    op, parts = family(operators)
    return Traits(
        op=op,
        parts=parts,
        inputs=tuple(shape_text(value.shape) for value in inputs if isinstance(value, torch.Tensor)),
        bare=not any((arguments, arguments.named, [*model.parameters()], [*model.buffers()])),
    )
