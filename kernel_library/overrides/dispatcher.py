"""Dispatches calls of one form of an operator on one device to a kernel or to the original.

The choice is cached for calls with the same shapes, strides, types, devices and other arguments. Of a number
where the schema has a tensor, only the type counts. A kernel's first results for such a choice are compared
with the original's in shape and type. A kernel that raises, or returns other shapes or types, is not used
again for such calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from kernel_library.overrides.counts import Tallies, Tally
from kernel_library.overrides.kernels import KernelSource, OperatorKernel
from kernel_library.overrides.operators import Operator, is_in_place, out_names
from kernel_library.overrides.wrapped_numbers import as_tensors, prototypes, tensor_places

logger = logging.getLogger(__name__)

MOST_CHOICES = 4096
"""Choices cached per form of an operator; beyond it the cache is cleared. Number arguments are part of the
key, and a program may pass a different one in each call."""
OWN = "called from its own kernel"


Expectation = tuple[tuple[tuple[torch.Size, torch.dtype] | None, ...], str]


class WrongResult(Exception):
    """A kernel's results cannot replace the original's; the message says how they differ."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The kernels of one override for an operator. Nested overrides have several layers, the inner first."""

    source: KernelSource
    tallies: Tallies


@dataclass(frozen=True, kw_only=True)
class DispatchChoice:
    """The kernel for calls with the same signature, or None for the original. Each such call is counted in
    `tallies`. `layer` is the kernel's layer, `expected` has the shapes and types of the results, `excluded`
    the reasons why kernels failed, by id."""

    kernel: OperatorKernel | None
    tallies: tuple[Tally, ...]
    layer: Layer | None = None
    expected: tuple[tuple[torch.Size, torch.dtype] | None, ...] = ()
    excluded: Mapping[str, str]


class _Thread(threading.local):
    """The operators whose kernels are running, for each thread."""

    def __init__(self) -> None:
        self.inside: set[str] = set()


THREAD = _Thread()


class Dispatcher:
    """Registered with torch for one `form` of an operator at a `key`: a device, or a device's autograd if
    the kernels are differentiable."""

    def __init__(self, operator: Operator, form: OpOverload, key: str, layers: Sequence[Layer]) -> None:
        self._operator, self._form, self._name = operator, str(form), operator.name
        self._differentiable = key.startswith("Autograd")
        self._layers = layers
        self._in_place, self._outs = is_in_place(form), out_names(form)
        self._tensors = tensor_places(form)
        self._kernel = torch.library.get_kernel(form, key)
        prototypes()  # before the operator is replaced
        self._choices: dict[Any, DispatchChoice] = {}
        self._expected: dict[Any, Expectation] = {}
        self._checked: set[Any] = set()

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """Handles a call from torch."""
        inside = THREAD.inside
        if self._name in inside:
            self._layers[0].tallies.of(self._form, reason=OWN).add()
            return self._original(keyset, args, kwargs)
        key = self._key(args, kwargs)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choose(key, args, kwargs, {})
        kernel = choice.kernel
        if kernel is None:
            for tally in choice.tallies:
                tally.add()
            return self._original(keyset, args, kwargs)
        outs = [kwargs.pop(name) for name in self._outs]
        inside.add(self._name)
        try:
            result = kernel.run(*args, **kwargs)
            if key not in self._checked:
                self._check(key, choice, result, args)
        except torch.OutOfMemoryError as error:  # the next call may have enough memory
            self._layers[0].tallies.of(self._form, reason=blame(kernel, error)).add()
            kwargs.update(zip(self._outs, outs, strict=True))
            return self._original(keyset, args, kwargs)
        except Exception as error:  # the kernel's code, which may raise anything
            kwargs.update(zip(self._outs, outs, strict=True))
            self._exclude(key, choice, kernel, error, args, kwargs)
        else:
            for tally in choice.tallies:
                tally.add()
            if self._in_place:
                return args[0].copy_(result)
            return into(outs, result) if outs else result
        finally:
            inside.discard(self._name)
        return self(keyset, *args, **kwargs)

    def choice(self, args: Any, kwargs: Any) -> DispatchChoice:
        """The choice for such a call of the functional form."""
        key = self._key(args, kwargs)
        return self._choices.get(key) or self._choose(key, args, kwargs, {})

    def _original(self, keyset: Any, args: Any, kwargs: Any) -> Any:
        return self._kernel.call_boxed(keyset, *as_tensors(args, self._tensors), **kwargs)

    def _key(self, args: Any, kwargs: Any) -> Any:
        key = signature(args, self._tensors)
        return (key, *kwargs, signature(kwargs.values())) if kwargs else key

    def _choose(self, key: Any, args: Any, kwargs: Any, excluded: Mapping[str, str]) -> DispatchChoice:
        if len(self._choices) >= MOST_CHOICES:
            self._choices.clear()
            self._checked.clear()
        functional = {name: value for name, value in kwargs.items() if name not in self._outs}
        expected, reason = self._expectation(args, functional)
        if not reason and (self._in_place or self._outs):
            targets = [args[0]] if self._in_place else [kwargs[name] for name in self._outs]
            reason = misfit(expected, targets)
        found = choose(self._layers, self._form, args, functional, reason, excluded)
        self._choices[key] = found = replace(found, expected=expected)
        return found

    def _expectation(self, args: Any, functional: Mapping[str, Any]) -> Expectation:
        """What the original's results look like. It takes milliseconds to find out, but does not depend on
        the values of floats next to tensors, which may differ in each call: an optimizer's step size."""
        positional, named = list(args), list(functional.values())
        if any(isinstance(each, torch.Tensor) for each in args):
            positional, named = (
                [float if each.__class__ is float else each for each in values]
                for values in (positional, named)
            )
        key = signature(positional, self._tensors), *functional, signature(named)
        if (found := self._expected.get(key)) is None:
            if len(self._expected) >= MOST_CHOICES:
                self._expected.clear()
            found = self._expected[key] = expectation(self._operator, args, functional)
        return found

    def _check(self, key: Any, choice: DispatchChoice, result: Any, args: Any) -> None:
        """Raises WrongResult for results that cannot replace the original's."""
        results = result if isinstance(result, tuple | list) else (result,)
        wrong = unlike(results, choice.expected) or aliased(results, args)
        if self._differentiable and not (wrong or any(each.requires_grad for each in results)):
            wrong = "a result without a gradient"
        if wrong:
            raise WrongResult(wrong)
        self._checked.add(key)

    def _exclude(
        self,
        key: Any,
        choice: DispatchChoice,
        kernel: OperatorKernel,
        error: Exception,
        args: Any,
        kwargs: Any,
    ) -> None:
        """Excludes the kernel from such calls."""
        reason = blame(kernel, error)
        logger.warning("%s: %s; it is not used for such calls any more", self._form, reason)
        self._checked.discard(key)
        self._choose(key, args, kwargs, {**choice.excluded, kernel.id: reason})


def choose(
    layers: Iterable[Layer],
    form: str,
    args: Any,
    kwargs: Any,
    reason: str = "",
    excluded: Mapping[str, str] | None = None,
) -> DispatchChoice:
    """The first kernel that a layer picks; no kernel if a `reason` excludes all."""
    excluded = excluded or {}
    tallies = []
    for layer in layers:
        picked: OperatorKernel | str = reason or layer.source.pick(*args, **kwargs)
        if not isinstance(picked, str):
            picked = excluded.get(picked.id, picked)
        if not isinstance(picked, str):
            tallies.append(layer.tallies.of(form, picked.name))
            return DispatchChoice(kernel=picked, tallies=tuple(tallies), layer=layer, excluded=excluded)
        tallies.append(layer.tallies.of(form, reason=picked))
    return DispatchChoice(kernel=None, tallies=tuple(tallies), excluded=excluded)


def signature(values: Iterable[Any], tensors: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Shapes, strides, types and devices of tensors, and other values, as a hashable key. At the places
    `tensors`, other values count by their type."""
    return tuple(
        [
            (each.shape, each.stride(), each.dtype, each.device)
            if isinstance(each, torch.Tensor)
            else each.__class__
            if place in tensors
            else signature(each)
            if isinstance(each, list | tuple)
            else identity(each)
            for place, each in enumerate(values)
        ]
    )


def identity(value: Any) -> tuple[Any, ...]:
    """A key that is equal for equal values of one type; but NaN equals NaN, 0.0 is not -0.0, and of random
    generators only the device counts."""
    kind = value.__class__
    if kind is complex or (kind is float and (not value or value != value)):
        return kind, repr(value)
    return kind, value.device if isinstance(value, torch.Generator) else value


def expectation(operator: Operator, args: Any, kwargs: Any) -> Expectation:
    """Shape and type of each result of the original (None for a missing one), and the reason why a kernel
    cannot replace it ("" if it can). Runs the original on the meta device."""

    def bare(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    form = operator.overload
    try:
        with _disable_current_modes(), torch.no_grad():
            args, kwargs = tree_map_only(torch.Tensor, bare, (args, kwargs))
            if any(each.name == "device" and each.kwarg_only for each in form._schema.arguments):
                kwargs = {**kwargs, "device": "meta"}  # where it allocates its result
                kwargs.pop("pin_memory", None)
            found = form(*as_tensors(args, tensor_places(form)), **kwargs)
    except Exception as error:  # the original itself is to raise its errors
        return (), f"its result cannot be predicted: {failure(error)}"
    results = found if isinstance(found, tuple | list) else (found,)
    reason = unfit(results)
    return (() if reason else looks(results)), reason


def looks(results: Iterable[torch.Tensor | None]) -> tuple[tuple[torch.Size, torch.dtype] | None, ...]:
    """Shape and type of each result."""
    return tuple(None if each is None else (each.shape, each.dtype) for each in results)


def misfit(expected: Sequence[Any], targets: Sequence[torch.Tensor]) -> str:
    """Why results with these shapes and types cannot be written into these tensors; "" if they can."""
    return "" if expected == looks(targets) else "it writes into a tensor of another shape or type"


def unfit(results: Iterable[Any]) -> str:
    """Why a kernel cannot return such results; "" if it can. Kernels do not know which layout is required."""
    if not all(isinstance(each, torch.Tensor | None) for each in results):
        return "its results are not tensors"
    fit = all(each is None or each.is_contiguous() for each in results)
    return "" if fit else "its result is not contiguous in memory"


def unlike(results: Sequence[Any], expected: Sequence[tuple[torch.Size, torch.dtype] | None]) -> str:
    """How the results differ from the expected shapes and types; "" if they do not."""
    if len(results) != len(expected):
        return f"{len(results)} results where the original has {len(expected)}"
    for each, wanted in zip(results, expected, strict=True):
        if wanted is None or each is None:
            if each is not wanted:
                return "None where the original has a result, or the other way round"
        elif not isinstance(each, torch.Tensor):
            return f"a {type(each).__name__} for a tensor"
        elif (each.shape, each.dtype) != wanted:
            shape, dtype = wanted
            return f"{tuple(each.shape)} of {each.dtype} where the original has {tuple(shape)} of {dtype}"
        elif not each.is_contiguous():
            return "a result that is not contiguous in memory"
    return ""


def aliased(results: Iterable[Any], args: Any) -> str:
    """A message if a result shares memory with an argument; "" otherwise."""
    given = {
        each.untyped_storage().data_ptr()
        for each in tree_leaves(args)
        if isinstance(each, torch.Tensor) and each.numel()
    }
    shared = any(each is not None and each.untyped_storage().data_ptr() in given for each in results)
    return "a result in the memory of an argument" if shared else ""


def blame(kernel: OperatorKernel, error: Exception) -> str:
    """A one-line description of the kernel's failure."""
    if isinstance(error, WrongResult):
        return f"{kernel.name} returned {error}"
    return f"{kernel.name} raised {failure(error)}"


def failure(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def into(outs: Sequence[torch.Tensor], result: Any) -> Any:
    """Copies the results into the call's `out=` tensors; returns them as the `out=` form does."""
    results = result if isinstance(result, tuple | list) else (result,)
    for out, each in zip(outs, results, strict=True):
        out.copy_(each)
    return outs[0] if len(outs) == 1 else tuple(outs)
