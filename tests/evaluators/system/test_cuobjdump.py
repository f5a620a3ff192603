"""What is read of the output of `cuobjdump`, and how it is found and run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from evaluators.records.resources import MOST_FUNCTIONS, FunctionResources
from evaluators.system.cuobjdump import binaries_below, most_registers, parse_resources, resources_below

RESOURCES = """
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
host = linux
compile_size = 64bit

Resource usage:
 Common:
  GLOBAL:3 CONSTANT[4]:16
 Function _ZN35_GLOBAL__N__48087d81_4_a_cu__Z3reci6hiddenEPf:
  REG:10 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z4gemmIfLi128EEvPT_:
  REG:10 STACK:0 SHARED:1536 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function plain:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _Z5localPi:
  REG:32 STACK:2000 SHARED:0 LOCAL:16 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN3cub17CUB_300001_SM_90018DeviceReduceKernelIfEEvPT_:
  REG:96 STACK:0 SHARED:2048 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin ptx code:
================
"""
"""Of `cuobjdump` 13.5 on a library that nvcc 13.0 compiled, but for the last function and one LOCAL."""
FUNCTIONS = [
    FunctionResources(name="local", registers=32, stack_bytes=2016),
    FunctionResources(name="gemm<float, 128>", registers=10, shared_bytes=1536),
    FunctionResources(name="hidden", registers=10),
    FunctionResources(name="plain", registers=8),
]


def with_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, output: str = RESOURCES) -> None:
    """Installs a `cuobjdump` in the folder that prints this about every binary."""
    tool = folder / "cuda/bin/cuobjdump"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\ntest $1 = -res-usage && cat <<'END'\n{output}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))


def test_resources_are_read() -> None:
    gemm, local = (parse_resources(RESOURCES)[number] for number in (1, 3))
    assert gemm == FunctionResources(name="_Z4gemmIfLi128EEvPT_", registers=10, shared_bytes=1536)
    assert (local.registers, local.stack_bytes, local.shared_bytes) == (32, 2016, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cuobjdump info    : File 'a.so' does not contain device code",
        " Function f:\n  STACK:8 SHARED:0",
        " Function f:\n  REG:99999999999 STACK:8",
        " Function f\n  REG:9 STACK:8",
        " Function f:",
    ],
)
def test_other_output_has_no_resources(text: str) -> None:
    assert parse_resources(text) == []


def test_names_are_short_and_those_of_headers_are_left_out() -> None:
    assert most_registers(parse_resources(RESOURCES)) == FUNCTIONS


def test_functions_with_the_most_registers_are_kept_once() -> None:
    many = [FunctionResources(name=f"f{n}", registers=n) for n in (*range(1, 40), *range(1, 40))]
    found = most_registers(many)
    assert [each.registers for each in found] == [*range(39, 39 - MOST_FUNCTIONS, -1)]


def test_an_autotuners_versions_of_a_function_are_all_there() -> None:
    versions = [FunctionResources(name="f", registers=n) for n in (40, 64, 40)]
    assert most_registers(versions) == [versions[1], versions[0]]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_ZN7cutlass6KernelI3FooEEvNT_6ParamsE", "cutlass::Kernel<Foo>"),
        ("_Zno_mangled_name", "_Zno_mangled_name"),
        ("f(void (*)(int), g(3))", "f"),
        ("f)", "f)"),
        ("f\x1b[2J\ud800g", "f?[2J?g"),
        ("f" * 300, "f" * 50 + "…" + "f" * 50),
    ],
)
def test_any_name_becomes_short_and_printable(name: str, short: str) -> None:
    (found,) = most_registers([FunctionResources(name=name, registers=1)])
    assert found.name == short


@pytest.mark.parametrize(("architecture", "reserved"), [("8.6", 0), ("9.0", 1024), ("12.0", 1024)])
def test_shared_memory_is_without_what_the_system_reserves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, reserved: int
) -> None:
    with_tool(tmp_path, monkeypatch)
    (tmp_path / "built/deep").mkdir(parents=True)
    (tmp_path / "built/deep/a.so").touch()
    found = resources_below(tmp_path / "built", architecture)
    assert [each.name for each in found] == [each.name for each in FUNCTIONS]
    assert [each.shared_bytes for each in found] == [0, 1536 - reserved, 0, 0]


def test_without_binaries_or_without_the_tool_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_tool(tmp_path, monkeypatch)
    assert resources_below(tmp_path, "9.0") == []
    (tmp_path / "a.cubin").touch()
    assert len(resources_below(tmp_path, "9.0")) == len(FUNCTIONS)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert resources_below(tmp_path, "9.0") == []


def test_tritons_binaries_come_first(tmp_path: Path) -> None:
    for name in ("a.so", "z.cubin", "b.txt"):
        (tmp_path / name).touch()
    assert [each.name for each in binaries_below(tmp_path)] == ["z.cubin", "a.so"]
