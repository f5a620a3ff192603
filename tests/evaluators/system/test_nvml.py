"""What `state_of` reads from NVML, here a stand-in for the library."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml
import pytest

from evaluators.system.nvml import GpuState, _start_nvml, state_of

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture(autouse=True)
def _nvml_starts_anew() -> Iterator[None]:
    _start_nvml.cache_clear()
    yield
    _start_nvml.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, *unsupported: str) -> None:
    """NVML with one GPU, which does not report the unsupported values."""

    def handle(uuid: str) -> int:
        if uuid != GPU:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 7

    def value(what: str, number: int) -> int:
        if what in unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return number

    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
    sensors = {pynvml.NVML_TEMPERATURE_GPU: 41}
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda device, which: value("clock", clocks[which]))
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetTemperature", lambda device, sensor: value("temperature", sensors[sensor])
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda device: value("power", 98_500))


def test_the_state_has_the_units_that_its_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    found = state_of(GPU)
    assert found == GpuState(sm_mhz=1980, memory_mhz=2619, temperature_c=41, power_w=98.5)
    assert found.text() == "sm_mhz=1980 memory_mhz=2619 temperature_c=41 power_w=98.5"
    assert GpuState.from_text(found.text()) == found


def test_values_that_are_not_reported_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "power", "clock")
    found = state_of(GPU)
    assert found == GpuState(temperature_c=41)
    assert GpuState.from_text(found.text()) == found


def test_the_state_is_empty_without_a_driver_or_for_an_unknown_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert state_of("MIG-1") == GpuState() == GpuState.from_text("")

    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    _start_nvml.cache_clear()
    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert state_of(GPU) == GpuState()


@pytest.mark.parametrize("text", ["canary_ms=1", "sm_mhz", "sm_mhz=fast"])
def test_another_text_is_no_state(text: str) -> None:
    with pytest.raises(ValueError):
        GpuState.from_text(text)
