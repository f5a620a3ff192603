"""A forward as a CUDA graph: its kernels are recorded once and then launched together, which is quicker where
the GPU would wait for launches.

This file is copied into the folder `optimized/` as it is; it needs torch alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

WARM = 2
"""Calls before the recording: kernels are compiled in the first."""


class NoGraphError(Exception):
    """The forward cannot be recorded; the message says why."""


class ForwardGraph:
    """The forward of one model for tensors of certain shapes, types and strides. Its results are copies: the
    next call does not change them.

    `weights`: where the model keeps what the forward reads, as mappings and names; when one of them lies
    elsewhere, `is_stale` says so, and the forward has to be recorded again.
    """

    def __init__(
        self,
        forward: Callable[..., Sequence[Any]],
        tensors: Sequence[torch.Tensor],
        weights: Sequence[tuple[Mapping[str, Any], str]],
    ) -> None:
        """Records it. Raises NoGraphError."""
        self._weights = [(owner, name, owner[name].data_ptr()) for owner, name in weights]
        self._turn, self._done = threading.Lock(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [_like(each) for each in tensors]
            for own, given in zip(self._inputs, tensors, strict=True):
                own.copy_(given)
            versions = [each._version for each in self._inputs]
            self._graph, self._outputs = _record(lambda: forward(*self._inputs))
        if versions != [each._version for each in self._inputs]:
            raise NoGraphError("the model changes its inputs")

    def is_stale(self) -> bool:
        """Whether a weight has moved since the recording."""
        return any(owner[name].data_ptr() != place for owner, name, place in self._weights)

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        """The forward's results for these inputs."""
        stream = torch.cuda.current_stream()
        with self._turn:  # of one call after the other, on whatever streams they are
            stream.wait_event(self._done)
            for own, given in zip(self._inputs, tensors, strict=True):
                own.copy_(given)
            self._graph.replay()
            found = [each.clone() if isinstance(each, torch.Tensor) else each for each in self._outputs]
            self._done.record(stream)
        return found


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """An own one with the same strides."""
    if any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise NoGraphError("an input's elements share memory")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _record(run: Callable[[], Sequence[Any]]) -> tuple[torch.cuda.CUDAGraph, Sequence[Any]]:
    """The graph, and the results that it writes over in each replay."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run()
        torch.cuda.current_stream().wait_stream(side)
        with _own_workspaces(), torch.cuda.graph(graph):  # with memory of its own: others may run meanwhile
            found = run()
    except Exception as error:  # of the model or of a kernel: any
        torch.cuda.synchronize()
        _end_capture_of_random_numbers()
        first = error.__context__ or error  # that the capture could not end comes of it
        raise NoGraphError(f"{type(first).__name__}: {str(first).partition(chr(10))[0]}") from error
    return graph, found


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """What cuBLAS works in lies in the memory of the graph that is recorded in the block. PyTorch lists one
    workspace for each stream: what is in the list would be shared with all graphs, and freed under them by
    whoever empties it (compiled code with `reduce-overhead`, the end of another graph)."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _end_capture_of_random_numbers() -> None:
    """A capture that fails leaves the GPU's generator as if it went on: it would refuse to draw."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
