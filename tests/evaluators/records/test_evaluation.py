"""Evaluations: an inconsistent record cannot be built, JSON and back gives an equal one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.records.evaluation import Correctness, Evaluation, QuickStage, Status, Timing
from evaluators.records.resources import FunctionResources

TIMING = Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
FIELDS = ("kernel_ms", "eager_ms", "speedup", "speedup_low", "speedup_high")
OTHERS = [s for s in Status if s not in (Status.CORRECT, Status.REJECTED, Status.OUTPACED)]

positive = st.floats(min_value=1e-9, max_value=1e9)
samples = st.lists(positive, max_size=4).map(tuple)
texts = st.text(st.characters(codec="utf-8"))


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    low, middle, high = sorted(draw(st.tuples(positive, positive, positive)))
    return Timing(
        kernel_ms=draw(positive),
        eager_ms=draw(positive),
        speedup=middle,
        speedup_low=low,
        speedup_high=high,
        compile_ms=draw(st.none() | positive),
        kernel_samples_ms=draw(samples),
        eager_samples_ms=draw(samples),
    )


correctnesses = st.builds(
    Correctness,
    checked_calls=st.integers(1, 99),
    normwise_error=st.floats(0, 10),
    eager_error=st.floats(0, 10),
    distributions=st.dictionaries(texts, st.booleans(), max_size=3),
)


functions = st.builds(
    FunctionResources,
    name=texts,
    registers=st.integers(0, 255),
    stack_bytes=st.integers(0, 2**20),
    shared_bytes=st.integers(0, 2**18),
)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    status = draw(st.sampled_from(Status))
    return Evaluation(
        status=status,
        timing=draw(timings()) if status is Status.CORRECT else None,
        rule=draw(st.text(min_size=1)) if status is Status.REJECTED else "",
        quick=QuickStage(timing=draw(timings())) if status is Status.OUTPACED else None,
        correctness=draw(st.none() | correctnesses),
        log=draw(texts),
        environment=draw(st.dictionaries(texts, texts, max_size=3)),
        device_s=draw(positive),
        build_s=draw(positive),
        resources=draw(st.lists(functions, max_size=2).map(tuple)),
    )


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_timing_is_finite_and_positive(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"timing.{field}"):
        replace(TIMING, **{field: value})


@pytest.mark.parametrize(("low", "high"), [(2.05, 2.1), (1.9, 1.95), (2.1, 1.9)])
def test_a_speedup_lies_in_its_interval(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        replace(TIMING, speedup_low=low, speedup_high=high)


def test_an_interval_may_be_a_point() -> None:
    assert replace(TIMING, speedup_low=2.0, speedup_high=2.0).speedup == 2.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_compiled_baseline_takes_time_or_is_absent(value: float) -> None:
    with pytest.raises(ValueError, match="compile_ms"):
        replace(TIMING, compile_ms=value)


def test_speedup_against_compile_comes_from_the_same_session() -> None:
    assert TIMING.speedup_vs_compile is None
    assert replace(TIMING, compile_ms=3.0).speedup_vs_compile == 3.0


def test_a_correct_evaluation_may_have_a_timing_and_no_other_may() -> None:
    assert Evaluation(status=Status.CORRECT, timing=TIMING).speedup == 2.0
    assert Evaluation(status=Status.CORRECT).speedup == 0.0
    with pytest.raises(ValueError, match="a crashed evaluation has a timing"):
        Evaluation(status=Status.CRASHED, timing=TIMING)


@pytest.mark.parametrize("status", OTHERS)
def test_an_incorrect_kernel_has_no_timing_and_sorts_last(status: Status) -> None:
    assert Evaluation(status=status).speedup == 0.0
    with pytest.raises(ValueError, match="has a timing"):
        Evaluation(status=status, timing=TIMING)


def test_a_kernel_that_was_only_judged_quickly_has_no_timing_to_rank_by() -> None:
    found = Evaluation(status=Status.OUTPACED, quick=QuickStage(timing=TIMING))
    assert (found.speedup, found.speedup_low) == (0.0, 0.0)
    with pytest.raises(ValueError, match="has a timing"):
        replace(found, timing=TIMING)
    for status in (Status.CORRECT, Status.INCORRECT):
        with pytest.raises(ValueError, match="quick stage"):
            replace(found, status=status)
    with pytest.raises(ValueError, match="quick stage"):
        Evaluation(status=Status.OUTPACED)


def test_a_rejection_names_its_rule() -> None:
    assert Evaluation(status=Status.REJECTED, rule="claimed times").rule == "claimed times"
    with pytest.raises(ValueError, match="rule"):
        Evaluation(status=Status.REJECTED)
    with pytest.raises(ValueError, match="timing"):
        Evaluation(status=Status.REJECTED, rule="claimed times", timing=TIMING)


@pytest.mark.parametrize("status", OTHERS)
def test_only_a_rejection_names_a_rule(status: Status) -> None:
    with pytest.raises(ValueError, match="rule"):
        Evaluation(status=status, rule="claimed times")


@pytest.mark.slow
@given(evaluations())
def test_json_and_back_is_equal(evaluation: Evaluation) -> None:
    text = json.dumps(evaluation.to_json(), allow_nan=False)
    assert Evaluation.from_json(json.loads(text)) == evaluation


@pytest.mark.slow
@given(evaluations())
def test_to_json_is_plain_and_stable(evaluation: Evaluation) -> None:
    once = json.dumps(evaluation.to_json())
    again = json.dumps(Evaluation.from_json(json.loads(once)).to_json())
    assert once == again


def test_an_older_record_calls_distributions_families() -> None:
    data = Evaluation(status=Status.CORRECT, timing=TIMING).to_json()
    figures = {"checked_calls": 1, "normwise_error": 0.0, "eager_error": 0.0}
    old = Evaluation.from_json(data | {"correctness": figures | {"families": {"small": False}}})
    assert old.correctness is not None
    assert old.correctness.distributions == {"small": False}


def test_an_older_record_has_no_resources() -> None:
    functions = (FunctionResources(name="gemm", registers=168),)
    new = Evaluation(status=Status.CORRECT, timing=TIMING, resources=functions)
    data = json.loads(json.dumps(new.to_json()))
    assert Evaluation.from_json(data) == new
    del data["resources"]
    assert Evaluation.from_json(data) == replace(new, resources=())


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"status": "rejected"},
        {"timing": {"kernel_ms": 1.0}},
        {"timing": {"kernel_ms": 1.0, "surprise": 2}},
        {"correctness": {"checked_calls": 1}},
        {"resources": [{"name": "gemm", "registers": -1}]},
        {"surprise": 1},
    ],
)
def test_other_json_is_refused(change: dict[str, Any]) -> None:
    data = Evaluation(status=Status.CORRECT, timing=TIMING).to_json() | change
    with pytest.raises((ValueError, TypeError, KeyError)):
        Evaluation.from_json(data)


@pytest.mark.parametrize("missing", ["status", "timing", "correctness"])
def test_a_record_without_a_field_is_refused(missing: str) -> None:
    data = Evaluation(status=Status.CORRECT, timing=TIMING).to_json()
    del data[missing]
    with pytest.raises((ValueError, TypeError, KeyError)):
        Evaluation.from_json(data)


def test_the_journal_has_the_status_words() -> None:
    assert json.dumps(Evaluation(status=Status.TIMEOUT).to_json()).startswith('{"status": "timeout"')
