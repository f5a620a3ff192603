"""Runs a model with kernels in place of parts of its forward.

This file is copied unchanged into `optimized/`; it needs only torch. `forward.py`, next to it, has the calls
of the model's forward for inputs of certain shapes and dtypes, with kernels in between; there is one such
file per input shape. For everything else (other shapes, training, gradients, autocast) the original forward
runs.
"""

from __future__ import annotations

import collections
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
from torch.utils import _pytree as pytree

from .graphs import ForwardGraph, NoGraphError
from .kernel import InstalledKernel, load_kernel, load_module

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
CONSTANTS = "constants.pt"


class OtherValueError(Exception):
    """The model read a number from a tensor that differs from the one in the recorded run."""


def check(value: Any, expected: Any) -> None:
    """Raises OtherValueError unless they are equal."""
    if value != expected:
        raise OtherValueError(f"{value} where {expected} is expected")


@dataclass(eq=False)
class ForwardShape:
    """Replaces the forward for arguments of one shape by `forward`, which also reads `constants`. `inputs`:
    shape, dtype, strides and device of each tensor argument; `structure` and `values`: the tree of the
    arguments and its leaves, None for a tensor; `output`: the tree of the results."""

    name: str
    forward: Callable[..., Sequence[Any]]
    constants: Mapping[str, torch.Tensor]
    inputs: Sequence[tuple[torch.Size, torch.dtype, tuple[int, ...], torch.device]]
    structure: Any
    values: Sequence[Any]
    output: Any
    graphs: weakref.WeakKeyDictionary[nn.Module, ForwardGraph | NoGraphError] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """Each model's CUDA graph, or why it cannot be recorded."""

    def why_not(self, leaves: Sequence[Any], structure: Any) -> str:
        """Why the code is not for these arguments; "" if it is."""
        if structure != self.structure:
            return f"other arguments than {self.structure}"
        wanted = iter(self.inputs)
        for leaf, value in zip(leaves, self.values, strict=True):
            if not isinstance(leaf, torch.Tensor):
                if leaf != value:
                    return f"the argument {leaf!r} in place of {value!r}"
                continue
            found = leaf.shape, leaf.dtype, leaf.stride(), leaf.device
            if value is not None or found != (expected := next(wanted)):
                return f"a tensor of {_words(*found)}" + (
                    "" if value is not None else f", not {_words(*expected)}"
                )
        return ""


@dataclass(eq=False)
class ForwardPlan:
    """Replaces a model's forward: the code by the sizes of the tensor arguments (`shapes`), and the kernels
    by name. `weight` gets one of the model's weights, whose dtype and device must be `kind`; `weights`: names
    of all that the code reads. `as_graph`: run as a CUDA graph. `own_in_compiled`: compiled code runs the
    original forward. `slower`: kernels whose operators run instead, as a CUDA graph (`graph`) and otherwise
    (`eager`). `fallbacks` counts calls of the original forward by reason."""

    shapes: Mapping[tuple[torch.Size, ...], ForwardShape]
    kernels: Mapping[str, InstalledKernel]
    weight: Callable[[nn.Module], torch.Tensor] | None
    kind: tuple[torch.dtype, torch.device]
    weights: Sequence[str] = ()
    as_graph: bool = False
    own_in_compiled: bool = False
    slower: Mapping[str, Collection[str]] = field(default_factory=dict)
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)

    def shape_of(self, tensors: Sequence[torch.Tensor]) -> ForwardShape:
        """The code for tensors of these sizes; the first one where there is none, to say why not."""
        found = self.shapes.get(tuple([each.shape for each in tensors]))
        return next(iter(self.shapes.values())) if found is None else found

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
        leaves, structure = pytree.tree_flatten((list(args), kwargs))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        shape = plan.shape_of(tensors)
        why = plan.why_not(self) or shape.why_not(leaves, structure)
        if not why:
            try:
                return pytree.tree_unflatten(plan.run(self, shape, tensors), shape.output)
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
    _check_modules(model, manifest["modules"])
    _check_weights(model, manifest["weights"])
    device = torch.empty(0, device=manifest["device"]).device
    kernels = {
        each["name"]: load_kernel(folder, each["name"], int(each["results"]), device)
        for each in manifest["kernels"]
    }
    for name in without:
        kernels[name].on = False
    first = next(iter(manifest["weights"].items()), None)
    plan = ForwardPlan(
        shapes=_shapes(folder, manifest["shapes"], device),
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
    folder: Path, listed: Sequence[Mapping[str, Any]], device: torch.device
) -> dict[tuple[torch.Size, ...], ForwardShape]:
    """The code of each shape by the sizes of its tensors."""
    file = folder / CONSTANTS
    constants = torch.load(file, map_location=device) if file.exists() else [{} for _ in listed]
    found = {}
    for each, own in zip(listed, constants, strict=True):
        inputs = [
            (torch.Size(shape), getattr(torch, dtype), tuple(strides), device)
            for shape, dtype, strides in each["inputs"]
        ]
        found[tuple([shape for shape, *_ in inputs])] = ForwardShape(
            name=each["name"],
            forward=load_module(folder / each["forward"]).forward,
            constants=own,
            inputs=inputs,
            structure=pytree.treespec_loads(each["structure"]),
            values=each["values"],
            output=pytree.treespec_loads(each["output"]),
        )
    return found


def unload(model: nn.Module) -> nn.Module:
    """Restores the original forward and returns the model."""
    if isinstance(model, Optimized):
        model.__class__ = type(model).__mro__[2]
    return model


def _check_modules(model: nn.Module, wanted: Mapping[str, str]) -> None:
    """Raises ValueError for other modules, such as an adapter, and for hooks, because neither would run."""
    found = {name: type(each).__name__ for name, each in model.named_modules() if name}
    for name in {**wanted, **found}:
        if found.get(name) != wanted.get(name):
            raise ValueError(f"the module {name} is {found.get(name)}; it must be {wanted.get(name)}")
    for name, each in model.named_modules():
        if name and (each._forward_hooks or each._forward_pre_hooks):
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
