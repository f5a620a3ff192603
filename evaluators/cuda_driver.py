"""The few calls of the CUDA driver that torch does not offer: memory between processes, gates on a stream."""

from __future__ import annotations

import ctypes
from typing import Any

OUT_OF_MEMORY = 2


def call(function: str, *arguments: Any) -> None:
    """Calls the driver in the context that torch has made current. Raises MemoryError or RuntimeError."""
    import torch

    torch.cuda.current_stream().synchronize()  # makes torch's primary context current in this thread
    _check(function, arguments)


def wait_on_stream(stream: int, address: int, value: int) -> None:
    """Work queued on the stream after this waits until the 32-bit word at `address` (device memory, of this
    process or another's) is at least `value`. Raises RuntimeError."""
    _check(
        "cuStreamWaitValue32_v2",
        (ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_uint(0)),
    )


def _check(function: str, arguments: tuple[Any, ...]) -> None:
    status = getattr(ctypes.CDLL("libcuda.so.1"), function)(*arguments)
    if status == OUT_OF_MEMORY:
        raise MemoryError(f"{function}: out of device memory")
    if status != 0:
        raise RuntimeError(f"{function} failed with CUDA driver error {status}")
