"""A GPU's clocks, temperature and power, as the driver's library NVML tells them: no context on the device is
needed for it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SM, MEMORY, ON_DIE = 1, 2, 0
"""NVML's numbers for the clocks of the SMs and of the memory, and for the sensor."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """At one moment: clocks in MHz, temperature in degrees Celsius, power in W; None where it is not told."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None

    def text(self) -> str:
        """In a line, from which `from_text` restores it: `sm_mhz=1980 power_w=98.5`."""
        return " ".join(f"{name}={value:g}" for name, value in asdict(self).items() if value is not None)

    @classmethod
    def from_text(cls, text: str) -> GpuState:
        """The inverse of `text`. Raises ValueError for another text."""
        found = dict(each.split("=", 1) for each in text.split())
        if found.keys() - {each.name for each in fields(cls)}:
            raise ValueError(f"no state of a GPU: {text}")
        read: dict[str, Any] = {
            name: float(value) if name == "power_w" else int(value) for name, value in found.items()
        }
        return cls(**read)


def state_of(gpu: str, library: Any = None) -> GpuState:
    """Of the GPU with this UUID (`GPU-…`). `library`: NVML, where it is another than this machine's."""
    nvml = _nvml() if library is None else library
    device = ctypes.c_void_p()
    if nvml is None or nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(device)) != 0:
        return GpuState()

    def number(function: Callable[..., int], *which: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if function(device, *which, ctypes.byref(value)) == 0 else None

    milliwatts = number(nvml.nvmlDeviceGetPowerUsage)
    return GpuState(
        sm_mhz=number(nvml.nvmlDeviceGetClockInfo, SM),
        memory_mhz=number(nvml.nvmlDeviceGetClockInfo, MEMORY),
        temperature_c=number(nvml.nvmlDeviceGetTemperature, ON_DIE),
        power_w=None if milliwatts is None else milliwatts / 1e3,
    )


@functools.cache
def _nvml() -> Any:
    """The library, started; None where there is none, or it does not start."""
    try:
        library = ctypes.CDLL(LIBRARY)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
