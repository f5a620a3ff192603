"""What the C++ templates take the machine for: its vectors, within the limit that PyTorch is given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from search.proposers.playbook.templates.cpp import machine, pieces
from tests.search.proposers.playbook.templates.cpp.test_contract import PROBLEMS, known

AVX512 = "flags : sse2 avx fma avx2 avx512f avx512bw avx512_bf16 amx_tile"
FAST = {"flags": pieces.FAST, "threads": False}


@pytest.fixture(autouse=True)
def _x86(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda path: AVX512)
    machine.processor_features.cache_clear()
    yield
    machine.processor_features.cache_clear()


def test_without_a_limit_everything_is_used() -> None:
    assert all(map(machine.has, ("avx2", "avx512f", "avx512_bf16")))
    assert machine.registers() == 32
    assert pieces.flags(FAST) == "-O3 -march=native -shared -fPIC"


def test_pytorchs_limit_holds_for_the_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert machine.has("avx2")
    assert not any(map(machine.has, ("avx512f", "avx512_bf16", "amx_tile")))
    assert machine.registers() == 16
    assert pieces.flags(FAST) == "-O3 -march=native -mno-avx512f -shared -fPIC"
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert machine.has("sse2")
    assert not any(map(machine.has, ("avx", "avx2", "fma")))
    assert "-mno-avx " in pieces.flags(FAST)


def test_flags_for_any_machine_need_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert pieces.flags({"flags": "-O2", "threads": False}) == "-O2 -shared -fPIC"


def test_an_arm_processor_has_no_such_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(Path, "read_text", lambda path: "Features : fp asimd")
    machine.processor_features.cache_clear()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert machine.registers() == 32
    assert pieces.flags(FAST) == "-O3 -march=native -shared -fPIC"


def test_a_tile_fits_the_registers_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, template = known(PROBLEMS["plain"])
    knobs = {**template.naive, "algorithm": "direct", "tile_q": 8, "tile_k": 3}
    assert template.valid(workload, knobs)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert not template.valid(workload, knobs)
    assert template.valid(workload, {**knobs, "tile_q": 4, "tile_k": 3})
