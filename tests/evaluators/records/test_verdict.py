"""A verdict travels unchanged from the judge process to the worker and becomes an evaluation."""

from __future__ import annotations

import json

import pytest

from evaluators.records.evaluation import Correctness, Roofline, Status, Timing
from evaluators.records.verdict import Verdict

WHOLE = Verdict(
    status=Status.CORRECT,
    log="a remark",
    timing=Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1),
    correctness=Correctness(
        checked_calls=3, normwise_error=1e-7, eager_error=2e-7, distributions={"small": True}
    ),
    roofline=Roofline(bytes=8, operations=4, floor_ms=0.1, bound="memory"),
    own_share=0.5,
    before_ms=(1.0, 2.0),
    canary_ms="0.12",
)


@pytest.mark.parametrize("verdict", [WHOLE, Verdict(status=Status.REJECTED, rule="library", before_ms=())])
def test_a_verdict_arrives_as_it_was_sent(verdict: Verdict) -> None:
    message = {"op": "verdict", **json.loads(json.dumps(verdict.message()))}
    assert Verdict.from_message(message) == verdict


def test_a_verdicts_evaluation_has_the_devices_facts_and_the_stages_times() -> None:
    found = WHOLE.evaluation({"device": "a GPU"}, {"checking": 0.5, "timing": 1.0})
    assert (found.status, found.timing, found.own_share) == (Status.CORRECT, WHOLE.timing, 0.5)
    assert found.environment == {"device": "a GPU", "canary_ms": "0.12"}
    assert found.device_s == 1.5
