"""The few CUDA driver calls that torch does not offer: memory shared between processes, waiting on a stream,
and which GPU this machine has."""

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
"""The driver's constants for a memory type, a handle type, a location type and an access mode."""
PAGE = 2 * 2**20
MAJOR, MINOR = 75, 76
"""Attributes of the compute capability."""
GPU_INFO, DEVICE_FILES = Path("/proc/driver/nvidia/gpus"), Path("/dev")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that a process gets if it does not ask for a particular one."""

    architecture: str
    """Compute capability, "9.0"."""
    variables: dict[str, str]
    """Environment variables that make a process see only this GPU, whichever device files it may open."""
    files: tuple[str, ...]
    """Device files to open: the GPU's own and the driver's."""
    number: int
    """Its index among this machine's GPUs; 0 if the driver does not tell."""
    name: str = ""
    """The name of the device, as torch reports it."""

    @property
    def uuid(self) -> str:
        """`GPU-…`; "" for a MIG slice."""
        return self.variables.get("CUDA_VISIBLE_DEVICES", "")


def first_gpu(environment: Mapping[str, str]) -> Gpu:
    """The first GPU for processes with this environment. A separate process asks the driver, because this one
    must not touch it. Raises OSError if there is none."""
    try:
        output = subprocess.run(
            [sys.executable, "-P", __file__], env=environment, capture_output=True, text=True, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"the GPU driver does not answer: {error.stderr.strip()[-500:]}") from error
    facts = json.loads(output)
    mig = environment.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG")  # MIG slices have their own names
    number = _device_minor(facts["bus"])
    return Gpu(
        architecture=facts["architecture"],
        variables={} if mig else {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid.UUID(facts['uuid'])}"},
        files=_device_files(None if mig else number),
        number=number or 0,
        name=facts["name"],
    )


def _device_minor(bus: str, info: Path = GPU_INFO) -> int | None:
    """Minor number of the GPU at this bus address, as in the name of its device file."""
    try:
        minor = re.search(r"Device Minor:\s*(\d+)", (info / bus.lower() / "information").read_text())
    except OSError:
        return None
    return int(minor[1]) if minor else None


def _device_files(number: int | None, devices: Path = DEVICE_FILES) -> tuple[str, ...]:
    """All device files except those of other GPUs; all if this GPU's number is unknown."""
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
    name = ctypes.create_string_buffer(256)
    _check("cuDeviceGetUuid_v2", (identity, device))
    _check("cuDeviceGetPCIBusId", (bus, 32, device))
    _check("cuDeviceGetName", (name, 256, device))
    return {
        "architecture": ".".join(capability),
        "uuid": identity.raw.hex(),
        "bus": bus.value.decode(),
        "name": name.value.decode(),
    }


def call(function: str, *arguments: Any) -> None:
    """Calls the driver in the context that torch has made current. Raises MemoryError or RuntimeError."""
    import torch

    torch.cuda.current_stream().synchronize()  # makes torch's primary context current in this thread
    _check(function, arguments)


def allocate_shareable(size: int) -> tuple[int, int]:
    """Allocates device memory that another process can map, in units of 2 MiB; returns its address and a file
    descriptor. Memory opened by a legacy IPC handle was read up to a third slower on one H200 (sums over 20
    GB), on another it was not. Raises MemoryError or RuntimeError."""
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
    """Maps the memory behind this descriptor; returns its address. Raises RuntimeError."""
    handle = ctypes.c_uint64()
    call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), DESCRIPTOR)
    try:
        return _map(handle, size)
    finally:
        call("cuMemRelease", handle)


def free_shareable(address: int, size: int) -> None:
    """Unmaps the memory in this process. It is freed once no process maps it."""
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
    """Work queued on the stream after this call waits until the 32-bit word at `address` (device memory of
    this or another process) is at least `value`. Raises RuntimeError."""
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
