"""A worker with real processes judges honest kernels and wrong ones, one after another.

All use the same worker: no kernel may change the verdict on the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.device.settings import Settings
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Evaluation, Stage, Status
from evaluators.records.problem import TOLERANCES, Kernel, Problem
from evaluators.records.timing import Effort
from tests.evaluators.device.kernels import (
    HONEST,
    PROBLEM,
    SETTINGS,
    Judge,
    assert_honest_is_correct,
    forward,
)

pytestmark = pytest.mark.slow


@pytest.mark.core
def test_an_honest_copy_is_correct_and_about_as_fast(judge: Judge, worker: Worker) -> None:
    found = assert_honest_is_correct(judge)
    timing, correctness = found.timing, found.correctness
    assert timing is not None
    assert correctness is not None
    assert timing.speedup_low < 1.3
    assert timing.speedup_high > 0.75
    assert timing.speedup_low <= timing.speedup <= timing.speedup_high
    assert len(timing.kernel_samples_ms) == len(timing.eager_samples_ms) >= 6
    assert timing.compile_ms is None
    assert correctness.checked_calls >= 7
    assert correctness.normwise_error < 1e-4
    assert not correctness.spread, "equal, or calls were too slow to try"
    assert correctness.distributions
    assert all(correctness.distributions.values())
    assert found.device_s == pytest.approx(sum(found.stages_s.values()))
    timed = ("starting", "calibrating", "baseline", "loading", "checking", "near_repeats", "distributions")
    assert {*timed, "timing", "drawing", "spot_checks", "ending"} <= set(found.stages_s)
    assert found.stages_s["other"] < 0.05 * found.device_s
    assert list(found.stages_s) == [stage for stage in Stage if stage in found.stages_s]
    assert found.environment["isolation"].startswith("limits")
    assert {"device", "torch"} <= set(found.environment)
    assert "architecture" not in found.environment


def test_answers_to_the_same_inputs_may_differ_by_roundings(tmp_path: Path) -> None:
    """In blocks that are long enough for several calls even on a busy machine."""
    worker = Worker(root=tmp_path, settings=replace(SETTINGS, plan=replace(SETTINGS.plan, block_ms=200.0)))
    rounding = forward(
        "self.calls = getattr(self, 'calls', 0) + 1; return honest(self, x) * (1 + 1.2e-7 * (self.calls % 3))"
    )
    try:
        for _ in range(8):  # on a very busy machine a block has one call
            found = worker.measure(PROBLEM, Kernel(source=rounding, language="cpp"), b"")
            assert found.status is Status.CORRECT, found.log
            assert found.correctness is not None
            if found.correctness.spread:
                break
    finally:
        worker.close()
    assert found.correctness.spread is not None
    assert 0 < found.correctness.spread < 1e-6


def test_the_facts_of_an_open_problem_are_those_of_its_evaluations(worker: Worker) -> None:
    facts = worker.open(PROBLEM)
    assert facts == worker.open(PROBLEM)
    assert (
        facts.items()
        <= worker.measure(
            PROBLEM, Kernel(source=HONEST, language="cpp"), b"", effort=Effort.THOROUGH
        ).environment.items()
    )


def test_no_scratch_folder_of_a_candidate_is_left(judge: Judge, worker: Worker) -> None:
    judge(forward("open('left', 'w').write('x'); return honest(self, x)"))
    assert [path for path in worker._root.iterdir() if not path.name.startswith("eager-")] == [
        worker._open.in_use.prefork._folder
    ]
    assert not list(worker._open.in_use.prefork._folder.iterdir()), "the next candidate's is empty"


INCORRECT: dict[str, tuple[str, str]] = {
    "NaN": (forward("return honest(self, x) * float('nan')"), "nan instead of"),
    "one NaN": (forward("y = honest(self, x); y[3, 5] = float('nan'); return y"), "the first at [3, 5]"),
    "infinities": (forward("return honest(self, x) / 0"), "instead of"),
    "empty": (forward("return torch.empty_like(x)"), "instead of"),
    "zeros": (forward("return torch.zeros_like(x)"), "0 instead of"),
    "its input": (forward("return x"), "instead of"),
    "wrong shape": (forward("return honest(self, x)[:-1]"), "output 0 is (127, 128)"),
    "transposed shape": (forward("return honest(self, x).flatten()"), "output 0 is (16384,)"),
    "wrong dtype": (forward("return honest(self, x).double()"), "torch.float64"),
    "two outputs": (forward("return x, x"), "the output is a tuple of 2; the reference's is a tensor"),
    "no output": (forward("return None"), "the output is None; the reference's is a tensor"),
    "the answer of before": (
        forward(
            "key = x.data_ptr()\nif key not in cache:\n    cache[key] = honest(self, x)\nreturn cache[key]",
            before="cache = {}",
        ),
        "wrong ",
    ),
    "the answer to a fingerprint": (
        forward(
            "key = tuple(x.shape)\nif key not in cache:\n    cache[key] = honest(self, x)\nreturn cache[key]",
            before="cache = {}",
        ),
        "wrong ",
    ),
    "the answer to the same first elements": (
        forward(
            "key = tuple(x[0, :64].tolist())\nif key not in cache:\n    cache[key] = honest(self, x)\n"
            "return cache[key].clone()",
            before="cache = {}",
        ),
        "wrong on inputs that differ from an earlier call's in a few elements",
    ),
    "a ring of buffers": (
        forward(
            "ring.append(ring.pop(0) if len(ring) > 4 else torch.empty_like(x))\n"
            "return ring[-1].copy_(honest(self, x))",
            before="ring = []",
        ),
        "later calls return the memory of an earlier output",
    ),
    "the memory of all outputs": (
        forward("kept.append(honest(self, x))\nreturn kept[-1]", before="kept = []"),
        "it keeps the memory of its outputs",
    ),
    "inputs changed so that the answer is easy": (forward("x.zero_()\nreturn x.clone()"), "instead of"),
    "one layer less": (forward("self.depth = 7; return honest(self, x)"), "instead of"),
    "only the first call": (
        forward("calls.append(1)\nreturn honest(self, x) if len(calls) < 2 else x", before="calls = []"),
        "wrong ",
    ),
    "the fourth time that its weights change, which no measurement goes without": (
        forward(
            "now = self.weight._version\nself.start = getattr(self, 'start', now)\n"
            "y = honest(self, x)\nreturn y if now - self.start < 7 else y.zero_()"
        ),
        "wrong after its weights were changed in place",
    ),
    "weights of its own": (forward("nn.init.normal_(self.weight)\nreturn honest(self, x)"), "instead of"),
}  # fmt: skip


@pytest.mark.parametrize("case", INCORRECT)
def test_wrong_outputs_are_incorrect(judge: Judge, case: str) -> None:
    source, words = INCORRECT[case]
    found = judge(source)
    assert found.status is Status.INCORRECT, found
    assert words in found.log


@pytest.mark.parametrize(
    "body", ["y = honest(self, x)\nx.fill_(7)\nreturn y", "return x.copy_(honest(self, x))"]
)
def test_inputs_must_stay_unchanged(judge: Judge, body: str) -> None:
    found = judge(forward(body))
    assert found.status is Status.INCORRECT, found
    assert "it writes to its input 0, which the reference leaves unchanged" in found.log


def test_the_kernel_runs_in_the_folder_of_its_build(worker: Worker, tmp_path: Path) -> None:
    from evaluators.build.builder import _pack

    (tmp_path / "library").write_text("42")
    archive = _pack(tmp_path)
    source = HONEST + "\nimport tempfile\nassert open(tempfile.gettempdir() + '/library').read() == '42'\n"
    found = worker.measure(PROBLEM, Kernel(source=source, language="cpp"), archive)
    assert found.status is Status.CORRECT, found.log


def test_lower_precision_fails_unless_the_problem_allows_it(worker: Worker) -> None:
    kernel = Kernel(source=forward("return honest(self, x.half().float())"), language="cpp")
    found = worker.measure(PROBLEM, kernel, b"")
    assert found.status is Status.INCORRECT, found
    assert found.correctness is not None
    assert found.correctness.benchmark_rules == {"kernelbench": True, "kernelbench_v02": False}
    found = worker.measure(replace(PROBLEM, precision="float16"), kernel, b"")
    assert found.status is Status.CORRECT, found.log
    assert found.correctness is not None
    assert found.correctness.normwise_error > 10 * found.correctness.eager_error, (
        "the lost accuracy is reported"
    )


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_kernel_for_one_distribution_only_is_incorrect_under_every_rule(
    worker: Worker, tolerance: str
) -> None:
    kernel = Kernel(source=forward("return honest(self, x.clamp(-6, 6))"), language="cpp")
    found = worker.measure(replace(PROBLEM, tolerance=tolerance), kernel, b"")
    assert found.status is Status.INCORRECT, found
    assert "wrong on inputs of the distribution '" in found.log
    assert found.correctness is not None
    assert [name for name, right in found.correctness.distributions.items() if not right]
    assert found.correctness.benchmark_rules["kernelbench"] is True


def test_after_all_of_them_an_honest_kernel_is_correct(judge: Judge, worker: Worker) -> None:
    """With the processes of the first verdict: none of the kernels above has killed one."""
    processes = worker._device_processes
    assert processes._judge.poll() is None
    assert_honest_is_correct(judge)
    assert worker._device_processes is processes


VARIED = """
import torch
from torch import nn

class {name}(nn.Module):
    def forward(self, x, index, mask, scale):
        y = torch.tanh(x[index]) * scale
        return [y.half(), y.argmax(-1), mask & (y > 0).all(-1)]
"""


def test_integers_booleans_plain_values_and_lists_of_outputs(judge: Judge) -> None:
    inputs = """
rows = 512
def get_inputs():
    x = torch.randn(256, rows).t()
    return [x, torch.randint(0, rows, (300,)), torch.rand(300) < 0.5, 2.5]
def get_init_inputs():
    return []
"""
    problem = Problem(
        name="file/varied",
        source=VARIED.format(name="Model") + inputs,
        overrides={"rows": 384},
        allow_degenerate=True,
    )
    honest = VARIED.format(name="ModelNew")
    measure: Callable[..., Evaluation] = judge
    assert measure(honest, problem).status is Status.CORRECT
    for wrong in ("y.argmax(-1) + (x[0, 0] > 0)", "y.argmax(-1).int()", "y.argmin(-1)"):
        found = measure(honest.replace("y.argmax(-1)", wrong), problem)
        assert found.status is Status.INCORRECT, found


@pytest.mark.parametrize(
    "change",
    [
        {"timeout_s": 0.0},
        {"memory_gb": -1.0},
        {"max_calls": 0},
        {"threads": 0},
        {"build_timeout_s": float("nan")},
    ],
)
def test_settings_that_nothing_can_be_measured_with(change: dict[str, float]) -> None:
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"evaluator.{name} is .*; it must be positive"):
        Settings(**change)  # type: ignore[arg-type]
