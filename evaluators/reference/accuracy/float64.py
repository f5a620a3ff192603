"""A reference in float64: what its answers would be without rounding.

Attention is computed by its formula. PyTorch's fused kernels skip masked keys, whereas the formula multiplies
their values by zero, so with infinities the result depends on the kernel; the formula shows where. The same
goes for RMS norms, because PyTorch's kernel for a GPU makes all of an odd row NaN if it has an infinity, and
for the attention operators of single backends, which traced models call: cuDNN's, given float64 on an H100,
silently returned wrong results. Convolutions are PyTorch's own: with cuDNN's transposed convolutions in
float64 an audit took up to 25 times as long (KernelBench's `level1/65` on an H200). Recurrent layers use
cuDNN, which takes a third of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

from evaluators.reference.containers import map_tensors, tensors_of
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.inputs.strided_layouts import clone

if TYPE_CHECKING:
    import torch
    from torch import nn

FAILURES = (RuntimeError, TypeError, ValueError)
ATTENTION = "_scaled_dot_product_"
"""The prefix of the operators of single backends."""


class DoubleReference:
    """A copy of a module in float64: its parameters, buffers, and tensors in plain attributes."""

    def __init__(self, eager: nn.Module, *, source: str = "") -> None:
        """`source` is the module's code; it shows whether the module calls a backend's operators."""
        import torch

        self._calls_a_backend = ATTENTION in source
        self.module = copy.deepcopy(eager).double()
        self._recurs = any(isinstance(each, torch.nn.RNNBase) for each in self.module.modules())
        for each in self.module.modules():
            for name, value in vars(each).items():
                if isinstance(value, torch.Tensor):
                    setattr(each, name, _wide_copy(value))
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_complex():
                tensor.data = tensor.data.to(torch.complex128)

    def run(self, inputs: list[Any], *, changes_inputs: bool) -> tuple[list[torch.Tensor], list[Any]]:
        """The outputs, and the inputs in float64 as they are after the call. `changes_inputs`: whether the
        module writes to them. Raises one of FAILURES if it does not run in float64."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        plain = sdpa_kernel(SDPBackend.MATH)
        formula = _attention_by_formula() if self._calls_a_backend else nullcontext()
        norms = mock.patch.object(torch, "rms_norm", _rms_norm)
        with torch.no_grad(), _default_dtype(torch.float64), plain, _cudnn(self._recurs), formula, norms:
            wide = map_tensors(_wide_copy if changes_inputs else _wide, inputs)
            return tensors_of(self.module(*wide)), wide

    def copy_weights(self, eager: nn.Module) -> None:
        """Copies the current parameters and buffers of the original module."""
        import torch

        with torch.no_grad():
            for tensors in (torch.nn.Module.parameters, torch.nn.Module.buffers):
                for wide, narrow in zip(tensors(self.module), tensors(eager), strict=True):
                    wide.copy_(narrow)


def _wide_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, in float64 if the tensor is floating-point."""
    import torch

    if tensor.is_complex():
        return clone(tensor, dtype=torch.complex128)
    return clone(tensor, dtype=torch.float64) if tensor.is_floating_point() else clone(tensor)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64 if it is floating-point, copied only if needed."""
    import torch

    known = tensor.dtype in (torch.float64, torch.complex128)
    return tensor if known or not (tensor.is_floating_point() or tensor.is_complex()) else _wide_copy(tensor)


def _rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """`torch.rms_norm` by its formula."""
    import torch

    dims = tuple(range(-len(normalized_shape), 0))
    added = torch.finfo(input.dtype).eps if eps is None else eps
    found: torch.Tensor = input * torch.rsqrt(input.square().mean(dims, keepdim=True) + added)
    return found if weight is None else found * weight


def _attention_by_formula() -> AbstractContextManager[None]:
    """A context in which the backends' attention operators use PyTorch's formula, forward and backward. Their
    extra results, which only their own backward needs, are empty."""
    from torch.nn.functional import scaled_dot_product_attention

    class ByFormula(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            schema, kwargs = function._schema, kwargs or {}
            name = schema.name.removeprefix("aten::")
            if not name.startswith(ATTENTION) or "attention_math" in name:
                return function(*args, **kwargs)
            names = [each.name for each in schema.arguments]
            given = dict(zip(names, args, strict=False)) | kwargs
            mask, causal = given.get("attn_bias", given.get("attn_mask")), given.get("is_causal", False)
            query, key, value = (given[each] for each in ("query", "key", "value"))
            if name.endswith("backward"):
                scale = given.get("scale")
                scale = query.shape[-1] ** -0.5 if scale is None else scale
                found = _attention_gradients(args[0], query, key, value, mask, causal=causal, scale=scale)
                return (*found, *[None] * len(schema.returns))[: len(schema.returns)]
            output = scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=mask,
                is_causal=causal,
                scale=given.get("scale"),
                enable_gqa=query.shape[-3] != key.shape[-3],
            )
            more = schema.returns[1:]
            return output, *(output.new_empty(0) if str(each.type) == "Tensor" else 0 for each in more)

    mode: AbstractContextManager[None] = ByFormula()
    return mode


def _attention_gradients(
    upstream: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> Iterator[torch.Tensor]:
    """The gradients of query, key and value, and of a mask of numbers. They are written out, because a call
    in a backward pass cannot use autograd."""
    import torch

    groups = query.shape[-3] // key.shape[-3]
    keys, values = (each.repeat_interleave(groups, -3) for each in (key, value))
    scores = query @ keys.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    shares = scores.softmax(-1).nan_to_num(0.0)
    given = shares * (upstream @ values.mT)
    inner = given - shares * given.sum(-1, keepdim=True)
    yield inner @ keys * scale
    for each in (inner.mT @ query * scale, shares.mT @ upstream):
        yield each.reshape(*key.shape[:-2], groups, *key.shape[-2:]).sum(-3)
    if mask is not None and mask.dtype is not torch.bool:
        yield inner.sum_to_size(mask.shape)


@contextmanager
def _cudnn(enabled: bool) -> Iterator[None]:
    """A context with cuDNN enabled (if it was) or disabled. `torch.backends.cudnn.enabled` cannot be set once
    PyTorch's own tests are imported, and `cudnn.flags` also sets eager's precision."""
    import torch

    before = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(before and enabled)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(before)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A context with this default dtype, for `torch.zeros` and the like."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
