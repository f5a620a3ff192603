"""The library's kernels for an operator, of which the best one that fits a call is picked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernel_library.overrides.choice import Candidate, MeasuredCase, ranked
from kernel_library.overrides.gradients import with_dense_gradients
from kernel_library.overrides.interfaces import INTERFACES, Interface
from kernel_library.overrides.kernels import OperatorKernel
from kernel_library.overrides.operators import Operator, operator
from kernel_library.overrides.shapes import shape_text

LEAST_ELEMENTS = 1 << 16
"""Default of `Rules.least_elements`: below it, launching a kernel takes longer than running it."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which kernels are used. `faster`: only kernels whose closest measurement is significantly faster than
    eager PyTorch. `lower_precision`: also kernels that round factors to a lower precision than the tensors'.
    `least_elements`: the fewest elements of a call's first input."""

    faster: bool = True
    lower_precision: bool = False
    least_elements: int = LEAST_ELEMENTS


class LibraryKernels:
    """Candidates for one operator. `load` returns a candidate's function, on its first call; `ids` are
    content hashes by candidate name. `trained` are those for calls that need a gradient."""

    def __init__(
        self,
        interface: Interface,
        candidates: Sequence[Candidate],
        *,
        load: Callable[[str], Callable[..., Any]],
        ids: Mapping[str, str],
        rules: Rules,
        trained: LibraryKernels | None = None,
    ) -> None:
        self._interface, self._rules, self._load, self.trained = interface, rules, load, trained
        self._unloadable: set[str] = set()
        self._candidates = [each for each in candidates if self._allowed(each)]
        self._kernels = {
            each.name: OperatorKernel(
                name=each.name,
                id=ids[each.name],
                run=_adapted(interface, functools.partial(self._loaded, each.name)),
            )
            for each in self._candidates
        }

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that any candidate supports."""
        own = {device for each in self._candidates for device in each.devices}
        return tuple(sorted(own.union(self.trained.devices if self.trained else ())))

    def kernels(self) -> tuple[OperatorKernel, ...]:
        """All kernels that `pick` may return."""
        return tuple(self._kernels.values())

    def pick(self, *args: Any, **kwargs: Any) -> OperatorKernel | str:
        """The best kernel for the call, or the reason why there is none."""
        given = self._interface.arguments(*args, **kwargs)
        if isinstance(given, str):
            return given
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        first = tensors[0]
        if first.numel() < self._rules.least_elements:
            return f"fewer than {self._rules.least_elements} elements"
        if len({each.dtype for each in tensors if each.is_floating_point()}) > 1:
            return "tensors of several types"
        architecture, dtype = architecture_of(first.device), str(first.dtype).removeprefix("torch.")
        shapes = [each.shape for each in tensors]
        sizes = [[_traced_with(size) for size in shape] for shape in shapes]
        fitting = [
            each
            for each in self._candidates
            if each.name not in self._unloadable
            and len(shapes) >= len(each.shapes)
            and each.takes(shapes[: len(each.shapes)], dtype, architecture)
            and self._is_wanted(each.closest(architecture, dtype, sizes))
        ]
        found = ranked(fitting, architecture, dtype, sizes)
        if not found:
            texts = ", ".join(map(shape_text, shapes))
            return f"no kernel for {self._interface.op} of {dtype} {texts} on {architecture}"
        return self._kernels[found[0].name]

    def _loaded(self, name: str) -> Callable[..., Any]:
        """A candidate's function. A candidate that does not load, such as CUDA without a compiler, is not
        picked again."""
        try:
            return self._load(name)
        except Exception:  # the kernel's source, which may raise anything
            self._unloadable.add(name)
            raise

    def _allowed(self, candidate: Candidate) -> bool:
        return self._rules.lower_precision or not all(each.precision for each in candidate.measured)

    def _is_wanted(self, found: MeasuredCase) -> bool:
        """Whether the rules accept a kernel with this measurement."""
        fast = not self._rules.faster or found.speedup_low > 1
        return fast and (self._rules.lower_precision or not found.precision)


def library_sources(
    candidates: Sequence[Candidate],
    *,
    load: Callable[[str], Callable[..., Any]],
    ids: Mapping[str, str],
    rules: Rules,
    trained: Sequence[Candidate] = (),
) -> dict[Operator, LibraryKernels]:
    """The kernels for each operator that has an interface and a candidate. `trained` are the candidates with
    the measurements of both passes, for calls that need a gradient."""
    make = functools.partial(LibraryKernels, load=load, ids=ids, rules=rules)
    found = {}
    for name, interface in INTERFACES.items():
        forward, both = (
            [each for each in some if each.op == interface.op and each.function]
            for some in (candidates, trained)
        )
        kernels = make(interface, forward, trained=make(interface, both) if both else None)
        if kernels.devices:
            found[operator(name)] = kernels
    return found


def architecture_of(device: torch.device) -> str:
    """Compute capability such as `9.0`, or `cpu`."""
    if device.type != "cuda":
        return "cpu"
    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def _traced_with(size: int) -> int:
    """The size as a number. In a trace with dynamic shapes it is a symbol: then this is the size traced with,
    read in a way that does not specialise the compiled code to it."""
    node = getattr(size, "node", None)
    return size if node is None else int(node.hint or 0)


def _adapted(interface: Interface, load: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A library kernel with the operator's interface."""
    function: list[Callable[..., Any]] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if not function:
            function.append(load())
        given = interface.arguments(*args, **kwargs)
        assert not isinstance(given, str), "it was picked"
        result = function[0](*given)
        if result.grad_fn is not None:
            with_dense_gradients(result)
        return interface.result(result, *args, **kwargs)

    return run
