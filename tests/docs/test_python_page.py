"""The Python interface as its page shows it: every block of the page is run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evaluators.device.child_processes import thread_variables

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "guides" / "python.md"


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.slow
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # Beside other tests two threads would wait, spinning, for one another.
    monkeypatch.setattr("evaluators.device.worker.thread_variables", lambda on, _: thread_variables(on, 1))
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


def test_the_block_on_frames_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(DOCS / "guides" / "report.md"):
        exec(compile(block, "report.md", "exec"), {})
    assert "13748ec83f40" in capsys.readouterr().out
