"""Times kernels and PyTorch's original at a call's own shapes, in this process, for `best`.

The kernels are trusted, so this takes far less time than an evaluation. All are timed in turn, a block of
calls each, and the fastest block counts, because other processes only add time. On a GPU, the calls of a
block are queued while the GPU waits, so that the host's time does not count. They rotate through copies of
the tensors, so that none is still in the cache.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.base.cause import first_line
from kernel_library.catalogue.fastest import needs_gradients

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LIMIT_S = 2.0
"""Time after which no further round begins. Building and compiling come before."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 11
BLOCK_MS, MOST_CALLS = 3.0, 64
CYCLES_PER_MS = 2e6
"""Of a GPU's clock, at least."""
LONGEST_PAUSE_MS = 30.0
HOPELESS = 2.0
"""After a round, what takes this many times as long as the fastest is not timed again."""
COPIES = 16
"""The most copies of a call's tensors."""


def milliseconds(runs: Mapping[str, Callable[..., Any]], arguments: Sequence[Any]) -> dict[str, float]:
    """The time of a call in ms of each function that returns tensors of the right shapes and types with these
    arguments; the first one decides what is right. If an argument needs a gradient, a call is a forward and a
    backward pass. One that raises is left out, with a warning. Raises torch.OutOfMemoryError."""
    import torch

    train = needs_gradients(_tensors(arguments))
    sets: list[Sequence[Any]] = []
    blocks: dict[str, Callable[[int], float]] = {}
    wanted = ""
    for name, run in runs.items():
        try:
            result = run(*arguments)
            if not sets:
                sets = _copies([*arguments, upstream_of(result)] if train else arguments)
            call = both_passes(run) if train else run
            call(*sets[0])
            look = _look(call(*sets[0]))  # by now it has built, compiled and chosen configurations
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the kernel's source, which may raise anything
            logger.warning("%s is not timed: %s", name, first_line(error))
            continue
        wanted = wanted or look
        if look == wanted:
            blocks[name] = _blocks(call, sets)
        else:
            logger.warning("%s is not timed: it returns %s, not %s", name, look, wanted)
    return _least(blocks)


def both_passes(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the arguments of `run` and a list of the gradients of its results, which returns the
    results after a backward pass that takes the gradients of all arguments that need one."""
    import torch

    def passes(*given: Any) -> Any:
        *arguments, upstream = given
        with torch.enable_grad():
            result = run(*arguments)
        leaves = [each for each in _tensors(arguments) if each.requires_grad]
        torch.autograd.grad(_tensors(result), leaves, upstream, allow_unused=True)
        return result

    return passes


def upstream_of(result: Any) -> list[torch.Tensor]:
    """Random gradients of the results of a call."""
    import torch

    return [torch.randn_like(each.detach()) for each in _tensors(result)]


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in arguments, or in a result."""
    import torch

    return [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def _least(blocks: Mapping[str, Callable[[int], float]]) -> dict[str, float]:
    start = time.monotonic()
    counts, samples, rough = {}, {}, {}
    for name, block in blocks.items():
        single_ms = block(1)
        counts[name] = min(max(1, math.ceil(BLOCK_MS / max(single_ms, 1e-3))), MOST_CALLS)
        samples[name] = [block(counts[name])]
        rough[name] = min(single_ms, *samples[name])
    order = [name for name, each in rough.items() if each <= HOPELESS * min(rough.values())]
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.monotonic() - start > LIMIT_S:
            break
        for name in order if number % 2 else reversed(order):
            samples[name].append(blocks[name](counts[name]))
    return {name: min(each) for name, each in samples.items()}


def _blocks(run: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Callable[[int], float]:
    """A function that returns the milliseconds of each of that many calls."""
    import torch

    def queue(calls: int) -> float:
        start = time.perf_counter()
        for number in range(calls):
            run(*sets[number % len(sets)])
        return (time.perf_counter() - start) * 1e3

    def on_gpu(calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        host_ms = queue(calls)
        torch.cuda.synchronize()
        pause = int(min(1.5 * host_ms, LONGEST_PAUSE_MS) * CYCLES_PER_MS)
        torch.cuda._sleep(pause)  # type: ignore[no-untyped-call]
        begin.record()
        queue(calls)
        end.record()
        end.synchronize()
        taken_ms: float = begin.elapsed_time(end)
        return taken_ms / calls

    return on_gpu if _tensors(sets[0])[0].is_cuda else lambda calls: queue(calls) / calls


def _copies(arguments: Sequence[Any]) -> list[Sequence[Any]]:
    """The arguments, and enough copies that two caches' worth of data lies between two uses."""
    import torch
    from torch.utils._pytree import tree_map_only

    tensors = _tensors(arguments)
    if not tensors[0].is_cuda:
        return [arguments]

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    cache = 2 * torch.cuda.get_device_properties(tensors[0].device).L2_cache_size
    copies = min(COPIES, cache // max(1, sum(each.nbytes for each in tensors)))
    return [arguments] + [tree_map_only(torch.Tensor, copy, arguments) for _ in range(copies)]


def _look(result: Any) -> str:
    tensors = _tensors(result)
    return ", ".join(f"{tuple(each.shape)} of {each.dtype}" for each in tensors) or type(result).__name__
