"""The work of a reference: the bytes and operations of one call.

There are two counts. The plain one is for reports. The cautious one is for rejecting kernels: it includes
only work that no honest kernel can skip, so that it errs in the kernel's favour.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.reference.accuracy.choices import OPEN
from evaluators.reference.containers import map_tensors, tensors_in, tensors_of
from evaluators.reference.dispatch_mode import dispatch_mode

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

EXPONENTIALS = ("exp", "exp2", "logsumexp", "_softmax", "_log_softmax", "_safe_softmax")
LONGEST_S = 10.0
FORWARDS = 20
"""Limit of the backward pass: LONGEST_S seconds or FORWARDS times the forward pass. The backward of `cumprod`
visits all pairs of elements of a row that has a zero, which takes hours for KernelBench's `level1/90`."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one call. `bytes`: inputs, parameters and buffers read once, outputs written once;
    `operations`: multiplications and additions of matmuls, convolutions and attention; `softmax`: whether
    exponentials follow these, as in attention; `convolutions`: whether some are convolutions; `choices`:
    whether it chooses among elements that may be equal. The `needed_` figures are the cautious ones; 0 if
    nothing could be proven."""

    bytes: int
    operations: int
    softmax: bool = False
    convolutions: bool = False
    choices: bool = False
    needed_input_bytes: int = 0
    needed_output_bytes: int = 0
    needed_parameter_bytes: int = 0
    needed_operations: int = 0


def count(module: nn.Module, inputs: list[Any], outputs: list[torch.Tensor]) -> Work:
    """The work of `module(*inputs)`, which gives `outputs`.

    Runs copies of the module, forward and backward. Elements of inputs and parameters are needed if their
    gradient for a random cotangent is not zero, operations if their factors are not zero, forward and
    backward. Attention runs as its two matmuls, so that masked pairs are not counted. Inputs and module stay
    unchanged. Never raises: a count that fails is 0, with a warning.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = tensors_in(inputs)
    moved = (*tensors, *outputs, *module.parameters(), *module.buffers())
    work = Work(
        bytes=sum(map(_bytes, moved)),
        operations=0,
        needed_output_bytes=_written_bytes(outputs, inputs),
    )
    try:
        with sdpa_kernel(SDPBackend.MATH):
            start = time.monotonic()
            work, products = _add_operations(work, module, inputs)
            longest_s = max(LONGEST_S, FORWARDS * (time.monotonic() - start))
            work = _add_needed(work, module, inputs, products, longest_s)
    except Exception as error:  # the reference's code may raise anything; judging works without this count
        logger.warning("the work of the reference could not be counted: %s: %s", type(error).__name__, error)
    if any(v.is_cuda for v in (*tensors, *outputs)):
        torch.cuda.empty_cache()  # frees the gradients' memory for candidates
    return work


def _add_operations(work: Work, module: nn.Module, inputs: list[Any]) -> tuple[Work, int]:
    """Runs a copy of the module. Also returns the number of operations whose factors are all nonzero."""
    import torch

    twin = copy.deepcopy(module)
    with torch.no_grad():
        _, counts = _counted(lambda: twin(*_cloned(inputs)))
    found = replace(
        work,
        operations=counts.operations,
        softmax=counts.softmax,
        convolutions=counts.convolutions,
        choices=counts.choices,
    )
    return found, counts.products


def _add_needed(work: Work, module: nn.Module, inputs: list[Any], products: int, longest_s: float) -> Work:
    """Runs a copy of the module forward and backward. Raises TimeoutError after `longest_s`."""
    import torch

    twin = copy.deepcopy(module)
    leaves = map_tensors(lambda v: v.detach().requires_grad_() if _is_floating(v) else v, inputs)
    parameters = [p.requires_grad_() for p in twin.parameters() if p.is_floating_point()]
    with torch.enable_grad():
        given = _cloned(leaves)
        outputs = [v for v in tensors_of(twin(*given)) if v.requires_grad and not _is_view(v, given)]
    wanted = [v for v in tensors_in(leaves) if _is_floating(v)]
    if not outputs or not wanted + parameters:
        return work
    with torch.enable_grad():
        ends = [_end(each) for each in outputs]
    gradients, backward = _counted(
        lambda: torch.autograd.grad(ends, wanted + parameters, allow_unused=True), longest_s
    )
    needed = [0 if g is None or g.is_sparse else _nonzeros(g) * g.element_size() for g in gradients]
    return replace(
        work,
        needed_input_bytes=sum(needed[: len(wanted)]),
        needed_parameter_bytes=sum(needed[len(wanted) :]),
        # Backward has at most two products for each product that the outputs depend on, and no others.
        needed_operations=min(products, backward.products // 2),
    )


def _end(output: torch.Tensor) -> torch.Tensor:
    """A scalar whose gradient for the output is random. Passing a random gradient to `torch.autograd.grad`
    would import sympy, which takes half a second of CPU time."""
    import torch

    class End(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
            ctx.drawn = torch.randn_like(output)
            return torch.zeros((), device=output.device)

        @staticmethod
        def backward(ctx: Any, one: torch.Tensor) -> torch.Tensor:
            drawn: torch.Tensor = ctx.drawn
            return drawn

    found: torch.Tensor = End.apply(output)  # type: ignore[no-untyped-call]
    return found


@dataclass
class _Counts:
    """The counts of one run: operations without masked pairs of attention, operations whose factors are all
    nonzero, whether exponentials follow any, whether some are convolutions, and whether there are choices."""

    operations: int = 0
    products: int = 0
    softmax: bool = False
    convolutions: bool = False
    choices: bool = False


def _counted(run: Callable[[], Any], longest_s: float = math.inf) -> tuple[Any, _Counts]:
    """The result of `run`, and its counts. Raises TimeoutError after `longest_s`."""
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import flop_registry

    attended, counts, deadline = 1.0, _Counts(), time.monotonic() + longest_s

    class Masks(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal attended
            if func is scaled_dot_product_attention:
                attended = _attended_share(*args, **(kwargs or {}))
            try:
                return func(*args, **(kwargs or {}))
            finally:
                attended = 1.0

    class Counter(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if time.monotonic() > deadline:
                raise TimeoutError(f"it takes more than {longest_s:.0f} s")
            out = func(*args, **(kwargs or {}))
            name = func._overloadpacket.__name__
            counts.choices |= name in OPEN
            counts.softmax |= name in EXPONENTIALS and counts.operations > 0
            if (formula := flop_registry.get(func._overloadpacket)) is not None:
                operations = formula(*args, **(kwargs or {}), out_val=out)
                counts.operations += round(operations * attended)
                counts.products += _products(name, operations, args)
                counts.convolutions |= "conv" in name
            return out

    with Masks(), Counter():
        result = run()
    return result, counts


def _attended_share(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> float:
    """The share of query-key pairs that `scaled_dot_product_attention` does not mask."""
    if attn_mask is not None:
        seen = attn_mask if not _is_floating(attn_mask) else attn_mask.isfinite()
        return _nonzeros(seen) / max(seen.numel(), 1)
    if not is_causal:
        return 1.0
    queries, keys = query.shape[-2], key.shape[-2]
    return sum(min(row + 1, keys) for row in range(queries)) / max(queries * keys, 1)


def _products(name: str, operations: int, args: tuple[Any, ...]) -> int:
    """The operations of one call whose factors are nonzero: exact for a matmul, so that diagonal and
    triangular factors are counted correctly; estimated from the densities for anything else."""
    import torch

    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = [v for v in args if isinstance(v, torch.Tensor)][-2:]
        return int(2 * ((left != 0).sum(-2) * (right != 0).sum(-1)).sum())
    factors = [v for v in args if _is_floating(v) and v.dim() >= 2 and v.element_size() > 1]
    return int(operations * math.prod(_nonzeros(v) / max(v.numel(), 1) for v in factors))


def _written_bytes(outputs: list[torch.Tensor], inputs: list[Any]) -> int:
    """The bytes of all outputs, except repeated elements (`expand`) and outputs that are views of inputs."""
    new = [each for each in outputs if not _is_view(each, inputs)]
    return sum({_place(each): min(each.untyped_storage().nbytes(), _bytes(each)) for each in new}.values())


def _is_view(output: torch.Tensor, inputs: list[Any]) -> bool:
    """Whether the output lies in the memory of an input."""
    return any(_place(v) == _place(output) for v in tensors_in(inputs))


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _nonzeros(tensor: torch.Tensor) -> int:
    import torch

    if tensor.is_floating_point() and tensor.element_size() == 1:  # 8-bit floats have no arithmetic
        tensor = tensor.float()
    return int(torch.count_nonzero(tensor).item())


def _is_floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(values: list[Any]) -> list[Any]:
    """The values with copied tensors, because a reference may change them in place."""
    return list(map_tensors(lambda v: v.clone(), values))
