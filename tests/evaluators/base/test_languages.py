"""A source shows its language by what it imports; builds get what the compilers of all languages read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluators.base.languages import LANGUAGES, build_variables, language_of, languages_for

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("import triton\nimport triton.language as tl\n", "triton"),
        ("from triton.experimental import gluon\nimport triton\n", "gluon"),
        ("import triton\nfrom triton.experimental.gluon import language as gl\n", "gluon"),
        ("import helion\nimport helion.language as hl\n", "helion"),
        ("import torch, helion\n", "cpp"),
        ("import cutlass.cute as cute\n", "cute"),
        ("def f():\n    from cutlass.cute.runtime import from_dlpack\n", "cute"),
        ("import tilelang.language as T\n", "tilelang"),
        ("import cuda.tile as ct\n", "cutile"),
        ("from cuda import tile as ct\n", "cutile"),
        ("import cuda.bindings.driver as cuda\n", "cpp"),
        ("from cuda import nvrtc  # not tile\n", "cpp"),
        ("load_inline(cuda_sources='#include <cutlass/cutlass.h>')", "cuda"),
        ("# import triton\nload_inline(cpp_sources='')", "cpp"),
        ("import tritonic", "cpp"),
    ],
)
def test_imports_show_the_language(source: str, language: str) -> None:
    assert language_of(source) == language


def test_build_variables_name_the_architecture() -> None:
    assert build_variables("9.0")["CUTE_DSL_ARCH"] == "sm_90a"
    assert build_variables("12.0")["CUTE_DSL_ARCH"] == "sm_120a"
    assert json.loads(build_variables("8.6")["TILELANG_DEFAULT_TARGET"]) == {"kind": "cuda", "arch": "sm_86"}


def test_every_language_says_what_it_is_good_at_in_one_line() -> None:
    for name, each in LANGUAGES.items():
        assert name == each.name and 10 < len(each.good_at) < 100 and "\n" not in each.good_at
        assert bool(each.modules) == bool(each.install) == bool(each.package)
    assert [each.name for each in languages_for("cpu")] == ["cpp"]


def test_the_documentation_lists_every_language() -> None:
    page = (ROOT / "docs/reference/languages.md").read_text(encoding="utf-8")
    for name, each in LANGUAGES.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {each.title} | `{name}` |"))
        devices = {"cpu": "CPUs", "cuda": "GPUs"}[each.device]
        lowest = " from " + ".".join(map(str, each.capability)) if any(each.capability) else ""
        assert f"| {devices}{lowest} |" in row
        assert f"| {each.good_at} |" in row and (not each.install or f"`{each.install}`" in row)
