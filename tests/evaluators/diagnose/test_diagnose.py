"""The command: its output and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluators.diagnose.__main__ import main
from evaluators.records.diagnosis import Diagnosis
from tests.evaluators.device.kernels import HONEST, REFERENCE, forward
from tests.evaluators.diagnose.measured import PLANTED

pytestmark = pytest.mark.slow

QUICK = (
    "device=cpu",
    "problem.libraries=any",
    "evaluator.threads=1",
    "evaluator.max_calls=8",
    "evaluator.plan.block_ms=4",
    "evaluator.plan.precision=0.2",
    "evaluator.plan.max_s=0.2",
)
ON_GPU = {
    "bank_conflicts": ("transpose", "float32", "bank conflicts", {"counters"}),
    "spills": ("polynomial", "float32", "spills", {"counters", "static"}),
    "launch_bound": ("scale", "float32", "launch-bound", {"counters", "trace"}),
    "idle_tensor_cores": ("matmul", "float16", "tensor cores idle", {"counters", "static"}),
}
"""By kernel: its problem, its dtype, its fault, and the levels of which one has to be reached to see it."""


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """The arguments for the small problem, and a kernel that is to be written to `kernel.py`."""
    (tmp_path / "reference.py").write_text(REFERENCE)
    paths = [f"problem.path={tmp_path / 'reference.py'}", f"kernel={tmp_path / 'kernel.py'}"]
    return ["problem=file", *paths, *QUICK]


def test_a_correct_kernel_gets_its_diagnosis(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    assert main([*call, "json=true"]) == 0
    captured = capsys.readouterr()
    found = Diagnosis.from_json(json.loads(captured.out.splitlines()[-1]))
    assert found.reached == ("static", "trace")
    assert found.call_us is not None
    assert "correct" in captured.err


def test_a_wrong_kernel_gets_its_verdict(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(forward("return 1 + honest(self, x)"))
    assert main(call) == 1
    assert "incorrect" in capsys.readouterr().out


def test_without_an_evaluation_the_code_is_diagnosed(
    call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    assert main([*call, "evaluate=false", "profile=static"]) == 0
    assert "Profile; levels: static." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("profile=deep", "profile"),
        ("profile=off", "profile"),
        ("profile_timeout_s=0", "profile_timeout_s is 0"),
        ("language=tritn", "did you mean triton?"),
    ],
)
def test_a_wrong_call_prints_one_line(
    change: str, said: str, call: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.py").write_text(HONEST)
    assert main([*call, change]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_GPU)
def test_a_planted_fault_is_named_on_a_gpu(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With whatever levels this machine allows. The static and the trace level need no permission."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    problem, dtype, fault, levels = ON_GPU[name]
    arguments = [
        "problem=file",
        f"problem.path={PLANTED / f'{problem}_problem.py'}",
        f"problem.dtype={dtype}",
        "problem.libraries=any",
        f"kernel={PLANTED / f'{name}.py'}",
        "device=cuda",
        "json=true",
    ]
    assert main(arguments) == 0
    found = Diagnosis.from_json(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert {"static", "trace"} <= set(found.reached), found.missing
    assert "counters" in found.reached or found.missing["counters"]
    if levels & set(found.reached):
        assert found.findings[0].name == fault, found.text()
    assert found.times[0].mean_us > 0
    assert found.call_us is not None
