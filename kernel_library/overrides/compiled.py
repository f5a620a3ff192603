"""Kernels under `torch.compile`: each becomes a separate torch operator, which the traced graph calls.

The kernel is chosen while the graph is traced, from the shapes in the trace. The compiled code then always
calls that kernel, or the compiled original. `Tracer` is registered at torch's Functionalize key, which traces
pass but eager calls do not. The key is below autograd, so that the backward is the original's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from kernel_library.overrides.counts import Tallies
from kernel_library.overrides.dispatcher import (
    THREAD,
    Layer,
    WrongResult,
    aliased,
    blame,
    choose,
    into,
    looks,
    misfit,
    unfit,
)
from kernel_library.overrides.kernels import OperatorKernel
from kernel_library.overrides.operators import Operator, is_in_place, out_names
from kernel_library.overrides.wrapped_numbers import as_tensors_in_a_trace, number_places, tensor_places

logger = logging.getLogger(__name__)

NAMESPACE = __name__.partition(".")[0]
"""The namespace of the kernels' operators; an exported package has a different one."""
KEY = "Functionalize"

NUMBER = "a number in the place of a tensor, in compiled code"

_LIBRARY: list[torch.library.Library] = []
_OPERATORS: dict[str, CompiledKernel] = {}


class CompiledKernel:
    """The implementation of a kernel's operator. It outlives the override, because compiled code may call
    it."""

    def __init__(self, operator: Operator, kernel: OperatorKernel) -> None:
        self._operator, self._kernel = operator, kernel
        self._checked = False
        self.tallies = Tallies()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the kernel for a call from compiled code."""
        name = self._operator.name
        THREAD.inside.add(name)  # within the kernel, the operator is the original
        try:
            result = self._kernel.run(*args, **kwargs)
            results = result if isinstance(result, tuple | list) else (result,)
            if not self._checked and (wrong := aliased(results, args)):
                raise WrongResult(wrong)
        except Exception as error:  # the kernel's code, which may raise anything
            reason = blame(self._kernel, error)
            logger.warning("%s falls back to the original: %s", name, reason)
            self.tallies.of(name, reason=reason).add()
            return self._operator.overload(*args, **kwargs)
        finally:
            THREAD.inside.discard(name)
        self._checked = True
        self.tallies.of(name, self._kernel.name).add()
        if isinstance(result, tuple | list):
            return tuple(None if each is None else each.contiguous() for each in result)
        return result.contiguous()


class Tracer:
    """Registered with torch for the calls of one form of an operator that `torch.compile` traces."""

    def __init__(self, operator: Operator, form: OpOverload, layers: Sequence[Layer], key: str = KEY) -> None:
        self._operator, self._form, self._layers = operator, str(form), layers
        self._in_place, self._outs = is_in_place(form), out_names(form)
        self._original = torch.library.get_kernel(form, key)
        self._functional = torch.library.get_kernel(operator.overload, key)

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """Handles a call in a trace. The functional original is always traced, for the shapes of its results;
        if a kernel replaces it, the compiler removes it as dead code."""
        functional = {name: value for name, value in kwargs.items() if name not in self._outs}
        places = tensor_places(self._operator.overload)
        tensors = as_tensors_in_a_trace(args, places)
        result = self._functional.call_boxed(keyset, *tensors, **functional)
        results = result if isinstance(result, tuple | list) else (result,)
        targets = [args[0]] if self._in_place else [kwargs[name] for name in self._outs]
        reason = unfit(results) or (misfit(looks(results), targets) if targets else "")
        if number_places(args, places):  # the schema of the kernel's own operator has a tensor, too
            reason = NUMBER
        device = next((x.device.type for x in tree_leaves(args) if isinstance(x, torch.Tensor)), "")
        layers = [each for each in self._layers if device in each.source.devices]
        choice = choose(layers, self._form, args, functional, reason)
        if choice.kernel is None:
            for tally in choice.tallies:
                tally.add()
            return self._original.call_boxed(keyset, *tensors, **kwargs) if targets else result
        assert choice.layer is not None, "the kernel is a layer's"
        own = kernel_operator(self._operator, choice.kernel, choice.layer.tallies)
        found = own(*args, **functional)
        return into(targets, found) if targets else found


def kernel_operator(operator: Operator, kernel: OperatorKernel, tallies: Tallies) -> OpOverload:
    """The kernel's operator, defined on first use; its calls are counted in `tallies`."""
    overload = operator.overload
    name = f"{overload.overloadpacket.__name__}__{overload._overloadname}__{kernel.id}"
    if name not in _OPERATORS:
        if not _LIBRARY:
            _LIBRARY.append(torch.library.Library(NAMESPACE, "FRAGMENT"))  # type: ignore[no-untyped-call]
        schema = str(overload._schema)
        _LIBRARY[0].define(name + schema[schema.index("(") :], tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _OPERATORS[name] = CompiledKernel(operator, kernel)
        _LIBRARY[0].impl(name, _OPERATORS[name], "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{name}", overload, lib=_LIBRARY[0])
    _OPERATORS[name].tallies = tallies
    found: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return found
