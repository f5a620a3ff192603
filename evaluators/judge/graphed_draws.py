"""Draws inputs with one launch, by CUDA graphs of a reference's draws.

A timed block has hundreds of calls, each on different inputs. Inputs of 12 to 15 MiB took 0.34 to 0.54 ms per
call on an H100 if drawn operation by operation, and 0.13 to 0.19 ms in a graph. From 32 MiB per call, the
GPU's own time is as long as the launches'.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.judge.staging import Staging
from evaluators.reference.containers import tensors_in
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.reference_model import ReferenceModel

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

MOST_BYTES = 2**25
"""Largest inputs of a call that are drawn by a graph."""
WARM_UPS, TRIED = 2, 3
"""Draws before the recording, and draws that must equal those without a graph bit for bit."""


def quick_draw(reference: ReferenceModel, staging: Staging) -> Callable[[int, str], list[Any]]:
    """The function that draws the inputs of a call; it uses graphs if calls are timed and drawing waits for
    launches."""
    small = staging.memory.nbytes <= MOST_BYTES * staging.capacity
    if not (reference.device == "cuda" and reference.problem.timed and small):
        return reference.draw
    return GraphedDraws(reference.draw, reference.near_names).draw


class GraphedDraws:
    """The draws of some distributions, each as a graph if possible."""

    def __init__(self, draw: Callable[[int | None, str], list[Any]], names: Sequence[str]) -> None:
        """`draw` takes a seed (None: leave the generators as they are) and a distribution. On a GPU."""
        import torch

        self._draw = draw
        self._generator = torch.cuda.default_generators[torch.cuda.current_device()]
        self._graphs: dict[str, tuple[torch.cuda.CUDAGraph, list[Any]]] = {}
        for name in names:
            if _is_recordable(lambda name=name: draw(0, name)):  # type: ignore[misc]
                self._record(name)

    @property
    def recorded(self) -> list[str]:
        """The distributions whose draws are graphs."""
        return list(self._graphs)

    def draw(self, seed: int, name: str) -> list[Any]:
        """The inputs, which are valid until the next draw."""
        if name not in self._graphs:
            return self._draw(seed, name)
        graph, values = self._graphs[name]
        self._generator.manual_seed(seed)
        graph.replay()
        return values

    def _record(self, name: str) -> None:
        import torch

        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._draw(0, name)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                values = self._draw(None, name)
        except RuntimeError as error:
            _end_capture_of_random_numbers()
            logger.debug("draws of the distribution %r cannot be a graph: %s", name, error)
            return
        self._graphs[name] = graph, values
        seeds = [secrets.randbits(62) for _ in range(TRIED)]
        if not all(_same(self.draw(seed, name), self._draw(seed, name)) for seed in seeds):
            logger.debug("draws of the distribution %r are not the same in a graph", name)
            del self._graphs[name]


def _end_capture_of_random_numbers() -> None:
    """A failed capture leaves the GPU's generator in capture mode, in which it refuses to draw."""
    import torch

    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


def _same(one: list[Any], other: list[Any]) -> bool:
    """Whether the tensors are equal bit for bit."""
    import torch

    pairs = zip(tensors_in(one), tensors_in(other), strict=True)
    return all(a.stride() == b.stride() and torch.equal(_bytes(a), _bytes(b)) for a, b in pairs)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _is_recordable(draw: Callable[[], Any]) -> bool:
    """Whether nothing in the draw waits for the GPU or runs elsewhere."""
    import torch

    waiting = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    found = True

    class Watch(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal found
            result = function(*args, **(kwargs or {}))
            elsewhere = any(not each.is_cuda for each in tensors_in([args, kwargs or {}, result]))
            found = found and not elsewhere and waiting.isdisjoint(function.tags)
            return result

    with Watch():
        draw()
    return found
