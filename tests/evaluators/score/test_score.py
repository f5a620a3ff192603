"""Scoring a folder of generated kernels, in KernelBench's format, whatever the kernels do."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest

from evaluators.baseline import __main__ as baseline
from evaluators.records.evaluation import CLOCKS_AFTER, CLOCKS_BEFORE, Evaluation, Status, Timing
from evaluators.records.scores import Scored, fast_p, geometric_mean, measures, median, pass_at_k
from evaluators.score import __main__ as score
from evaluators.suites.kernelbench import ROOT, _of_clone
from tests.evaluators.suites.clone import make_clone

UNTOLD = dict.fromkeys(("sm_mhz", "memory_mhz", "temperature_c", "power_w"))
RIGHT = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
"""
EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = "torch::Tensor answer(torch::Tensor x) { return at::softmax(x, -1); }"
built = load_inline(name="answers", cpp_sources=SOURCE, functions=["answer"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return built.answer(x)
"""
QUICK = [
    *("device=cpu", "evaluator.threads=1", "evaluator.max_calls=8"),
    *("evaluator.plan.max_s=0.2", "evaluator.plan.precision=0.2"),
    *("evaluator.thorough_plan.max_s=0.3", "evaluator.thorough_plan.precision=0.2"),
]
"""Short measurements: precise times do not matter here."""
SAMPLES = {
    "level_1_problem_23_sample_0": RIGHT,
    "level_1_problem_23_sample_1": RIGHT.replace("torch.softmax(x, -1)", "torch.zeros_like(x)"),
    "level_1_problem_23_sample_2": "import os\nos.abort()\n",
    "level_1_problem_23_sample_3": RIGHT.replace("return", "while True: pass\n        return"),
    "level_1_problem_1_sample_0": "class ModelNew(",
    "level_1_problem_2_sample_0": RIGHT,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT, str(make_clone(tmp_path / "clone")))
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    for name, source in SAMPLES.items():
        (run / f"{name}_kernel.py").write_text(source)
    return run


@pytest.mark.slow
def test_evaluations_before_an_interrupt_are_in_the_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def evaluated(pool: Any, problem: Any, kernel: Any, kept: Any, key: str, **_: Any) -> Evaluation:
        asked.append(key.split()[0])
        if len(asked) > 2:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        return Evaluation(status=Status.INCORRECT, log="wrong")

    monkeypatch.setattr(score, "evaluate_once", evaluated)
    assert score.main([str(folder), *QUICK]) == 130
    assert asked[:2] == ["1/1/0", "1/2/0"]
    assert list(json.loads((folder / "eval_results.json").read_text())) == ["1", "2"]
    assert "2 of 6 samples: repeat the call to continue" in capsys.readouterr().out


@pytest.mark.slow
def test_a_cheat_a_crash_and_a_hang_are_scored_to_the_end(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = [str(folder), *QUICK, "evaluator.timeout_s=4", "evaluator.compile_mode=", "ks=[1,4]"]
    status = score.main(call)
    said = capsys.readouterr().out
    assert status == 1, "one reference cannot judge"
    results = json.loads((folder / "eval_results.json").read_text())
    assert list(results) == ["1", "2", "23"]
    statuses = [each["metadata"]["status"] for each in results["23"]]
    assert statuses == ["correct", "incorrect", "crashed", "timeout"]
    assert [each["correctness"] for each in results["23"]] == [True, False, False, False]
    assert results["23"][0]["runtime"] > 0
    assert results["1"][0]["compiled"] is False
    scores = json.loads((folder / "scores.json").read_text())
    assert list(scores["left out"]) == ["kernelbench/level1/2_Zeros"]
    assert "zeros pass" in scores["left out"]["kernelbench/level1/2_Zeros"]
    assert scores["problems"] == 2
    assert scores["measures"]["pass@4"]["value"] == 1.0
    assert scores["measures"]["pass@1"]["value"] == pytest.approx((0.25 + 0) / 2)
    assert scores["measures"]["fast_0"]["value"] == pytest.approx((0.25 + 0) / 2)
    assert "23_Softmax, sample 3: timeout" in said
    kept = (folder / "evaluations.jsonl").read_text()
    monkeypatch.setattr("evaluators.scheduler.pool.Pool.evaluate", None)  # nothing is evaluated again
    assert score.main(call) == 1
    assert (folder / "evaluations.jsonl").read_text() == kept
    assert json.loads((folder / "scores.json").read_text()) == scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["run=nowhere"], "run=nowhere has no files like level_1_problem_23_sample_0_kernel.py"),
        (["baseline=nowhere.json"], "baseline=nowhere.json cannot be read"),
        (["exclude=nowhere.json"], "exclude=nowhere.json cannot be read"),
        (["problem.tolerance=loose"], "problem.tolerance is 'loose'"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert score.main([*([] if more[0].startswith("run=") else [str(folder)]), "device=cpu", *more]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.fixture
def judged_as(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the evaluation of each sample by its key, without a device."""

    def set_to(found: dict[str, Evaluation]) -> None:
        async def evaluated(
            pool: Any, problem: Any, kernel: Any, kept: Any, key: str, **_: Any
        ) -> Evaluation:
            return found[key.split()[0]]

        monkeypatch.setattr(score, "evaluate_once", evaluated)

    return set_to


FAST = Evaluation(
    status=Status.CORRECT,
    timing=Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1),
)
NOT_HERE = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log="this machine has no ninja; pip install ninja")


@pytest.mark.slow
def test_what_could_not_be_judged_is_neither_right_nor_wrong(
    folder: Path, judged_as: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Evaluation(status=Status.INCORRECT, log="wrong")
    some = {"1/23/0": FAST, "1/23/1": NOT_HERE, "1/23/2": NOT_HERE, "1/23/3": wrong}
    judged_as({**some, "1/1/0": NOT_HERE, "1/2/0": FAST})
    assert score.main([str(folder), *QUICK]) == 1
    said = capsys.readouterr().out
    assert "6 samples of 2 problems (infrastructure_error 3, correct 2, incorrect 1)" in said
    for name in ("23_Softmax, sample 1", "23_Softmax, sample 2", "1_Relu, sample 0"):
        assert f"not judged: kernelbench/level1/{name}: this machine has no ninja; pip install ninja" in said
    scores = json.loads((folder / "scores.json").read_text())
    assert len(scores["not judged"]) == 3 and scores["problems"] == 2
    assert scores["measures"]["correct"]["value"] == pytest.approx((0.5 + 1) / 2)
    assert scores["measures"]["compiled"]["value"] == 1.0
    assert scores["measures"]["compiled"]["low"] < 1.0 == scores["measures"]["compiled"]["high"]
    results = json.loads((folder / "eval_results.json").read_text())
    assert [each["sample_id"] for each in results["23"]] == [0, 3] and "1" not in results


@pytest.mark.slow
def test_a_folder_of_which_nothing_could_be_judged(
    folder: Path, judged_as: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judged_as(dict.fromkeys(["1/23/0", "1/23/1", "1/23/2", "1/23/3", "1/1/0", "1/2/0"], NOT_HERE))
    assert score.main([str(folder), *QUICK]) == 1
    said = capsys.readouterr().out
    assert "6 samples of 0 problems (infrastructure_error 6)" in said
    assert "compiled" not in said and said.count("not judged: ") == 6


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"import torch\n", "# Länge\n".encode("latin-1"), b"import sys; sys.exit("])
def test_a_bad_reference_stops_none_of_the_others(
    folder: Path, judged_as: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "clone" / "KernelBench" / "level1" / "1_Relu.py").write_bytes(data)
    _of_clone.cache_clear()
    judged_as(dict.fromkeys(["1/23/0", "1/23/1", "1/23/2", "1/23/3", "1/2/0"], FAST))
    assert score.main([str(folder), *QUICK]) == 1
    said = capsys.readouterr().out
    assert "left out: kernelbench/level1/1: " in said and "1_Relu" in said
    assert json.loads((folder / "scores.json").read_text())["measures"]["correct"]["value"] == 1.0
    assert score.main([str(folder), *QUICK, "problem.tolerance=loose"]) == 2
    assert "problem.tolerance is 'loose'" in capsys.readouterr().err


@pytest.mark.slow
def test_files_that_look_like_kernels_are_named(
    folder: Path, judged_as: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = [
        *("level_1_problem_23_sample_0_kernel (1).py", "level_1_problem_23_sample_9.py", "mine.py"),
        "level_1_problem_23_sample_8_kernel.py.txt",
    ]
    for name in (*skipped, "notes.txt", "level_1_problem_23_sample_0_prompt.txt"):
        (folder / name).write_text("x = 1")
    (folder / "level_2_problem_3_sample_0_kernel.py").write_text(RIGHT)
    keys = ["1/23/0", "1/23/1", "1/23/2", "1/23/3", "1/1/0", "1/2/0", "2/3/0"]
    judged_as(dict.fromkeys(keys, FAST))
    assert score.main([str(folder), *QUICK]) == 0
    said = capsys.readouterr().out
    assert said.count("skipped: ") == len(skipped)
    for name in skipped:
        assert f"skipped: {name} is not named like level_1_problem_23_sample_0_kernel.py" in said
    last = said.splitlines()[-1]
    assert last == f"{folder}/eval_results_level1.json, eval_results_level2.json, scores.json"
    for name in ("eval_results_level1.json", "eval_results_level2.json", "scores.json"):
        assert (folder / name).exists()
    assert not (folder / "eval_results.json").exists()
    (folder / "level_1_problem_023_sample_0_kernel.py").write_text(RIGHT)
    assert score.main([str(folder), *QUICK]) == 2
    assert "are the same sample" in capsys.readouterr().err


@pytest.mark.slow
def test_a_baseline_file_without_a_problem_leaves_it_out(
    folder: Path, judged_as: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    judged_as(dict.fromkeys(["1/23/0", "1/23/1", "1/23/2", "1/23/3", "1/1/0", "1/2/0"], FAST))
    times = {"level1": {"23_Softmax.py": {"mean": 3.0}}}
    (tmp_path / "times.json").write_text(json.dumps(times))
    assert score.main([str(folder), *QUICK, f"baseline={tmp_path / 'times.json'}"]) == 0
    said = capsys.readouterr().out
    assert "left out: kernelbench/level1/1_Relu: the baseline file has no time for level1/1_Relu" in said
    assert json.loads((folder / "scores.json").read_text())["measures"]["geometric mean"][
        "value"
    ] == pytest.approx(3.0)


@pytest.mark.slow
def test_without_ninja_nothing_is_kept_and_with_it_the_same_call_is_right(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in folder.iterdir():
        each.unlink()
    (folder / "level_1_problem_23_sample_0_kernel.py").write_text(EXTENSION)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # a known build needs no ninja
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        assert score.main([str(folder), *QUICK]) == 1
    said = capsys.readouterr().out
    assert "not judged: kernelbench/level1/23_Softmax, sample 0: this machine has no ninja" in said
    assert not (folder / "evaluations.jsonl").exists()
    assert score.main([str(folder), *QUICK]) == 0
    assert "(correct 1)" in capsys.readouterr().out


def scores(*speedups: float) -> list[Scored]:
    return [
        Scored(problem=str(number), speedups=[each], compiled=[True]) for number, each in enumerate(speedups)
    ]


def test_fast_p_is_strict_and_counts_failures() -> None:
    problems = scores(0.0, 0.5, 1.0, 1.5, 2.0)
    found = {p: fast_p(problems, p).value for p in (0.0, 0.5, 1.0, 1.5, 2.0)}
    assert found == pytest.approx({0.0: 0.8, 0.5: 0.6, 1.0: 0.4, 1.5: 0.2, 2.0: 0.0})


@pytest.mark.skipif(not os.environ.get(ROOT), reason=f"{ROOT} names no clone")
def test_measures_equal_those_of_the_original() -> None:
    place = Path(os.environ[ROOT]) / "src/kernelbench/score.py"
    spec = importlib.util.spec_from_file_location("original_score", place)
    assert spec is not None
    assert spec.loader is not None
    original = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(original)
    rng = random.Random(0)
    for n in (1, 7, 100):
        times = [(rng.random() < 0.6, rng.uniform(1, 9), rng.uniform(1, 9)) for _ in range(n)]
        right, eager, actual = map(numpy.array, zip(*times, strict=True))
        problems = scores(*(e / a if ok else 0.0 for ok, e, a in times))
        for p in (0.0, 0.5, 0.8, 1.0, 1.5, 2.0):
            assert fast_p(problems, p).value == pytest.approx(original.fastp(right, eager, actual, n, p))
        mean = original.geometric_mean_speed_ratio_correct_only(right, eager, actual, n)
        assert geometric_mean(problems).value == pytest.approx(mean or math.nan, nan_ok=True)


def test_means_are_over_solved_problems() -> None:
    problems = scores(0.0, 0.5, 2.0, 8.0)
    assert geometric_mean(problems).value == pytest.approx(2.0)
    assert median(problems).value == pytest.approx(2.0)
    assert math.isnan(geometric_mean(scores(0.0, 0.0)).value)
    assert str(geometric_mean(scores(0.0))) == "-"
    interval = fast_p(scores(*[0.0, 3.0] * 50), 1.0)
    assert interval.low == pytest.approx(0.4, abs=0.03)
    assert interval.high == pytest.approx(0.6, abs=0.03)


def test_pass_at_k_is_without_bias() -> None:
    one = Scored(problem="x", speedups=[1.0, 0.0, 0.0, 0.0], compiled=[True] * 4)
    assert pass_at_k([one], 1).value == pytest.approx(0.25)
    assert pass_at_k([one], 2).value == pytest.approx(0.5)
    assert pass_at_k([one], 4).value == 1.0
    assert math.isnan(pass_at_k([one], 5).value)
    heavy = Scored(problem="y", speedups=[2.0], compiled=[True], weight=3.0)
    assert fast_p([one, heavy], 1.0).value == pytest.approx(3 / 4)
    assert measures([one])["correct"].value == 0.25
    with pytest.raises(ValueError, match="has 0 speedups"):
        Scored(problem="z", speedups=[], compiled=[])


def test_baselines_of_the_original_are_read(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    times = {"level1": {"23_Softmax.py": {"mean": 2.5, "std": 0.1, "num_trials": 100}, "1_Relu.py": None}}
    file.write_text(json.dumps(times))
    assert baseline.read_times(file) == {("level1", "23_Softmax"): 2.5}
    file.write_text("[1]")
    with pytest.raises(ValueError, match="has no baselines in KernelBench's format"):
        baseline.read_times(file)


def test_baselines_have_the_clocks_before_and_after() -> None:
    told = {CLOCKS_BEFORE: "sm_mhz=1980 temperature_c=41", CLOCKS_AFTER: "sm_mhz=1755 power_w=612.5"}
    timing = Timing(
        kernel_ms=1.0, eager_ms=1.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0, compile_ms=0.5
    )
    found = Evaluation(status=Status.CORRECT, timing=timing, environment=told)
    expected = {
        "before": {**UNTOLD, "sm_mhz": 1980, "temperature_c": 41},
        "after": {**UNTOLD, "sm_mhz": 1755, "power_w": 612.5},
    }
    for times in (baseline.eager_times(found), baseline.compiled_time(found)):
        assert json.loads(json.dumps(times))["clocks"] == expected


@pytest.mark.slow
def test_baselines_are_measured_once_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ROOT, str(make_clone(tmp_path / "clone")))
    out = tmp_path / "out"
    call = ["suite=kernelbench/level1", "only=[2,23]", *QUICK, "compiled=false", f"out={out}"]
    written = []

    def one_line(*found: Any, line: Any = baseline.one_line) -> str:
        written.append(len(baseline.read_times(out / "baseline_time_torch.json")))
        return str(line(*found))

    monkeypatch.setattr(baseline, "one_line", one_line)
    monkeypatch.setattr(baseline, "is_unsteady", lambda found: False)  # however busy this machine is
    assert baseline.main(call) == 0
    assert written == [1, 2], "an interrupt leaves the times of what was measured"
    said = capsys.readouterr().out
    assert "2 problems: 2 measured" in said, "one that cannot judge has a time, too"
    found = baseline.read_times(out / "baseline_time_torch.json")
    assert set(found) == {("level1", "2_Zeros"), ("level1", "23_Softmax")}
    entry = json.loads((out / "baseline_time_torch.json").read_text())["level1"]["23_Softmax.py"]
    assert entry["min"] <= entry["median"] <= entry["max"]
    assert entry["median_low"] <= entry["median"] <= entry["median_high"]
    assert entry["versions"]["torch"]
    assert entry["clocks"] == {"before": UNTOLD, "after": UNTOLD}, "a CPU's are not told"
    monkeypatch.setattr("evaluators.scheduler.pool.Pool.evaluate", None)
    assert baseline.main(call) == 0
    assert capsys.readouterr().out == said
