"""Peaks of this machine, measured, kept and read again."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluators.reference.cost import machine_peaks
from evaluators.reference.cost.machine_peaks import MachinePeaks, measure_peaks, peaks_of
from tests.evaluators.conftest import H200

MIB = 2**20


@pytest.mark.parametrize(
    ("dtype", "lower", "peak"),
    [
        ("float32", True, 790e12),
        ("bfloat16", False, 790e12),
        ("float16", False, 790e12),
        ("float32", False, 790e12 / 3),
        ("float64", False, 60e12),
        ("float64", True, 790e12),
    ],
)
def test_the_peak_is_that_of_the_precision_that_passes(dtype: str, lower: bool, peak: float) -> None:
    assert H200.peak(dtype, lower=lower) == peak


@pytest.mark.slow
def test_the_peaks_of_this_cpu(tmp_path: Path) -> None:
    cache = tmp_path / "deeper" / "machine_peaks.json"
    precision = torch.get_float32_matmul_precision()
    start = time.process_time()
    found = peaks_of("cpu", cache)
    assert time.process_time() - start < 20  # 5 s on two cores of an EPYC
    assert found.bytes_per_s > 1e9
    assert found.operations_per_s.keys() == {"float32", "float64", "bfloat16"}
    float32, float64 = (found.operations_per_s[dtype] for dtype in ("float32", "float64"))
    assert float32 > float64 / 2 > 1e9  # twice as many of the one, but for what other processes take
    assert found.cache_bytes >= 2**18
    assert torch.get_float32_matmul_precision() == precision
    start = time.process_time()
    assert peaks_of("cpu", cache) == found
    assert time.process_time() - start < 0.5
    assert [path.name for path in cache.parent.iterdir()] == ["machine_peaks.json"]


def fake_measurements(monkeypatch: pytest.MonkeyPatch, *found: MachinePeaks) -> list[MachinePeaks]:
    left = list(found)
    monkeypatch.setattr(machine_peaks, "measure_peaks", lambda device: left.pop(0))
    return left


def test_measuring_again_keeps_the_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(H200, device="cpu", bytes_per_s=1e9, operations_per_s={"float32": 2e9})
    fast = replace(slow, bytes_per_s=2e9, operations_per_s={"float32": 1e9, "float64": 1e9})
    left = fake_measurements(monkeypatch, slow, fast)
    cache = tmp_path / "machine_peaks.json"
    assert peaks_of("cpu", cache) == slow
    better = peaks_of("cpu", cache, again=True)
    assert better.bytes_per_s == 2e9
    assert better.operations_per_s == {"float32": 2e9, "float64": 1e9}
    assert peaks_of("cpu", cache) == better
    assert not left


def test_peaks_that_were_kept_without_the_smallest_kernel_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_peaks, "device_name", lambda device: "a GPU")
    now = replace(H200, bytes_per_s=1e9, empty_kernel_s=2e-6)
    fake_measurements(monkeypatch, H200, now)
    cache = tmp_path / "machine_peaks.json"
    peaks_of("cuda", cache)
    assert peaks_of("cuda", cache) == peaks_of("cuda", cache) == replace(H200, empty_kernel_s=2e-6)


@pytest.mark.parametrize(
    "broken",
    ["", "{", "[]", "null", '{"KEY": 3}', '{"KEY": {"device": "cpu"}}', '{"KEY": {"bytes_per_s": NaN}}'],
)
def test_a_broken_cache_is_a_miss(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "machine_peaks.json"
    fake_measurements(monkeypatch, H200, H200)
    peaks_of("cpu", cache)
    (key,) = json.loads(cache.read_text())
    cache.write_text(broken.replace("KEY", key))
    assert peaks_of("cpu", cache) == H200
    assert json.loads(cache.read_text())[key]["bytes_per_s"] == H200.bytes_per_s


def test_other_machines_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "machine_peaks.json"
    cache.write_text('{"another machine": {}}')
    fake_measurements(monkeypatch, H200)
    peaks_of("cpu", cache)
    assert "another machine" in json.loads(cache.read_text())


def test_an_unwritable_cache_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_measurements(monkeypatch, H200, H200)
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert peaks_of("cpu", tmp_path / "file" / "machine_peaks.json") == H200
    assert "cannot be cached" in caplog.text
    assert peaks_of("cpu", None) == H200


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_peaks_that_no_measurement_gives_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and positive"):
        replace(H200, bytes_per_s=value)
    with pytest.raises(ValueError, match="finite and positive"):
        replace(H200, operations_per_s={"float32": value})
    with pytest.raises(ValueError, match="float32"):
        replace(H200, operations_per_s={})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_peaks_of_this_gpu() -> None:
    measure_peaks("cuda")  # loads the libraries
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()  # by other tests of this process
    start = time.monotonic()
    found = measure_peaks("cuda")
    took_s = time.monotonic() - start
    print(f"{took_s:.2f} s for {found}")
    rates = found.operations_per_s
    assert took_s < 1.5
    assert torch.cuda.memory_reserved() - reserved < 2**30
    assert rates["bfloat16"] > rates["tf32"] > rates["float32"]
    assert found.empty_kernel_s is not None and 0.5e-6 < found.empty_kernel_s < 10e-6
    assert found.cache_bytes > MIB
    if "H200" in torch.cuda.get_device_name(0):
        assert 3.5e12 < found.bytes_per_s < 4.9e12
        assert 650e12 < max(rates["bfloat16"], rates["float16"]) < 990e12
