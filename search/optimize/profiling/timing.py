"""How long a model takes, and of that each call: from the trace of PyTorch's profiler.

Each call is made within a range of its own, named by its place in the run, so that the trace says whose
kernels it has. On a GPU the rows of the device count alone: the time of a call is that of its kernels, copies
and fills. On a CPU it is the time of the operator, with what it calls. The time of a whole iteration is
measured without a profiler, on a GPU iterations back to back: what its calls do not take it is idle.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from search.optimize.models.source import LoadedModel, as_written

MARK = "ideatree call "
"""Begins the names of the ranges of calls."""
BLOCKS = 3
"""Of iterations, at the end of which a GPU is waited for."""


@dataclass(frozen=True, kw_only=True)
class ProfileTiming:
    """`wall_ms`: of an iteration. `call_ms`: of each call of the recorded run, in order. `kernels`: launches
    of an iteration, 0 on a CPU. `quickest_ms`: of all kernels, on a CPU of all calls, the shortest.
    `other_ms`: of an iteration, device time of no operator. `alike`: the share of the calls that were the
    recorded ones."""

    wall_ms: float
    call_ms: Sequence[float]
    kernels: int
    quickest_ms: float
    other_ms: float
    alike: float


def measure(
    model: LoadedModel, operators: Sequence[str], *, warmup: int, iterations: int, say: Callable[[str], None]
) -> ProfileTiming:
    """Times a model of which a run calls these operators. Raises what the model raises."""
    on_gpu = model.device != "cpu"
    block = iterations if on_gpu else 1
    with as_written():
        for _ in range(warmup):
            _run(model)
        say(f"timing {BLOCKS * iterations} iterations")
        wall_ms = _typical([_block_ms(model, block) for _ in range(BLOCKS * iterations // block)], on_gpu)
        say(f"tracing {iterations} iterations")
        events = _traced(model, iterations)
    return timing_of(events, operators, wall_ms=wall_ms, iterations=iterations, on_gpu=on_gpu)


def timing_of(
    events: Iterable[Any], operators: Sequence[str], *, wall_ms: float, iterations: int, on_gpu: bool
) -> ProfileTiming:
    """The timing that a trace's events say, which are `FunctionEvent`s of torch."""
    took: dict[str, list[float]] = defaultdict(list)
    kernels: list[float] = []
    device_us = 0.0
    for event in events:
        marked = event.name.startswith(MARK)
        if not _is_on_cpu(event):
            device_us += 0.0 if marked or event.is_user_annotation else event.time_range.elapsed_us()
        elif marked:
            own = list(_kernels(event)) if on_gpu else []
            kernels += own
            took[event.name].append(sum(own) if on_gpu else _cpu_us(event))
    names = [label(place, operator) for place, operator in enumerate(operators)]
    call_ms = [_typical(took[name], on_gpu) / 1e3 if name in took else 0.0 for name in names]
    seen = sum(len(took.get(name, ())) for name in names)
    calls = max(1, sum(map(len, took.values())))
    shortest = (
        [each for each in kernels if each > 0] if on_gpu else [each * 1e3 for each in call_ms if each > 0]
    )
    return ProfileTiming(
        wall_ms=wall_ms,
        call_ms=call_ms,
        kernels=round(len(kernels) / iterations),
        quickest_ms=min(shortest, default=0.0) / 1e3,
        other_ms=max(0.0, device_us - sum(kernels)) / iterations / 1e3,
        alike=seen / max(calls, len(names) * iterations),
    )


def _typical(times: Sequence[float], on_gpu: bool) -> float:
    """Of several times the median, or on a CPU, where all noise is delay, the least."""
    return statistics.median(times) if on_gpu else min(times)


def label(place: int, operator: str) -> str:
    """The name of the range of a call, by its place in a run."""
    return f"{MARK}{place} {operator}"


def _is_on_cpu(event: Any) -> bool:
    return bool(event.device_type.name == "CPU")


def _kernels(event: Any) -> Iterator[float]:
    """Device times of what the range of a call has launched, in µs. The range itself is a row of the device,
    too, which counts for nothing."""
    yield from (each.duration for each in event.kernels if not each.name.startswith(MARK))
    for child in event.cpu_children:
        yield from _kernels(child)


def _cpu_us(event: Any) -> float:
    """Of the operators in a range, without what the range itself takes; of one that the profiler does not see
    all of the range."""
    inside = sum(float(child.cpu_time_total) for child in event.cpu_children)
    return inside or float(event.cpu_time_total)


def _run(model: LoadedModel) -> None:
    model.run()
    model.forget_gradients()


def _block_ms(model: LoadedModel, iterations: int) -> float:
    """Of one iteration, so many back to back: a GPU is waited for once, at the end."""
    _wait(model)
    start = time.perf_counter()
    for _ in range(iterations):
        _run(model)
    _wait(model)
    return (time.perf_counter() - start) * 1e3 / iterations


def _wait(model: LoadedModel) -> None:
    import torch

    if model.device != "cpu":
        torch.cuda.synchronize()


def _traced(model: LoadedModel, iterations: int) -> Any:
    """The events of so many iterations, each call in its range."""
    from torch.profiler import ProfilerActivity, profile, record_function
    from torch.utils._python_dispatch import TorchDispatchMode

    class Labelling(TorchDispatchMode):  # type: ignore[no-untyped-call]
        place = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = label(self.place, str(func))
            self.place += 1
            with record_function(name):
                return func(*args, **(kwargs or {}))

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if model.device != "cpu" else [])]
    with profile(activities=activities) as trace:
        for _ in range(iterations):
            with Labelling():  # type: ignore[no-untyped-call]
                model.run()
            model.forget_gradients()
        _wait(model)
    return trace.events()
