"""Runs a model with kernels in place of parts of its forward.

This file is copied unchanged into `optimized/`; it needs only torch. `forward.py`, next to it, has the calls
of the model's forward for inputs of certain shapes and dtypes, with kernels in between; there is one such
file per input shape. For everything else (other calls, another mode than the recorded one, autocast) the
original forward runs.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import itertools
import json
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from .graphs import ForwardGraph, NoGraphError
from .kernel import InstalledKernel, load_kernel, load_module
from .state import PLAIN_TENSORS, OtherStateError, RecordedState, Snapshot, sizes
from .templates import Signature, Template, differences, finder, localized, maker, tensor_names

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
CONSTANTS = "constants.pt"
ATTRIBUTES = "attributes.py"
ENABLED = "enabled: call it under torch.no_grad()"
DISABLED = "disabled: the kernels are for training"
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
    all elements of a tensor must have, by the tensor's number: a mask of ones, which the code never reads.
    `sets`: sets the model's attributes that the forward sets. `frozen`: the numbers of the tensors that may
    not need a gradient, in training."""

    template: Template
    inputs: Sequence[tuple[torch.Size, torch.dtype, tuple[int, ...], torch.device]]
    shape: ForwardShape
    passed: Sequence[int]
    filled: Mapping[int, float] = field(default_factory=dict)
    sets: Callable[[nn.Module], None] | None = None
    frozen: Sequence[int] = ()

    def why_not(self, template: Template, tensors: Sequence[torch.Tensor]) -> str:
        """Why the code is not for these arguments; "" if it is."""
        if template != self.template:
            found = list(differences(self.template, template))
            more = f"; {len(found) - MOST_DIFFERENCES} more" if len(found) > MOST_DIFFERENCES else ""
            return f"no recorded call is like this one: {'; '.join(found[:MOST_DIFFERENCES])}{more}"
        for number, (tensor, expected) in enumerate(zip(tensors, self.inputs, strict=True)):
            if why := _other_tensor(tensor, *expected):
                return f"{tensor_names(template)[number]} is {why}"
        for number in self.frozen:
            if tensors[number].requires_grad:
                return f"{tensor_names(template)[number]} needs a gradient; it was recorded without one"
        for number, value in self.filled.items():
            if torch.compiler.is_compiling() or _is_capturing(tensors[number].device):
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


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@dataclass(eq=False)
class ForwardPlan:
    """Replaces a model's forward: the code at each shape, the recorded `calls` by the sizes of their tensors,
    the forward's `signature`, and the kernels by name. `state`: what the code depends on in the model, whose
    class was `own`; `attributes` reads what compiled code depends on. `as_graph`: run as a CUDA graph.
    `own_in_compiled`: compiled code runs the original forward. `slower`: kernels whose operators run instead,
    as a CUDA graph (`graph`) and otherwise (`eager`). `autocast`: that under which the calls were recorded,
    such as "cuda bfloat16", "" for none. `fallbacks` counts calls of the original forward by reason."""

    shapes: Sequence[ForwardShape]
    calls: Mapping[tuple[torch.Size, ...], Sequence[KnownCall]]
    signature: Signature
    kernels: Mapping[str, InstalledKernel]
    state: RecordedState
    own: type
    attributes: Callable[[nn.Module], Any]
    as_graph: bool = False
    own_in_compiled: bool = False
    slower: Mapping[str, Collection[str]] = field(default_factory=dict)
    autocast: str = ""
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)
    snapshots: weakref.WeakKeyDictionary[nn.Module, Snapshot] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """Each model's state when the code was last allowed to run."""
    compiled_with: Any = None
    """The attributes when the forward was last compiled."""

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
        if model.training is not self.state.trains:
            return f"the model is in {'training' if model.training else 'eval'} mode"
        if torch.is_grad_enabled() is not self.state.trains:
            return f"gradients are {DISABLED if self.state.trains else ENABLED}"
        if (found := _autocast()) != self.autocast:
            return f"autocast is {found or 'off'}" + (f", not {self.autocast}" if self.autocast else "")
        if torch.compiler.is_compiling():
            return ""
        if _is_transformed():
            return "the call is traced, or its operators are intercepted"
        return self.why_changed(model)

    def why_changed(self, model: nn.Module) -> str:
        """How the model differs from the recorded one; "" if it does not."""
        snapshot = self.snapshots.get(model)
        if snapshot is not None and snapshot.is_current(model):
            return ""
        if type(model).plan is not self or type(model).__mro__[2] is not self.own:  # type: ignore[attr-defined]
            return f"the model's class is now {type(model).__name__}"
        try:
            self.snapshots[model] = self.state.compare(model, self.own)
        except OtherStateError as error:
            return str(error)
        return ""

    def run(self, model: nn.Module, shape: ForwardShape, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Runs the code of the shape. Raises OtherValueError, and what a kernel raises."""

        def forward(*own: torch.Tensor, way: str = "graph") -> Sequence[Any]:
            if not self.autocast:
                return shape.forward(model, self._kernels(way), shape.constants, check, *own)
            with torch.autocast(self.state.device.type, enabled=False):  # the code has its casts
                return shape.forward(model, self._kernels(way), shape.constants, check, *own)

        if torch.compiler.is_compiling():
            return forward(*tensors, way="compiled")
        if _is_capturing(self.state.device):
            return forward(*tensors)
        if not self.as_graph:
            return forward(*tensors, way="eager")
        graph = shape.graphs.get(model)
        if graph is None or (isinstance(graph, ForwardGraph) and graph.is_stale()):
            try:
                graph = ForwardGraph(forward, tensors, [_owner(model, name) for name in self.state.weights])
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


def _autocast() -> str:
    """The kind of device and the dtype of `torch.autocast`; "" where it is off."""
    kinds = [each for each in ("cuda", "cpu") if torch.is_autocast_enabled(each)]
    return " ".join(f"{each} {str(torch.get_autocast_dtype(each)).removeprefix('torch.')}" for each in kinds)


def _other_tensor(
    tensor: torch.Tensor,
    shape: torch.Size,
    dtype: torch.dtype,
    strides: tuple[int, ...],
    device: torch.device,
) -> str:
    """How a tensor differs from the recorded argument; "" if it does not."""
    if type(tensor) not in PLAIN_TENSORS:
        return f"a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout is not torch.strided:
        return f"a tensor with the layout {tensor.layout}"
    if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, device):
        found = _words(tensor.shape, tensor.dtype, tensor.device)
        return f"a tensor of {found}, not {_words(shape, dtype, device)}"
    if tensor.stride() != strides:
        return f"a tensor of {sizes(shape)} with strides {tensor.stride()}, not {strides}"
    if not torch.compiler.is_compiling() and (tensor.is_neg() or tensor.is_conj()):
        return "a view that negates or conjugates another tensor"
    return ""


def _words(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> str:
    return f"{sizes(shape)} {str(dtype).removeprefix('torch.')} on {device}"


def _is_transformed() -> bool:
    """Whether something other than the forward's results is wanted from a call: a trace, a transformation of
    `torch.func`, or the operators that it calls."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or torch._C._functorch.peek_interpreter_stack()
        or forward_ad._current_level >= 0
    )


def _is_changed(plan: ForwardPlan, model: nn.Module) -> bool:
    """Whether compiled code must run the original forward. The compiler calls this function when it compiles
    the model, which it does again when one of `plan.attributes` has changed."""
    if why := plan.why_changed(model):
        plan.fell_back(why)
        return True
    plan.compiled_with = plan.attributes(model)
    return False


# What `torch.compiler.assume_constant_result` does, which would import the compiler.
_is_changed._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Optimized(nn.Module):
    """Base class that is put before the model's class and falls back to its forward."""

    plan: ForwardPlan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Like the original forward."""
        plan = type(self).plan
        if torch.compiler.is_compiling() and (
            plan.own_in_compiled
            or (
                self.training is plan.state.trains
                and (_is_changed(plan, self) or plan.attributes(self) != plan.compiled_with)
            )
        ):
            return super().forward(*args, **kwargs)
        if not (why := plan.why_not(self)):
            call, template, tensors = plan.call_of(args, kwargs)
            why = call.why_not(template, tensors)
        if not why:
            given = [tensors[number] for number in call.passed]
            try:
                found = plan.run(self, call.shape, given)
            except OtherValueError as error:
                why = str(error)
            else:
                if call.sets is not None:
                    call.sets(self)
                return call.shape.output(found)
        plan.fell_back(why)
        return super().forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the model as it was before loading, so that it can be read without this package."""
        own = type(self).plan.own
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, args, *rest = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make = own.__new__
        return make, tuple([own if each is type(self) else each for each in args]), *rest

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy that runs the kernels, too."""
        own = getattr(super(), "__deepcopy__", None)
        if own is not None:
            copied = own(memo)
            copied.__class__ = type(self)
            return copied
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return copied


def load(
    folder: Path, model: nn.Module, without: Iterable[str] = (), as_graph: bool | None = None
) -> nn.Module:
    """Makes a model run the kernels of the folder; no weight is copied.

    Args:
        folder: the folder `optimized/`.
        model: the model, which is changed in place.
        without: names of kernels to switch off.
        as_graph: whether to run the forward as a CUDA graph; None: if that was measured to be faster.

    Returns the model. Raises ValueError for a model whose modules, hooks, weights, attributes or parameters
    of the forward differ from the recorded ones, and what a kernel's source raises.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if isinstance(model, Optimized):
        model = unload(model)
    device = torch.empty(0, device=manifest["device"]).device
    listed = ("modules", "hooks", "attributes", "filled", "weights", "tied", "trains", "frozen")
    state = RecordedState(**{name: manifest[name] for name in listed}, device=device)
    find = finder(model)
    parameters = manifest["parameters"]
    signature = Signature([[*each[:2], *[localized(own, find) for own in each[2:]]] for each in parameters])
    state.compare_modules(model)
    _check_parameters(Signature.of(model.forward), signature)
    state.compare(model, type(model), loading=True)
    kernels = {
        each["name"]: load_kernel(folder, each["name"], int(each["results"]), device, trains=state.trains)
        for each in manifest["kernels"]
    }
    for name in without:
        kernels[name].on = False
    own = type(model)
    code = [load_module(folder / each["forward"]) for each in manifest["shapes"]]
    shapes = _shapes(folder, manifest["shapes"], code, device, find)
    plan = ForwardPlan(
        shapes=shapes,
        calls=_calls(manifest["calls"], shapes, code, find),
        signature=signature,
        kernels=kernels,
        state=state,
        own=own,
        attributes=load_module(folder / ATTRIBUTES).attributes,
        as_graph=device.type == "cuda" and bool(manifest["as_graph"] if as_graph is None else as_graph),
        own_in_compiled=bool(manifest["own_in_compiled"]),
        slower=manifest["slower"],
        autocast=manifest["autocast"],
    )
    plan.compiles(kernels if manifest["in_compiled"] is None else manifest["in_compiled"])
    members = {"plan": plan, "forward": _forward_like(own), "__module__": own.__module__}
    model.__class__ = type(own.__name__, (Optimized, own), members)
    return model


def _forward_like(own: type[nn.Module]) -> Callable[..., Any]:
    """The forward with the signature of the original one, which `generate` and tracers read."""

    @functools.wraps(own.forward)
    def forward(self: Optimized, *args: Any, **kwargs: Any) -> Any:
        return Optimized.forward(self, *args, **kwargs)

    return forward


def _owner(model: nn.Module, weight: str) -> tuple[Mapping[str, Any], str]:
    """The mapping that contains a weight, and its name there."""
    path, _, name = weight.rpartition(".")
    own = vars(model.get_submodule(path))
    return next(each for each in (own, own["_parameters"], own["_buffers"]) if name in each), name


def _shapes(
    folder: Path,
    listed: Sequence[Mapping[str, Any]],
    code: Sequence[Any],
    device: torch.device,
    find: Callable[[str], Any],
) -> list[ForwardShape]:
    """The code of each shape. Raises ValueError for a class of the results that is not found."""
    file = folder / CONSTANTS
    constants = torch.load(file, map_location=device) if file.exists() else [{} for _ in listed]
    found = []
    for each, module, own in zip(listed, code, constants, strict=True):
        try:
            output = maker(each["output"], find)
        except LookupError as error:
            raise ValueError(f"the model's results cannot be made: {error}") from error
        found.append(ForwardShape(name=each["name"], forward=module.forward, constants=own, output=output))
    return found


def _calls(
    listed: Sequence[Mapping[str, Any]],
    shapes: Sequence[ForwardShape],
    code: Sequence[Any],
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
            sets=getattr(code[each["shape"]], each["sets"]) if each["sets"] else None,
            frozen=each["frozen"],
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
