"""The Python interface as its page shows it: every block of the page is run, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ideatree
from evaluators.device.child_processes import thread_variables
from evaluators.device.settings import Settings
from evaluators.scheduler.local_host import LocalHost

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "guides" / "python.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


class KeptHost(LocalHost):
    """Stays open when a block of the page ends, for the next block that asks for the same settings."""

    def close(self, *, now: bool = False) -> None:
        pass


@pytest.fixture
def kept_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two blocks of the page start evaluators with equal settings; they share the processes."""
    hosts: dict[str, KeptHost] = {}

    def host(*, settings: Settings, on_gpu: bool) -> KeptHost:
        key = f"{settings} {on_gpu}"
        if key not in hosts:
            hosts[key] = KeptHost(settings=settings, on_gpu=on_gpu)
        return hosts[key]

    monkeypatch.setattr("ideatree.evaluator.LocalHost", host)
    yield
    for each in hosts.values():
        LocalHost.close(each)


def measure_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's calls with fewer inputs and shorter final measurements: its times do not matter here."""
    plan = ideatree.Plan(block_ms=4.0, precision=0.2, max_s=0.2)
    search = ideatree.search

    def short_search(*problem: Any, evaluator: dict[str, Any] | None = None, **keys: Any) -> ideatree.Run:
        if evaluator:
            keys |= {"evaluator": evaluator | {"max_calls": 4, "threads": 1}, "comparisons": 0}
        return search(*problem, **keys)

    monkeypatch.setattr(ideatree, "search", short_search)
    monkeypatch.setattr(ideatree, "Settings", partial(ideatree.Settings, max_calls=4, thorough_plan=plan))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_hosts")
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Beside other tests two threads would wait, spinning, for one another.
    monkeypatch.setattr("evaluators.device.worker.thread_variables", lambda on, _: thread_variables(on, 1))
    measure_shortly(monkeypatch)
    names: dict[str, Any] = {}
    for block in blocks(PAGE):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["evaluation"].status == "correct"
    assert [each.status.value for each in names["found"]][:2] == ["correct", "incorrect"]
    assert [each.status.value for each in names["verdicts"]] == ["correct", "incorrect"]
    assert names["run"].reason == "rounds"
    assert names["y"].shape == (64, 65536)
    said = capsys.readouterr().out
    assert "level1/conv2d rounds" in said
    assert "softmax/cpp cpp level1/softmax" in said


@pytest.mark.slow
def test_the_block_on_frames_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(DOCS / "guides" / "report.md"):
        exec(compile(block, "report.md", "exec"), {})
    assert "13748ec83f40" in capsys.readouterr().out
