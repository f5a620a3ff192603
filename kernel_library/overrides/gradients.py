"""Handles calls that need a gradient, if the original's backward formula does not apply.

Usually it does: kernels run below autograd, which records the original's formula. There are three exceptions:
a kernel with its own backward, a library kernel whose backward pass was judged, and a composite operator,
which torch implements with other operators and whose backward is theirs. Only for these is something
registered at torch's autograd key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves

from kernel_library.overrides.compiled import Tracer
from kernel_library.overrides.dispatcher import THREAD, Dispatcher, Layer, choose
from kernel_library.overrides.kernels import OperatorKernel
from kernel_library.overrides.operators import Operator
from kernel_library.overrides.wrapped_numbers import as_tensors, as_tensors_in_a_trace, tensor_places

_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL
"""The dispatch mode in which `torch.compile` traces."""
COMPOSITE = "a composite operator that needs a gradient"


def with_dense_gradients(results: Any) -> Any:
    """The results of a differentiable kernel, whose backward pass will get gradients that are contiguous in
    memory, as in the evaluator. Autograd passes on others: that of a sum is one number, expanded."""
    for each in tree_leaves(results):
        if isinstance(each, torch.Tensor) and each.grad_fn is not None:
            each.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
    return results


class AutogradDispatcher:
    """Registered with torch for an operator at a device's autograd key; `below` is registered for the device
    itself."""

    def __init__(self, operator: Operator, device: str, layers: Sequence[Layer], below: Dispatcher) -> None:
        self._operator, self._layers, self._below = operator, layers, below
        self.key = f"Autograd{device.upper()}"
        self._tensors = tensor_places(operator.overload)
        self._kernel = torch.library.get_kernel(operator.overload, self.key)
        self._traced = Tracer(operator, operator.overload, layers, self.key)
        trained = [
            replace(each, source=source)
            for each in layers
            if (source := each.source.trained) is not None and device in source.devices
        ]
        self._trained = Dispatcher(operator, operator.overload, self.key, trained) if trained else None

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """Handles a call from torch. In a trace, its tensors are fake."""
        operator = self._operator
        tracing = torch._C._get_dispatch_mode(_FUNCTIONAL) is not None
        foreign = keyset.has(torch.DispatchKey.Python) and not tracing  # another mode, or a tensor subclass
        if foreign or operator.name in THREAD.inside:
            return self._original(keyset, tracing, args, kwargs)
        if torch.is_grad_enabled() and any(
            each.requires_grad for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)
        ):
            kernel = self._chosen(tracing, args, kwargs)
            if kernel is not None and kernel.backward is not None:
                return _OwnBackward.apply(operator, kernel, kwargs, *args)  # type: ignore[no-untyped-call]
            if (
                self._trained is not None
                and not tracing
                and (operator.composite or self._trained.choice(args, kwargs).kernel is not None)
            ):
                return self._trained(keyset, *args, **kwargs)
            if operator.composite:
                for layer in self._layers:
                    layer.tallies.of(operator.name, reason=COMPOSITE).add()
            return self._original(keyset, tracing, args, kwargs)
        if not operator.composite:
            return self._original(keyset, tracing, args, kwargs)
        return (self._traced if tracing else self._below)(keyset, *args, **kwargs)

    def _original(self, keyset: Any, tracing: bool, args: Any, kwargs: Any) -> Any:
        restored = as_tensors_in_a_trace if tracing else as_tensors
        return self._kernel.call_boxed(keyset, *restored(args, self._tensors), **kwargs)

    def _chosen(self, tracing: bool, args: Any, kwargs: Any) -> OperatorKernel | None:
        if tracing:
            return choose(self._layers, self._operator.name, args, kwargs).kernel
        return self._below.choice(args, kwargs).kernel


class _OwnBackward(torch.autograd.Function):
    """Forward through the operator, which runs the kernel; backward through the kernel's backward."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, kernel: OperatorKernel, kwargs: Any, *args: Any) -> Any:
        """The operator's results."""
        result = operator.overload(*as_tensors_in_a_trace(args, tensor_places(operator.overload)), **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        ctx.save_for_backward(*tensors, *results)
        ctx.kernel, ctx.kwargs, ctx.inputs = kernel, kwargs, len(tensors)
        ctx.others = [None if isinstance(each, torch.Tensor) else (each,) for each in args]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the arguments."""
        saved = ctx.saved_tensors
        tensors, results = iter(saved[: ctx.inputs]), saved[ctx.inputs :]
        args = [next(tensors) if other is None else other[0] for other in ctx.others]
        return (None, None, None, *ctx.kernel.backward(gradients, results, *args, **ctx.kwargs))
