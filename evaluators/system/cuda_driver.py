"""The few calls of the CUDA driver that torch does not offer: memory between processes, gates on a stream,
and which GPU there is."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = 2
PINNED, DESCRIPTOR, DEVICE, READ_AND_WRITE = 1, 1, 1, 3
"""The driver's numbers for a kind of memory, a kind of handle, a kind of place, and what may be done."""
PAGE = 2 * 2**20
MAJOR, MINOR = 75, 76
"""Of the compute capability."""
ABOUT_GPUS, DEVICE_FILES = Path("/proc/driver/nvidia/gpus"), Path("/dev")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that a process gets when it asks for none by its number."""

    architecture: str
    """Its compute capability, "9.0"."""
    variables: dict[str, str]
    """What makes a process see it alone, whichever GPUs that process may open."""
    files: tuple[str, ...]
    """The device files to open: its own and the driver's."""
    number: int
    """Its place among the GPUs of this machine, as far as the driver tells."""

    @property
    def uuid(self) -> str:
        """`GPU-…`; "" of a part of a GPU."""
        return self.variables.get("CUDA_VISIBLE_DEVICES", "")


def first_gpu(environment: Mapping[str, str]) -> Gpu:
    """For processes with this environment. Asked of the driver in a process of its own, since this one does
    not touch it. Raises OSError where there is none."""
    try:
        said = subprocess.run(
            [sys.executable, "-P", __file__], env=environment, capture_output=True, text=True, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"the GPU's driver does not answer: {error.stderr.strip()[-500:]}") from error
    about = json.loads(said)
    parts = environment.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG")  # of a GPU, with names of their own
    number = _number_of(about["bus"])
    return Gpu(
        architecture=about["architecture"],
        variables={} if parts else {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid.UUID(about['uuid'])}"},
        files=_files_of(None if parts else number),
        number=number or 0,
    )


def _number_of(bus: str, about: Path = ABOUT_GPUS) -> int | None:
    """Of the GPU at this place on the bus, as its device file has it."""
    try:
        minor = re.search(r"Device Minor:\s*(\d+)", (about / bus.lower() / "information").read_text())
    except OSError:
        return None
    return int(minor[1]) if minor else None


def _files_of(number: int | None, devices: Path = DEVICE_FILES) -> tuple[str, ...]:
    """All but those of other GPUs; all where it is not known which is which."""
    files = sorted(str(path) for path in devices.glob("nvidia*"))
    if number is None:
        return tuple(files)
    others = re.compile(rf"nvidia(?!{number}$)\d+")
    return tuple(path for path in files if not others.fullmatch(Path(path).name))


def _describe_first() -> dict[str, str]:
    _check("cuInit", (ctypes.c_uint(0),))
    number, device = ctypes.c_int(), ctypes.c_int()
    _check("cuDeviceGet", (ctypes.byref(device), ctypes.c_int(0)))
    capability = []
    for attribute in (MAJOR, MINOR):
        _check("cuDeviceGetAttribute", (ctypes.byref(number), attribute, device))
        capability.append(str(number.value))
    identity, bus = ctypes.create_string_buffer(16), ctypes.create_string_buffer(32)
    _check("cuDeviceGetUuid_v2", (identity, device))
    _check("cuDeviceGetPCIBusId", (bus, 32, device))
    return {"architecture": ".".join(capability), "uuid": identity.raw.hex(), "bus": bus.value.decode()}


def call(function: str, *arguments: Any) -> None:
    """Calls the driver in the context that torch has made current. Raises MemoryError or RuntimeError."""
    import torch

    torch.cuda.current_stream().synchronize()  # makes torch's primary context current in this thread
    _check(function, arguments)


def allocate_shareable(size: int) -> tuple[int, int]:
    """Device memory that another process can map: address and file descriptor, in units of 2 MiB. Memory
    opened by a legacy IPC handle was read up to a third slower on one H200 (sums over 20 GB), on another not.
    Raises MemoryError or RuntimeError."""
    handle = ctypes.c_uint64()
    what = _Allocation(type=PINNED, handle_types=DESCRIPTOR, location=_here())
    call("cuMemCreate", ctypes.byref(handle), _in_pages(size), ctypes.byref(what), ctypes.c_uint64(0))
    fd = ctypes.c_int()
    try:
        call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, DESCRIPTOR, ctypes.c_uint64(0))
        return _map(handle, size), fd.value
    finally:
        call("cuMemRelease", handle)


def open_shareable(fd: int, size: int) -> int:
    """The address at which this process has the memory of that descriptor. Raises RuntimeError."""
    handle = ctypes.c_uint64()
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), DESCRIPTOR)
    try:
        return _map(handle, size)
    finally:
        call("cuMemRelease", handle)


def free_shareable(address: int, size: int) -> None:
    """Ends this process's mapping; the memory is free when nobody has it mapped."""
    call("cuMemUnmap", ctypes.c_uint64(address), _in_pages(size))
    call("cuMemAddressFree", ctypes.c_uint64(address), _in_pages(size))


def _map(handle: ctypes.c_uint64, size: int) -> int:
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    call("cuMemAddressReserve", ctypes.byref(address), _in_pages(size), ctypes.c_size_t(0), none, none)
    call("cuMemMap", address, _in_pages(size), ctypes.c_size_t(0), handle, none)
    access = _Access(location=_here(), flags=READ_AND_WRITE)
    call("cuMemSetAccess", address, _in_pages(size), ctypes.byref(access), ctypes.c_size_t(1))
    return address.value


def _in_pages(size: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(-(-size // PAGE) * PAGE)


def _here() -> _Location:
    import torch

    return _Location(type=DEVICE, id=torch.cuda.current_device())


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    ]


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_describe_first()))
