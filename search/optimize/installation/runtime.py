"""Runs a model with kernels in place of parts of its forward.

This file is copied unchanged into `optimized/`; it needs only torch. `forward.py`, next to it, has the calls
of the model's forward for inputs of certain shapes and dtypes, with kernels in between; there is one such
file per input shape. For everything else (other calls, training, gradients, autocast) the original forward
runs.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .graphs import ForwardGraph, NoGraphError
from .kernel import InstalledKernel, load_kernel, load_module
from .templates import (
    Signature,
    Template,
    differences,
    finder,
    hooks_of,
    localized,
    maker,
    tensor_names,
)

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
CONSTANTS = "constants.pt"
MOST_DIFFERENCES = 3
"""Differences to a recorded call that a message names."""


class OtherValueError(Exception):
    """The model read a number from a tensor that differs from the one in the recorded run."""


def check(value: Any, expected: Any) -> None:
    """Raises OtherValueError unless they are equal."""
    if value != expected:
        raise OtherValueError(f"{value} where {expected} is expected")


@dataclass(eq=False)
class ForwardShape:
    """The code for arguments of one shape: `forward`, which also reads `constants`. `output` makes the
    results from its tensors."""

    name: str
    forward: Callable[..., Sequence[Any]]
    constants: Mapping[str, torch.Tensor]
    output: Callable[[Sequence[Any]], Any]
    graphs: weakref.WeakKeyDictionary[nn.Module, ForwardGraph | NoGraphError] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """Each model's CUDA graph, or why it cannot be recorded."""


@dataclass(eq=False)
class KnownCall:
    """A way of calling the model that runs the code of a `shape`. `inputs`: shape, dtype, strides and device
    of each of its tensors. `passed`: the numbers of the tensors that the code takes. `filled`: the value that
    all elements of a tensor must have, by the tensor's number: a mask of ones, which the code never reads."""

    template: Template
    inputs: Sequence[tuple[torch.Size, torch.dtype, tuple[int, ...], torch.device]]
    shape: ForwardShape
    passed: Sequence[int]
    filled: Mapping[int, float] = field(default_factory=dict)

    def why_not(self, template: Template, tensors: Sequence[torch.Tensor]) -> str:
        """Why the code is not for these arguments; "" if it is."""
        if template != self.template:
            found = list(differences(self.template, template))
            more = f"; {len(found) - MOST_DIFFERENCES} more" if len(found) > MOST_DIFFERENCES else ""
            return f"no recorded call is like this one: {'; '.join(found[:MOST_DIFFERENCES])}{more}"
        for number, (tensor, expected) in enumerate(zip(tensors, self.inputs, strict=True)):
            found_kind = tensor.shape, tensor.dtype, tensor.stride(), tensor.device
            if found_kind != expected:
                name = tensor_names(template)[number]
                return f"{name} is a tensor of {_words(*found_kind)}, not {_words(*expected)}"
        for number, value in self.filled.items():
            if torch.compiler.is_compiling() or _is_capturing(tensors[number]):
                name = tensor_names(template)[number]
                return f"{name} cannot be read in compiled code or while a CUDA graph is recorded"
            if not bool((tensors[number] == value).all()):
                return f"{tensor_names(template)[number]} has other elements than {value:g}"
        return ""

    def differs_by(self, template: Template, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """How far this call is from another one: differences of the templates, then of the sizes."""
        sizes = zip(tensors, self.inputs, strict=False)
        others = sum(tensor.shape != shape for tensor, (shape, *_) in sizes)
        return sum(1 for _ in differences(self.template, template)), others


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@dataclass(eq=False)
class ForwardPlan:
    """Replaces a model's forward: the code at each shape, the recorded `calls` by the sizes of their tensors,
    the forward's `signature`, and the kernels by name. `weight` gets one of the model's weights, whose dtype
    and device must be `kind`; `weights`: names of all that the code reads. `as_graph`: run as a CUDA graph.
    `own_in_compiled`: compiled code runs the original forward. `slower`: kernels whose operators run instead,
    as a CUDA graph (`graph`) and otherwise (`eager`). `fallbacks` counts calls of the original forward by
    reason."""

    shapes: Sequence[ForwardShape]
    calls: Mapping[tuple[torch.Size, ...], Sequence[KnownCall]]
    signature: Signature
    kernels: Mapping[str, InstalledKernel]
    weight: Callable[[nn.Module], torch.Tensor] | None
    kind: tuple[torch.dtype, torch.device]
    weights: Sequence[str] = ()
    as_graph: bool = False
    own_in_compiled: bool = False
    slower: Mapping[str, Collection[str]] = field(default_factory=dict)
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)

    def call_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[KnownCall, Template, list[torch.Tensor]]:
        """The recorded call like this one, or the one closest to it; this one's template and tensors."""
        template, tensors = self.signature.call(args, kwargs)
        for each in self.calls.get(tuple([each.shape for each in tensors]), ()):
            if each.template == template:
                return each, template, tensors
        every = [each for own in self.calls.values() for each in own]
        return min(every, key=lambda each: each.differs_by(template, tensors)), template, tensors

    def why_not(self, model: nn.Module) -> str:
        """Why the original forward must run, whatever the arguments; "" if it need not."""
        if model.training:
            return "the model is in training mode"
        if torch.is_grad_enabled():
            return "gradients are enabled: call it under torch.no_grad()"
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        if self.weight is not None and self._kind_of(model) != self.kind:
            return "the weights have another dtype or are on another device"
        return ""

    def run(self, model: nn.Module, shape: ForwardShape, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Runs the code of the shape. Raises OtherValueError, and what a kernel raises."""

        def forward(*own: torch.Tensor, way: str = "graph") -> Sequence[Any]:
            return shape.forward(model, self._kernels(way), shape.constants, check, *own)

        if torch.compiler.is_compiling():
            return forward(*tensors, way="compiled")
        if self.kind[1].type == "cuda" and torch.cuda.is_current_stream_capturing():
            return forward(*tensors)
        if not self.as_graph:
            return forward(*tensors, way="eager")
        graph = shape.graphs.get(model)
        if graph is None or (isinstance(graph, ForwardGraph) and graph.is_stale()):
            try:
                graph = ForwardGraph(forward, tensors, [_owner(model, name) for name in self.weights])
            except NoGraphError as error:
                logger.warning("the forward runs without a CUDA graph: %s", error)
                graph = error
            shape.graphs[model] = graph
        return graph(*tensors) if isinstance(graph, ForwardGraph) else forward(*tensors, way="eager")

    def _kernels(self, way: str) -> Mapping[str, Callable[..., Any]]:
        """What to run for each kernel in this way: `eager`, `graph` or `compiled`."""
        slower = self.slower.get(way)
        if not slower:
            return self.kernels
        return {**self.kernels, **{name: self.kernels[name].reference for name in slower}}

    def _kind_of(self, model: nn.Module) -> tuple[torch.dtype, torch.device]:
        assert self.weight is not None
        weight = self.weight(model)
        return weight.dtype, weight.device

    def compiles(self, names: Iterable[str]) -> None:
        """Sets the kernels that run in compiled code."""
        chosen = set(names)
        for name, kernel in self.kernels.items():
            kernel.in_compiled = name in chosen

    def fell_back(self, why: str) -> None:
        """Counts a call of the original forward; logs each reason once."""
        if not self.fallbacks[why]:
            logger.warning("the original forward runs: %s", why)
        self.fallbacks[why] += 1


def _words(shape: Any, dtype: Any, strides: Any, device: Any) -> str:
    return f"{'x'.join(map(str, shape)) or 'one element'} {str(dtype).removeprefix('torch.')} on {device}"


class Optimized(nn.Module):
    """Base class that is put before the model's class and falls back to its forward."""

    plan: ForwardPlan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Like the original forward."""
        plan = type(self).plan
        if plan.own_in_compiled and torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)
        call, template, tensors = plan.call_of(args, kwargs)
        why = plan.why_not(self) or call.why_not(template, tensors)
        if not why:
            given = [tensors[number] for number in call.passed]
            try:
                return call.shape.output(plan.run(self, call.shape, given))
            except OtherValueError as error:
                why = str(error)
        plan.fell_back(why)
        return super().forward(*args, **kwargs)


def load(
    folder: Path, model: nn.Module, without: Iterable[str] = (), as_graph: bool | None = None
) -> nn.Module:
    """Makes a model run the kernels of the folder; no weight is copied.

    Args:
        folder: the folder `optimized/`.
        model: the model, which is changed in place.
        without: names of kernels to switch off.
        as_graph: whether to run the forward as a CUDA graph; None: if that was measured to be faster.

    Returns the model. Raises ValueError for a model with other modules or weights or with hooks, and what a
    kernel's source raises.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if isinstance(model, Optimized):
        model = unload(model)
    _check_modules(model, manifest["modules"], manifest["hooks"])
    _check_weights(model, manifest["weights"])
    device = torch.empty(0, device=manifest["device"]).device
    kernels = {
        each["name"]: load_kernel(folder, each["name"], int(each["results"]), device)
        for each in manifest["kernels"]
    }
    for name in without:
        kernels[name].on = False
    first = next(iter(manifest["weights"].items()), None)
    find = finder(model)
    parameters = manifest["parameters"]
    signature = Signature([[*each[:2], *[localized(own, find) for own in each[2:]]] for each in parameters])
    _check_parameters(Signature.of(model.forward), signature)
    shapes = _shapes(folder, manifest["shapes"], device, find)
    plan = ForwardPlan(
        shapes=shapes,
        calls=_calls(manifest["calls"], shapes, device, find),
        signature=signature,
        kernels=kernels,
        weight=operator.attrgetter(first[0]) if first else None,
        kind=(getattr(torch, first[1][1]), device) if first else (torch.float32, device),
        weights=list(manifest["weights"]),
        as_graph=device.type == "cuda" and bool(manifest["as_graph"] if as_graph is None else as_graph),
        own_in_compiled=bool(manifest["own_in_compiled"]),
        slower=manifest["slower"],
    )
    plan.compiles(kernels if manifest["in_compiled"] is None else manifest["in_compiled"])
    own = type(model)
    model.__class__ = type(own.__name__, (Optimized, own), {"plan": plan, "__module__": own.__module__})
    return model


def _owner(model: nn.Module, weight: str) -> tuple[Mapping[str, Any], str]:
    """The mapping that contains a parameter or buffer, and its name there."""
    path, _, name = weight.rpartition(".")
    module = model.get_submodule(path)
    return (module._parameters if name in module._parameters else module._buffers), name


def _shapes(
    folder: Path, listed: Sequence[Mapping[str, Any]], device: torch.device, find: Callable[[str], Any]
) -> list[ForwardShape]:
    """The code of each shape. Raises ValueError for a class of the results that is not found."""
    file = folder / CONSTANTS
    constants = torch.load(file, map_location=device) if file.exists() else [{} for _ in listed]
    found = []
    for each, own in zip(listed, constants, strict=True):
        try:
            output = maker(each["output"], find)
        except LookupError as error:
            raise ValueError(f"the model's results cannot be made: {error}") from error
        forward = load_module(folder / each["forward"]).forward
        found.append(ForwardShape(name=each["name"], forward=forward, constants=own, output=output))
    return found


def _calls(
    listed: Sequence[Mapping[str, Any]],
    shapes: Sequence[ForwardShape],
    device: torch.device,
    find: Callable[[str], Any],
) -> dict[tuple[torch.Size, ...], list[KnownCall]]:
    """The recorded calls by the sizes of their tensors."""
    found: dict[tuple[torch.Size, ...], list[KnownCall]] = {}
    for each in listed:
        inputs = [
            (torch.Size(shape), getattr(torch, dtype), tuple(strides), torch.empty(0, device=where).device)
            for shape, dtype, strides, where in each["inputs"]
        ]
        call = KnownCall(
            template=localized(each["template"], find),
            inputs=inputs,
            shape=shapes[each["shape"]],
            passed=each["passed"],
            filled=dict(each["filled"]),
        )
        found.setdefault(tuple([shape for shape, *_ in inputs]), []).append(call)
    return found


def _check_parameters(found: Signature, wanted: Signature) -> None:
    """Raises ValueError for a forward with other parameters or defaults."""
    for own, each in itertools.zip_longest(found.parameters, wanted.parameters):
        if own != each:
            raise ValueError(
                f"the forward has the parameter {own and own[0]}; it must have {each and each[0]}, with the "
                "same default"
            )


def unload(model: nn.Module) -> nn.Module:
    """Restores the original forward and returns the model."""
    if isinstance(model, Optimized):
        model.__class__ = type(model).__mro__[2]
    return model


def _check_modules(model: nn.Module, wanted: Mapping[str, str], hooks: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError for other modules, such as an adapter, and for hooks that were not recorded, because
    neither would run."""
    found = {name: type(each).__name__ for name, each in model.named_modules() if name}
    for name in {**wanted, **found}:
        if found.get(name) != wanted.get(name):
            raise ValueError(f"the module {name} is {found.get(name)}; it must be {wanted.get(name)}")
    for name, own in hooks_of(model).items():
        if own != hooks.get(name):
            raise ValueError(f"the module {name} has hooks, which would not run")


def _check_weights(model: nn.Module, wanted: Mapping[str, Any]) -> None:
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, (shape, dtype) in wanted.items():
        if name not in found:
            raise ValueError(f"the model has no weight {name}")
        tensor = found[name]
        if list(tensor.shape) != shape or str(tensor.dtype) != f"torch.{dtype}":
            raise ValueError(
                f"the weight {name} is {list(tensor.shape)} {tensor.dtype}; it must be {shape} torch.{dtype}"
            )
