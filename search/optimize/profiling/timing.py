"""Times a model and each of its calls, from the trace of PyTorch's profiler.

Each call runs in a profiler range named by its index in the run, which attributes kernels to calls. On a GPU
the time of a call is the device time of its kernels, copies and fills. On a CPU it is the time of the
operator and everything that it calls. An iteration is timed without the profiler, on a GPU back to back with
others; the time that its calls do not account for is idle time.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from search.optimize.models.source import LoadedModel, without_fastpath

MARK = "ideatree call "
"""Prefix of the names of the calls' profiler ranges."""
BLOCKS = 3
"""Blocks of back-to-back iterations; a GPU is synchronised after each."""


@dataclass(frozen=True, kw_only=True)
class ProfileTiming:
    """The times of a model: of an iteration (`wall_ms`), of each recorded call in order (`call_ms`), of the
    shortest kernel or, on a CPU, call (`quickest_ms`), and device time per iteration that belongs to no
    operator (`other_ms`). `kernels`: launches per iteration, 0 on a CPU. `alike`: share of the calls that
    match the recorded ones."""

    wall_ms: float
    call_ms: Sequence[float]
    kernels: int
    quickest_ms: float
    other_ms: float
    alike: float


def measure(
    model: LoadedModel, operators: Sequence[str], *, warmup: int, iterations: int, say: Callable[[str], None]
) -> ProfileTiming:
    """Times a model whose recorded run calls these operators. Raises what the model raises."""
    on_gpu = model.device != "cpu"
    block = iterations if on_gpu else 1
    with without_fastpath():
        for _ in range(warmup):
            model.run()
        say(f"timing {BLOCKS * iterations} iterations")
        wall_ms = _typical([_block_ms(model, block) for _ in range(BLOCKS * iterations // block)], on_gpu)
        say(f"tracing {iterations} iterations")
        events = _traced(model, iterations)
    return timing_of(events, operators, wall_ms=wall_ms, iterations=iterations, on_gpu=on_gpu)


def timing_of(
    events: Iterable[Any], operators: Sequence[str], *, wall_ms: float, iterations: int, on_gpu: bool
) -> ProfileTiming:
    """The timing from a trace's events (torch's `FunctionEvent`)."""
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
    """The median of several times; on a CPU, where all noise is delay, the least."""
    return statistics.median(times) if on_gpu else min(times)


def label(place: int, operator: str) -> str:
    """The name of a call's profiler range, by its index in the run."""
    return f"{MARK}{place} {operator}"


def _is_on_cpu(event: Any) -> bool:
    return bool(event.device_type.name == "CPU")


def _kernels(event: Any) -> Iterator[float]:
    """Device times in µs of everything launched in a call's range, without the range's own device row."""
    yield from (each.duration for each in event.kernels if not each.name.startswith(MARK))
    for child in event.cpu_children:
        yield from _kernels(child)


def _cpu_us(event: Any) -> float:
    """CPU time in µs of the operators in a range, without the range's own overhead; of the whole range where
    the profiler sees no operator."""
    inside = sum(float(child.cpu_time_total) for child in event.cpu_children)
    return inside or float(event.cpu_time_total)


def _block_ms(model: LoadedModel, iterations: int) -> float:
    """Milliseconds per iteration over this number back to back; a GPU is synchronised once, at the end."""
    _wait(model)
    start = time.perf_counter()
    for _ in range(iterations):
        model.run()
    _wait(model)
    return (time.perf_counter() - start) * 1e3 / iterations


def _wait(model: LoadedModel) -> None:
    import torch

    if model.device != "cpu":
        torch.cuda.synchronize()


def _traced(model: LoadedModel, iterations: int) -> Any:
    """The trace's events of this number of iterations, each call in its range."""
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
        _wait(model)
    return trace.events()
