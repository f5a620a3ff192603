"""The command for one kernel: its output and its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluators.base.languages import language_of
from evaluators.evaluate.__main__ import main
from evaluators.isolation.scratch import scratch_root
from evaluators.records.evaluation import Evaluation, Status
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, REFERENCE, forward

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
QUICK = (
    "device=cpu",
    "problem.libraries=any",
    "thorough=false",
    "evaluator.threads=1",
    "evaluator.max_calls=8",
    "evaluator.plan.block_ms=4",
    "evaluator.plan.precision=0.2",
    "evaluator.plan.max_s=0.2",
)


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """The arguments for the small problem, and a kernel that is to be written to `kernel.py`."""
    (tmp_path / "reference.py").write_text(REFERENCE)
    paths = [f"problem.path={tmp_path / 'reference.py'}", f"kernel={tmp_path / 'kernel.py'}"]
    return ["problem=file", *paths, *QUICK]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["problem=level1/softmx"], "did you mean level1/softmax?"),
        (["kernl=a.py"], "did you mean kernel?"),
        (["kernel=kernels.py"], "did you mean"),
        (["language=tritn"], "did you mean triton?"),
        (["device=cud"], "did you mean cuda?"),
        (["repeat=0"], "repeat is 0"),
        (["json=maybe"], "json is maybe"),
        (["evaluator.timeout_s=-1"], "evaluator.timeout_s"),
        (["problem=file"], "problem.path is not set"),
    ],
    ids=str,
)
def test_a_wrong_call_prints_one_line(
    change: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    change = [each.replace("kernel=", f"kernel={tmp_path}/") for each in change]
    given = {each.partition("=")[0]: each for each in [f"kernel={tmp_path / 'kernel.py'}", "device=cpu"]}
    given = {"problem": "problem=level1/softmax"} | given
    given |= {each.partition("=")[0]: each for each in change}
    assert main(list(given.values())) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_a_kernel_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"\xff\xfe\x00", b" \n"):
        (tmp_path / "kernel.py").write_bytes(content)
        assert main(["problem=level1/softmax", f"kernel={tmp_path / 'kernel.py'}", "device=cpu"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("import torch\nimport triton.language as tl", "triton"),
        ("def f():\n    from triton import jit", "triton"),
        ("load_inline(name='x', cpp_sources=a, cuda_sources=b)", "cuda"),
        ("load_inline(name='x', cpp_sources=a)", "cpp"),
        ("# no need to import triton", "cpp"),
    ],
)
def test_the_language_is_guessed_from_the_source(source: str, language: str) -> None:
    assert language_of(source) == language


@pytest.mark.core
def test_a_verdict_to_read(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], marked: Marked
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    assert main([*call, "repeat=2"]) == 0
    captured = capsys.readouterr()
    first, second, correct, median = captured.out.splitlines()
    assert first.startswith("1: correct ")
    assert second.startswith("2: correct ")
    assert correct == "correct 2 of 2"
    assert "against eager" in median
    stages = [line for line in captured.err.splitlines() if line.endswith("…")]
    assert [stages.count(f"{stage} …") for stage in ("building", "measuring", "checking", "timing")] == [
        2
    ] * 4
    assert gone(marked), marked()


@pytest.mark.parametrize(
    ("source", "status"),
    [(forward("return x"), Status.INCORRECT), ("class Model: pass", Status.COMPILE_ERROR)],
)
def test_a_verdict_for_scripts(
    source: str, status: Status, call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(source)
    assert main([*call, "json=true"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert Evaluation.from_json(json.loads(line)).status is status


def test_a_problem_that_cannot_be_run(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    (tmp_path / "reference.py").write_text(REFERENCE.replace("return x\n", "raise ValueError('seven')\n"))
    assert main(call) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(
        "evaluators.evaluate: file/reference: the reference cannot be run: ValueError: seven\n"
    )


def test_ctrl_c_ends_the_command_at_once(call: list[str], tmp_path: Path, marked: Marked) -> None:
    (tmp_path / "kernel.py").write_text(forward("while True: pass"))
    command = [sys.executable, "-m", "evaluators.evaluate", *call]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("checking"):
                break
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 20, "the kernel has 30 s"
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert output == ""
    assert gone(marked), marked()
    assert list(scratch_root("x").parent.glob(f"local-{process.pid}-*")) == []
