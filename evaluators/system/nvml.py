"""A GPU's clocks, temperature and power, read through NVML, which needs no context on the device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """A GPU's state at one moment, each value None if NVML does not report it.

    Attributes:
        sm_mhz: clock of the SMs in MHz.
        memory_mhz: clock of the memory in MHz.
        temperature_c: temperature in degrees Celsius.
        power_w: power draw in W.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None

    def text(self) -> str:
        """One line, such as `sm_mhz=1980 power_w=98.5`, which `from_text` reads."""
        return " ".join(f"{name}={value:g}" for name, value in asdict(self).items() if value is not None)

    @classmethod
    def from_text(cls, text: str) -> GpuState:
        """The inverse of `text`. Raises ValueError for any other text."""
        found = dict(each.split("=", 1) for each in text.split())
        if found.keys() - {each.name for each in fields(cls)}:
            raise ValueError(f"not the state of a GPU: {text}")
        read: dict[str, Any] = {
            name: float(value) if name == "power_w" else int(value) for name, value in found.items()
        }
        return cls(**read)


def state_of(gpu: str) -> GpuState:
    """The state of the GPU with this UUID (`GPU-…`); empty without a driver, or if there is no such GPU."""
    import pynvml

    def number(function: Callable[..., int], *which: int) -> int | None:
        with contextlib.suppress(pynvml.NVMLError):
            return function(device, *which)
        return None

    try:
        _start_nvml()
        device = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    except pynvml.NVMLError:
        return GpuState()
    milliwatts = number(pynvml.nvmlDeviceGetPowerUsage)
    return GpuState(
        sm_mhz=number(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        memory_mhz=number(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        temperature_c=number(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1e3,
    )


@functools.cache
def _start_nvml() -> None:
    import pynvml

    pynvml.nvmlInit()
