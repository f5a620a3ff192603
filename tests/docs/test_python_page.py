"""The Python interface as its page shows it: every block of the page is run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.slow
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["evaluation"].status == "correct"
    assert [each.status.value for each in names["found"]][:2] == ["correct", "incorrect"]
    assert [each.status.value for each in names["verdicts"]] == ["correct", "incorrect"]
    assert names["run"].reason == "rounds"
    assert names["y"].shape == (64, 65536)
    said = capsys.readouterr().out
    assert "level1/conv2d rounds" in said
    assert "softmax/cpp cpp level1/softmax" in said
