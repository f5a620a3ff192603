"""The throughput benchmark without a GPU: its kernels, its folder for KernelBench, its counting."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.throughput import by_device, parse
from benchmarks.throughput_halves import KERNELS, Done, Half, Options, Sample, load_samples
from benchmarks.throughput_kernelbench import run_kernelbench
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from evaluators.records.time_spent import DeviceLease

SCRIPT = """
import json, pathlib, sys, time
options = dict(argument.split("=") for argument in sys.argv[1:])
level, run = options["level"], pathlib.Path("runs", options["run_name"])
numbers = sorted(int(f.name.split("_")[0]) for f in pathlib.Path("KernelBench", "level" + level).iterdir())
print("Start evaluation on these")
results = {}
for number in numbers:
    source = (run / f"level_{level}_problem_{number}_sample_0_kernel.py").read_text()
    print("Processing: 0% [Curr Batch] 1 tasks")
    if "hangs" in source:
        time.sleep(60)
    good = "wrong" not in source
    results[number] = [
        {"correctness": good, "compiled": True, "runtime": 1.0, "metadata": {"some_error": "no"}}
    ]
    (run / "eval_results.json").write_text(json.dumps(results))
    print("[Curr batch] Evaluation took 1.00 seconds")
sys.exit(int("fails" in source))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The parts of a KernelBench clone that the benchmark uses, with a stub of its script."""
    for folder in ("src", "scripts", "KernelBench/level1", "KernelBench/level2"):
        (tmp_path / "clone" / folder).mkdir(parents=True)
    (tmp_path / "clone" / "scripts" / "eval_from_generations.py").write_text(SCRIPT)
    for name in ("level1/1_A", "level1/40_B", "level1/26_C", "level2/76_D"):
        (tmp_path / "clone" / "KernelBench" / f"{name}.py").write_text(f"# {name}")
    return tmp_path / "clone"


def sample(name: str, clone: Path, language: str = "cuda", source: str = "good") -> Sample:
    reference = clone / "KernelBench" / "level1" / "1_A.py"
    kernel = Kernel(source=f"# {source}", language=language)
    return Sample(name=name, reference=reference, kernel=kernel, fails=source != "good")


def test_24_kernels_with_failing_ones_last(clone: Path) -> None:
    samples = load_samples(KERNELS, clone, 24)
    honest = [each for each in samples if not each.fails]
    assert Counter(each.kernel.language for each in honest) == {"cuda": 10, "triton": 10}
    assert len(samples) == 24
    assert all(each.fails for each in samples[20:])
    assert {each.reference.name for each in samples} == {"1_A.py", "40_B.py", "26_C.py", "76_D.py"}
    half = load_samples(KERNELS, clone, 12)
    assert len(half) == 12
    assert Counter(each.reference.name for each in half if not each.fails).total() == 10


def test_a_missing_problem_is_named(clone: Path) -> None:
    (clone / "KernelBench" / "level2" / "76_D.py").unlink()
    with pytest.raises(FileNotFoundError, match="no problem 76"):
        load_samples(KERNELS, clone, 24)


def test_their_half_reads_the_scripts_results(clone: Path) -> None:
    half = Half(title="theirs")
    samples = [
        sample("a", clone),
        sample("b", clone, source="wrong"),
        sample("c", clone, language="triton"),
    ]
    run_kernelbench(samples, Options(kernelbench=str(clone)), half)
    assert {name: done.correct for name, done in half.done.items()} == {"a": True, "b": False, "c": True}
    assert half.done["b"].words == "compiled: no"
    assert 0 < half.done["a"].at_s < half.done["b"].at_s < half.done["c"].at_s <= half.wall_s
    assert 0 < half.ready_s < half.wall_s


@pytest.mark.slow
def test_their_half_counts_verdicts_within_the_limit(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = Half(title="theirs")
    samples = [sample("a", clone), sample("b", clone, source="hangs")]
    run_kernelbench(samples, Options(kernelbench=str(clone), limit_s=3), half)
    assert list(half.done) == ["a"]
    assert 3 <= half.wall_s < 20
    assert "stopped after 3 s" in capsys.readouterr().out


def test_the_rate_excludes_failures_and_start_up(tmp_path: Path) -> None:
    samples = [sample("a", tmp_path), sample("b", tmp_path, source="hangs"), sample("c", tmp_path)]
    half = Half(title="any", ready_s=10.0)
    for name, at_s, device_s in (("a", 20.0, 5.0), ("b", 80.0, 60.0), ("c", 90.0, 5.0)):
        half.done[name] = Done(correct=True, words="", at_s=at_s, device_s=device_s)
    assert half.rate(samples, cold=True, all_of_them=True) == pytest.approx(3 / 90 * 60)
    assert half.rate(samples, cold=False, all_of_them=True) == pytest.approx(3 / 80 * 60)
    assert half.rate(samples, cold=True, all_of_them=False) == pytest.approx(2 / 30 * 60)
    assert Half(title="none").rate(samples, cold=True, all_of_them=True) == 0.0


@pytest.mark.parametrize(
    "call", ["count=4", "kernelbench=x speed=1", "kernelbench=x count", "kernelbench=x count=b"]
)
def test_a_wrong_call_is_refused(call: str) -> None:
    with pytest.raises(ValueError):
        parse(shlex.split(call))


def test_each_devices_time_adds_up() -> None:
    leases = [DeviceLease(device=device, held_s=2.0) for device in ("0", "1", "0")]
    found = [Evaluation(status=Status.CRASHED, lease=lease) for lease in [*leases, None]]
    assert {device: each.held_s for device, each in by_device(found).items()} == {"0": 4.0, "1": 2.0}
