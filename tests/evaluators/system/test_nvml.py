"""What NVML tells of a GPU, asked of a stand-in for the library."""

from __future__ import annotations

from typing import Any

import pytest

from evaluators.system import nvml
from evaluators.system.nvml import GpuState, state_of

NOT_SUPPORTED = 3
GPU = "GPU-00000000-0000-0000-0000-000000000001"


class Library:
    """Has one GPU, some of whose figures it may not tell."""

    def __init__(self, *silent: str) -> None:
        self._silent = silent

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:  # noqa: N802  (its name)
        device._obj.value = 7
        return 0 if uuid == GPU.encode() else NOT_SUPPORTED

    def nvmlDeviceGetClockInfo(self, device: Any, which: int, clock: Any) -> int:  # noqa: N802
        return self._tell("clock", clock, {1: 1980, 2: 2619}[which])

    def nvmlDeviceGetTemperature(self, device: Any, sensor: int, degrees: Any) -> int:  # noqa: N802
        return self._tell("temperature", degrees, {0: 41}[sensor])

    def nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> int:  # noqa: N802
        return self._tell("power", milliwatts, 98_500)

    def _tell(self, what: str, place: Any, value: int) -> int:
        place._obj.value = value
        return NOT_SUPPORTED if what in self._silent else 0


def test_the_state_has_the_units_that_its_names_say() -> None:
    found = state_of(GPU, Library())
    assert found == GpuState(sm_mhz=1980, memory_mhz=2619, temperature_c=41, power_w=98.5)
    assert found.text() == "sm_mhz=1980 memory_mhz=2619 temperature_c=41 power_w=98.5"
    assert GpuState.from_text(found.text()) == found


def test_what_is_not_told_is_left_out() -> None:
    found = state_of(GPU, Library("power", "clock"))
    assert found == GpuState(temperature_c=41)
    assert GpuState.from_text(found.text()) == found


def test_nothing_is_told_without_the_library_or_of_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of("MIG-1", Library()) == GpuState() == GpuState.from_text("")
    monkeypatch.setattr(nvml, "LIBRARY", "libof-no-machine.so.1")
    nvml._nvml.cache_clear()
    assert state_of(GPU) == GpuState()
    nvml._nvml.cache_clear()


@pytest.mark.parametrize("text", ["canary_ms=1", "sm_mhz", "sm_mhz=fast"])
def test_another_text_is_no_state(text: str) -> None:
    with pytest.raises(ValueError):
        GpuState.from_text(text)
