"""The builder reads the resources of compiled functions, whatever the binaries and the tool are like."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.build import builder as build_module
from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import Build, build
from evaluators.records.problem import Kernel
from tests.evaluators.build.builds import GEMM, PRINTS, PROBLEM, with_tool

pytestmark = [pytest.mark.usefixtures("one_fork_server"), pytest.mark.slow]


def built(root: Path, tool: str, *, architecture: str = "9.0", cache: BuildCache | None = None) -> Build:
    """The build of a kernel that `with_tool` returns."""
    kernel = Kernel(source=with_tool(tool), language="cuda")
    return build(PROBLEM, kernel, root=root, architecture=architecture, timeout_s=60, cache=cache)


@pytest.mark.core
def test_a_build_for_a_gpu_knows_its_resources(root: Path) -> None:
    done = built(root, PRINTS)
    assert (done.status, done.resources) == (None, (GEMM,))
    assert done.archive


def test_a_build_for_a_cpu_has_none(root: Path) -> None:
    assert built(root, PRINTS, architecture="").resources == ()


def test_a_cached_build_still_knows_them(root: Path, tmp_path: Path) -> None:
    cache = BuildCache(folder=tmp_path / "builds")
    first = built(root, PRINTS, cache=cache)
    again = built(root, PRINTS, cache=cache)
    assert again.archive == first.archive
    assert again.resources == (GEMM,)


@pytest.mark.parametrize("tool", ["exit 1", "echo nonsense", "kill -9 $PPID", "rm -- $2"])
def test_a_tool_that_fails_leaves_the_build_as_it_is(root: Path, tool: str) -> None:
    done = built(root, tool)
    assert (done.status, done.log, done.resources) == (None, "", ())
    assert done.archive


def test_a_tool_that_hangs_is_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "RESOURCES_S", 0.3)
    done = built(root, "sleep 600")
    assert (done.status, done.resources) == (None, ())
    assert done.archive
