"""The verification in a child process finds the kernels to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.optimize.extraction.problems import extract
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import write_package
from search.optimize.models.source import FileModel
from search.optimize.verification import launcher
from search.optimize.verification.child_process import progress
from search.optimize.verification.duration import expected_s, plan_line
from search.optimize.verification.launcher import (
    TimeLimit,
    VerificationError,
    VerificationTask,
    failure_reason,
    verify_in_subprocess,
    ways_of,
)
from search.optimize.verification.record import FILE, GRAPH, OPTIMIZED_GRAPH, ModelCheck, Verification
from search.optimize.verification.summary import report_lines
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.installation.test_package import kernels_of

SOURCE = """
import torch
from torch import nn

rows = 2000

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return torch.softmax(self.second(torch.tanh(self.first(x))), -1)

def get_inputs():
    return [torch.randn(rows, 8)]

def get_init_inputs():
    return []
"""


def verified(
    folder: Path,
    changed: dict[str, str],
    *ways: str,
    shapes: Sequence[Mapping[str, Any]] | None = None,
    placed: bool = False,
) -> tuple[Verification, dict[str, str]]:
    """Verifies a model whose kernels are its problems' references, some of them changed; returns the kernels'
    names by operator, too. `placed`: time kernels in their places, which on a busy machine may remove any."""
    (folder / "model.py").write_text(SOURCE)
    source = FileModel(path=str(folder / "model.py"), shapes=shapes)
    traced_models = [*map(trace_model, source.load(device="cpu", dtype=None, backward=False, seed=0))]
    found = extract(
        profile_of(*traced_models), traced_models, folder, most=9, gain=0.001, known=lambda fragment: True
    )
    found.write(folder / "extraction.json")
    chosen = [each for each in found.problems if each.target in ("tanh", "_softmax")]
    names = {each.target: each.name for each in chosen}
    kernels = dict(kernels_of(folder, chosen))
    for target, returned in changed.items():
        own = kernels[names[target]]
        kernels[names[target]] = replace(own, source=own.source.replace("return ", f"return {returned} ", 1))
    write_package(folder, traced_models, kernels, {each: each.places for each in chosen})
    task = VerificationTask(
        model={"name": str(folder / "model.py"), "shapes": shapes},
        device="cpu",
        dtype=None,
        seeds=2,
        turns=6,
        ways=ways,
        in_place={} if placed else {"optimized": {}},
    )
    return verify_in_subprocess(folder, task, list(names.values()), 120.0), names


def passed(task: VerificationTask) -> Verification:
    """The child's result for a model with the same outputs that is equally fast in every way."""
    check = ModelCheck(seed=0, error=0.0, eager_error=0.0, allowed=1.0)
    session = {"": {way: [1.0] * 6 for way in task.ways}}
    return Verification(checks=[check][: task.seeds], calls={}, sessions=[session], growth=[])


@pytest.mark.slow
def test_the_model_is_timed_and_a_wrong_kernel_is_removed(tmp_path: Path) -> None:
    found, names = verified(tmp_path, {"tanh": "1.01 *"}, "eager", "optimized")
    assert found.passes and [check.seed for check in found.checks] == [0, 1]
    assert list(found.left_out) == [names["tanh"]]
    assert found.calls == {names["_softmax"]: 1}
    assert [step.kernel for step in found.growth] == [names["tanh"], names["_softmax"]]
    assert found.growth[0].error == pytest.approx(0.01, rel=1e-3)
    assert found.ways == ["eager", "optimized"]
    assert found.other_sizes == "inputs of another size: the original forward runs"


SLOW = "0 * sum(torch.ones(99).sum() for _ in range(9999)) +"
"""Code before a kernel's result that makes it slow but still correct."""


@pytest.mark.slow
def test_a_kernel_that_is_slower_in_its_place_is_left_out(tmp_path: Path) -> None:
    found, names = verified(tmp_path, {"tanh": SLOW}, "eager", "optimized", placed=True)
    assert found.passes and {*found.in_place["optimized"]} == {*names.values()}
    speedup, low, high = found.in_place["optimized"][names["tanh"]]
    assert low <= speedup <= high < 1 and speedup < 0.5
    assert names["tanh"] in found.left_out and names["tanh"] not in found.calls
    assert "the model is slower with it" in found.left_out[names["tanh"]]
    assert found.speedup("optimized")[0] > 0.2, "the session ran without it"


@pytest.mark.slow
def test_kernels_are_compared_with_compiled_code(tmp_path: Path) -> None:
    ways = ("eager", "optimized", "compile", "optimized compile")
    found, names = verified(tmp_path, {"tanh": SLOW}, *ways)
    assert found.passes and not found.failed
    assert {*found.over_compiled} == {*names.values()}
    speedup, low, high = found.over_compiled[names["tanh"]]
    assert low <= speedup <= high < 1 and speedup < 0.5 and names["tanh"] not in found.faster_compiled
    assert found.speedup("optimized compile", "compile")[0] > 0.2, "compiled code runs without it"


@pytest.mark.slow
def test_a_kernel_that_is_wrong_at_one_shape_is_removed(tmp_path: Path) -> None:
    shapes = [{"sizes": {"rows": 2000}, "weight": 3}, {"sizes": {"rows": 4000}}]
    changed = {"tanh": "(1.01 if x.shape[0] == 4000 else 1.0) *"}
    found, names = verified(tmp_path, changed, "eager", "optimized", shapes=shapes)
    assert found.passes and [*found.left_out] == [names["tanh"]]
    assert "at rows=4000: error" in found.left_out[names["tanh"]]
    assert {(each.seed, each.shape) for each in found.checks} == {
        (seed, shape) for seed in (0, 1) for shape in ("rows=2000", "rows=4000")
    }
    assert found.calls == {names["_softmax"]: 2}, "one at each shape"
    assert [step.kernel for step in found.growth] == [names["tanh"], names["_softmax"]]
    assert found.growth[0].error == pytest.approx(0.01, rel=1e-3)
    assert found.shapes == {"rows=2000": 0.75, "rows=4000": 0.25}
    [session] = found.sessions
    assert [*session] == [*found.shapes] and found.ways == ["eager", "optimized"]
    assert found.other_sizes == "inputs of another size: the original forward runs", "of 8000 rows"


@pytest.mark.slow
def test_a_kernel_that_crashes_the_process_is_removed(tmp_path: Path) -> None:
    found, names = verified(tmp_path, {"_softmax": "__import__('os').abort() or"})
    assert found.passes and list(found.left_out) == [names["_softmax"]]
    assert "signal 6" in found.left_out[names["_softmax"]]


@pytest.mark.slow
def test_a_kernel_that_raises_is_removed(tmp_path: Path) -> None:
    found, names = verified(tmp_path, {"tanh": "1 / 0 *"})
    assert [*found.left_out] == [names["tanh"]]
    assert found.left_out[names["tanh"]].endswith("ZeroDivisionError: division by zero")


def test_a_verification_is_bounded_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its processes gets the time that those before it have left."""
    given: list[float] = []
    clock = 0.0

    def stub(command: Sequence[str], timeout: float, **how: Any) -> Any:
        nonlocal clock
        given.append(timeout)
        clock += min(timeout, 60.0)
        if timeout < 60:
            raise launcher.subprocess.TimeoutExpired(command, timeout)
        return launcher.subprocess.CompletedProcess(command, 1, stderr="RuntimeError: no")

    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock)
    monkeypatch.setattr(launcher.subprocess, "run", stub)
    task = VerificationTask(model={}, device="cuda", dtype=None, ways=ways_of("none", "cuda"))
    with pytest.raises(VerificationError, match="it took longer than verify_s=100 s; raise it, or lower"):
        verify_in_subprocess(tmp_path, task, ["norm", "gelu"], 100.0)
    assert given == [100.0, 40.0]


def test_a_model_that_was_compared_in_time_is_delivered_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = replace(passed(VerificationTask(model={}, device="cpu", dtype=None)), sessions=[])

    def stub(command: Sequence[str], timeout: float, **how: Any) -> Any:
        compared.write(tmp_path / launcher.RESULT)
        raise launcher.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(launcher.subprocess, "run", stub)
    task = VerificationTask(model={}, device="cpu", dtype=None)
    found = verify_in_subprocess(tmp_path, task, ["norm"], 100.0)
    assert found.passes and not found.ways
    assert found.failed == {"timing": "it took longer than verify_s=100 s"}
    assert any("it took longer than verify_s=100 s" in line for line in report_lines(found))
    assert not (tmp_path / launcher.RESULT).exists()


def test_the_expected_time_grows_with_the_work() -> None:
    task = VerificationTask(model={}, device="cuda", dtype=None, ways=ways_of("none", "cuda"))
    least = expected_s(task, kernels=0, forward_ms=5, calls=100)
    several = expected_s(task, kernels=5, forward_ms=5, calls=100)
    compiled = replace(task, ways=ways_of("default", "cuda"))
    assert 5 < least < several < expected_s(compiled, kernels=5, forward_ms=5, calls=100)
    assert expected_s(replace(compiled, shapes={"a": 0.5, "b": 0.5}), kernels=5, forward_ms=5, calls=100) > (
        expected_s(compiled, kernels=5, forward_ms=5, calls=100)
    )
    tuned = replace(task, ways=ways_of("all", "cuda"))
    line = plan_line(tuned, 41.3, 3600)
    assert "about 41 s to compare the model on 5 sets" in line and "max-autotune can add many minutes" in line
    assert "max-autotune" not in plan_line(compiled, 41.3, 3600)


def test_progress_says_how_much_of_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    progress(95.0)("comparing: set 1 of 5")
    progress(0.0)("comparing: set 2 of 5")
    assert capsys.readouterr().out == (
        "[0 of about 95 s] comparing: set 1 of 5\n[0 s] comparing: set 2 of 5\n"
    )


def test_a_cuda_graph_that_crashes_the_process_removes_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stub(folder: Path, task: VerificationTask, limit: TimeLimit) -> Verification | str:
        if OPTIMIZED_GRAPH in task.ways:
            return "exit status 1"
        return passed(task)

    monkeypatch.setattr(launcher, "_run_child", stub)
    task = VerificationTask(model={}, device="cuda", dtype=None, ways=ways_of("none", "cuda"))
    found = verify_in_subprocess(tmp_path, task, ["norm"], 1.0)
    assert found.ways == ["eager", "rewritten", "optimized"] and not found.left_out
    assert found.failed == dict.fromkeys([GRAPH, OPTIMIZED_GRAPH], "exit status 1")
    assert Verification.read(tmp_path / FILE) == found


WARNING = (
    "[W1126 13:40:36 CUDAEvent.h:57] Warning: CUDA warning: unspecified launch failure (function ~CUDAEvent)"
)
RAISED = "torch.AcceleratorError: CUDA error: unspecified launch failure"
HANDLING = "During handling of the above exception, another exception occurred:"
TRACE = ["Traceback (most recent call last):", '  File "turns.py", line 9', "    raise ValueError(Error)"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([WARNING, *TRACE, RAISED, "Search for it", "", WARNING], RAISED),
        (
            [*TRACE, RAISED, "", "The above exception was the direct cause of another:", *TRACE, "E: e"],
            RAISED,
        ),
        ([*TRACE, "TypeError: logged", "a line of the log", *TRACE, RAISED], RAISED),
        (
            [*TRACE, "KeyError: 1", "", HANDLING, *TRACE, RAISED],
            RAISED,
        ),
        (["an Error that was survived", *TRACE, "KeyboardInterrupt"], "KeyboardInterrupt"),
        (
            ["terminate called after an instance of 'c10::Error'", "  what():  CUDA error", "frame #0"],
            "what():  CUDA error",
        ),
        (["Segmentation fault", WARNING], "Segmentation fault"),
        ([WARNING, ""], WARNING),
        ([], ""),
    ],
)
def test_the_failure_reason_is_not_a_warning(lines: list[str], said: str) -> None:
    assert failure_reason("\n".join(lines)) == said


@pytest.mark.parametrize("died", [None, "it took longer than 1 s"])
def test_max_autotune_is_added_to_the_record(
    died: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a second child process, which may fail."""

    def stub(folder: Path, task: VerificationTask, limit: TimeLimit) -> Verification | str:
        if not task.seeds and died:
            return died
        return passed(task)

    monkeypatch.setattr(launcher, "_run_child", stub)
    task = VerificationTask(model={}, device="cpu", dtype=None, ways=("eager", "optimized", "max-autotune"))
    found = verify_in_subprocess(tmp_path, task, [], 1.0)
    assert Verification.read(tmp_path / FILE) == found and found.passes
    assert ("max-autotune" in found.ways) == (died is None)
    assert found.failed == ({} if died is None else {"max-autotune": died})


def test_an_interrupted_tuning_keeps_the_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Sequence[str]] = []
    is_over = False

    def stub(folder: Path, task: VerificationTask, limit: TimeLimit) -> Verification | str:
        ran.append(task.ways)
        if not task.seeds and not is_over:
            raise KeyboardInterrupt
        return passed(task)

    monkeypatch.setattr(launcher, "_run_child", stub)
    task = VerificationTask(model={}, device="cpu", dtype=None, ways=("eager", "optimized", "max-autotune"))
    package = tmp_path / "optimized" / "kernels"
    package.mkdir(parents=True)
    (package / "norm.py").write_text("1")
    first, tuning = ["eager", "optimized"], ("eager", "optimized", "max-autotune")

    def interrupted() -> list[Sequence[str]]:
        ran.clear()
        with pytest.raises(KeyboardInterrupt):
            verify_in_subprocess(tmp_path, task, [], 1.0)
        assert not (tmp_path / FILE).exists(), "it is not complete"
        return [*ran]

    assert interrupted() == [first, tuning]
    assert interrupted() == [tuning]
    (package / "norm.py").write_text("2")
    assert interrupted() == [first, tuning], "a changed kernel is verified again"
    is_over = True
    found = verify_in_subprocess(tmp_path, task, [], 1.0)
    assert found.ways == [*tuning] and found.passes
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("verification_")] == []
    assert Verification.read(tmp_path / FILE) == found
    ran.clear()
    verify_in_subprocess(tmp_path, task, [], 1.0)
    assert ran == [first, tuning], "a new call measures everything again"


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_a_one_line_error(tmp_path: Path) -> None:
    task = VerificationTask(model={"name": "nowhere.py"}, device="cpu", dtype=None)
    with pytest.raises(VerificationError, match="the model's process ended: exit status 1"):
        verify_in_subprocess(tmp_path, task, [], 60.0)
