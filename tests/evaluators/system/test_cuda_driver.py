"""Which GPU a process gets, and through which files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from evaluators.system.cuda_driver import _device_files, _device_minor, first_gpu

BUS = "0000:4A:00.0"


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (folder / name).touch()
    return folder


def names(files: tuple[str, ...]) -> set[str]:
    return {Path(path).name for path in files}


def test_other_gpus_files_are_left_out(devices: Path) -> None:
    assert names(_device_files(1, devices)) == {"nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"}


def test_all_device_files_are_kept_if_the_gpu_is_unknown(devices: Path) -> None:
    found = names(_device_files(None, devices))
    assert found == {"nvidia0", "nvidia1", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-caps"}


@pytest.mark.parametrize(
    ("text", "number"),
    [("Model: \t H200\nDevice Minor: \t 1\nExcluded:\t No\n", 1), ("Model: \t H200\n", None), (None, None)],
)
def test_a_gpus_number_comes_from_the_driver(tmp_path: Path, text: str | None, number: int | None) -> None:
    if text is not None:
        about = tmp_path / BUS.lower()
        about.mkdir()
        (about / "information").write_text(text)
    assert _device_minor(BUS, tmp_path) == number


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
def test_a_missing_gpu_is_an_error_of_one_line() -> None:
    with pytest.raises(OSError, match="the GPU driver does not answer"):
        first_gpu(os.environ)


@pytest.mark.gpu
def test_the_first_gpu_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    found, its = first_gpu(os.environ), torch.cuda.get_device_properties(0)
    assert found.architecture == f"{its.major}.{its.minor}"
    assert found.variables == {"CUDA_VISIBLE_DEVICES": f"GPU-{its.uuid}"}
    assert sum(bool(re.fullmatch(r"/dev/nvidia\d+", path)) for path in found.files) == 1
    assert "/dev/nvidiactl" in found.files
