"""Records the operators that a model calls, as PyTorch dispatches them, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.containers import map_tensors, tensors_in
from evaluators.reference.loading import init_inputs, load_module, make_inputs, make_model
from evaluators.suites.traced.call import Constant, Device, Tensor, TracedCall, Value
from evaluators.suites.traced.grammar import write_arguments
from evaluators.suites.traced.inputs import operator_of, takes_tensors

if TYPE_CHECKING:
    import torch

SEED = 0
VIEW, CREATION, PLAIN = "view", "creation", ""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The different calls with their counts, and how often each operator was called with arguments that the
    format cannot express (sparse tensors, complex numbers)."""

    calls: Sequence[TracedCall]
    unwritable: Mapping[str, int]


def record(problem: Problem, *, backward: bool) -> Recorded:
    """Runs the problem's reference once, on its own inputs, with the weights that its constructor draws.

    With `backward` it also computes gradients of all floating-point outputs with respect to the weights and
    the inputs that require gradients, or all floating-point inputs if none of them do. Raises what the
    reference raises, and ValueError if no output has a gradient.
    """
    import torch

    module = load_module(problem.source, problem.overrides)
    how: Any = {"seed": SEED, "device": problem.device, "dtype": problem.dtype}
    model = make_model(module, "Model", init_inputs(module, SEED), **how)
    inputs = make_inputs(module, **how)
    if backward:
        _require_gradients(model, inputs)
    found = _Calls(problem.device)
    with torch.set_grad_enabled(backward):
        with found.recording():
            output = model(*inputs)
        if backward:
            outputs = [each for each in tensors_in(output) if each.requires_grad]
            if not outputs:
                raise ValueError("no output has a gradient")
            gradients = [torch.ones_like(each) for each in outputs]
            with found.recording():
                torch.autograd.backward(outputs, gradients)
    return Recorded(calls=found.calls(), unwritable=dict(found.unwritable))


def recorded_calls(run: Callable[[], object]) -> list[TracedCall]:
    """The different calls that `run` makes on a CPU. Raises what `run` raises, and ValueError for a call that
    cannot be written as text."""
    import torch

    found = _Calls("cpu")
    with torch.no_grad(), found.recording():
        run()
    if found.unwritable:
        raise ValueError(f"{next(iter(found.unwritable))} has arguments that cannot be written")
    return found.calls()


def kind_of(operator: str) -> str:
    """Whether an operator is a view (such as `unsqueeze_`), creates a tensor, or neither."""
    import torch

    try:
        found = operator_of(operator)
    except ValueError:
        return PLAIN
    if found.is_view or torch.Tag.inplace_view in found.tags:
        return VIEW
    base = operator.split(".")[1]
    takes = any(map(takes_tensors, found._schema.arguments))
    return CREATION if not takes or base.startswith("new_") or base.endswith("_like") else PLAIN


def _require_gradients(model: torch.nn.Module, inputs: list[Any]) -> None:
    tensors = [each for each in tensors_in(inputs) if each.is_floating_point()]
    if not any(each.requires_grad for each in (*model.parameters(), *tensors)):
        map_tensors(lambda each: each.requires_grad_(each.is_floating_point()), inputs)


class _Calls:
    """Collects different calls with their counts, by their text."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._counts: Counter[str] = Counter()
        self._calls: dict[str, TracedCall] = {}
        self.unwritable: Counter[str] = Counter()

    def calls(self) -> list[TracedCall]:
        return [replace(call, count=self._counts[key]) for key, call in self._calls.items()]

    def recording(self) -> Any:
        """A context in which every call is recorded before it runs."""
        from torch.utils._python_dispatch import TorchDispatchMode

        note = self._note

        class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                note(str(func), args, kwargs or {})
                return func(*args, **(kwargs or {}))

        return Recording()  # type: ignore[no-untyped-call]

    def _note(self, operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            call = call_of(operator, args, kwargs, self._device)
            key = f"{operator} {write_arguments(call)}"
        except ValueError:
            self.unwritable[operator] += 1
            return
        self._calls.setdefault(key, call)
        self._counts[key] += 1


def call_of(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], device: str) -> TracedCall:
    """The record of a call with these arguments on the device. Raises ValueError for arguments that the
    format cannot express."""
    return TracedCall(
        operator=operator,
        arguments=tuple(_value(each, device) for each in args),
        keywords={key: _value(each, device) for key, each in kwargs.items()},
    )


def _value(value: Any, device: str) -> Value:
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value, device)
    if isinstance(value, list | tuple):
        return tuple(_value(each, device) for each in value)
    if value is None or isinstance(value, torch.Generator):  # replayed calls use the default generator
        return None
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return Device(str(value))
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return Constant(str(value).removeprefix("torch."))
    raise ValueError(f"a {type(value).__name__} cannot be written")


def _tensor(tensor: torch.Tensor, device: str) -> Tensor:
    import torch

    if tensor.layout is not torch.strided:
        raise ValueError("the tensor has no strides")
    there = tensor.device.type == torch.device(device).type
    return Tensor(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=None if tensor.is_contiguous() else tensor.stride(),
        device=None if there else str(tensor.device),
    )
