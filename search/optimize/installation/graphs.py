"""Runs a forward as a CUDA graph: its kernels are recorded once and then launched together, which is faster
where the GPU would wait for launches.

This file is copied unchanged into `optimized/`; it needs only torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

WARM = 2
"""Calls before the recording; the first compiles kernels."""


class NoGraphError(Exception):
    """The forward cannot be recorded as a CUDA graph; the message says why."""


class ForwardGraph:
    """The forward of one model for inputs of certain shapes, dtypes and strides. It returns copies, so that
    the next call does not change earlier results.

    `weights`: the mapping and name of each weight that the forward reads. When one of them has moved in
    memory, `is_stale` returns true, and the forward must be recorded again.
    """

    def __init__(
        self,
        forward: Callable[..., Sequence[Any]],
        tensors: Sequence[torch.Tensor],
        weights: Sequence[tuple[Mapping[str, Any], str]],
    ) -> None:
        """Records the forward. Raises NoGraphError."""
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
        with self._turn:  # one call at a time, also from different streams
            stream.wait_event(self._done)
            for own, given in zip(self._inputs, tensors, strict=True):
                own.copy_(given)
            self._graph.replay()
            found = [each.clone() if isinstance(each, torch.Tensor) else each for each in self._outputs]
            self._done.record(stream)
        return found


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor with the same strides."""
    if any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise NoGraphError("an input's elements share memory")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _record(run: Callable[[], Sequence[Any]]) -> tuple[torch.cuda.CUDAGraph, Sequence[Any]]:
    """The graph, and its results, which each replay overwrites."""
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run()
        torch.cuda.current_stream().wait_stream(side)
        with _own_workspaces(), torch.cuda.graph(graph):  # separate memory: other work may run meanwhile
            found = run()
    except Exception as error:  # from the model or a kernel
        torch.cuda.synchronize()
        _end_capture_of_random_numbers()
        first = error.__context__ or error  # the cause, not the failure to end the capture
        raise NoGraphError(f"{type(first).__name__}: {str(first).partition(chr(10))[0]}") from error
    return graph, found


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """Within the block, cuBLAS allocates its workspaces in the memory of the graph being recorded. Otherwise
    PyTorch's cached workspace of the stream would be shared by all graphs, and compiled code with
    `reduce-overhead`, or the end of another graph, would free it while they still use it."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _end_capture_of_random_numbers() -> None:
    """Resets the GPU's random generator, which a failed capture leaves unusable in capture mode."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
