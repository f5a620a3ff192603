"""The command: its output and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluators.probe.__main__ import main
from evaluators.records.probe import Probe, ProbeStatus
from tests.evaluators.device.kernels import REFERENCE, forward
from tests.evaluators.diagnose.test_diagnose import QUICK

pytestmark = pytest.mark.slow


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """The arguments for the small problem, and a probe that is to be written to `kernel.py`."""
    (tmp_path / "reference.py").write_text(REFERENCE)
    paths = [f"problem.path={tmp_path / 'reference.py'}", f"kernel={tmp_path / 'kernel.py'}"]
    return ["problem=file", *paths, *QUICK]


def test_a_probe_gets_its_time(call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.py").write_text(forward("return None"))
    assert main([*call, "json=true"]) == 0
    found = Probe.from_json(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert found.status is ProbeStatus.TIMED


def test_a_probe_that_fails_has_no_time(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(forward("raise ValueError('too wide')"))
    assert main(call) == 1
    said = capsys.readouterr().out
    assert said.startswith("runtime_error: ") and "too wide" in said
    assert "outputs were not compared" in said


def test_a_wrong_call_prints_one_line(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*call, "language=tritn"]) == 2
    assert "did you mean triton?" in capsys.readouterr().err
