"""What a probe may say: a time, a timeline, or why it has none; never that a kernel is correct."""

from __future__ import annotations

import json

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import MOST_MARKS, Probe, ProbeStatus, ProbeTimes, ProbeTrace, TraceMarks

TIMES = ProbeTimes.of([1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [2.0] * 6)
MARKS = TraceMarks(names=("load", "mma", "store"), unit="ns")


def test_no_probe_is_a_correct_kernel() -> None:
    assert Status.CORRECT.value not in {each.value for each in ProbeStatus}
    with pytest.raises(ValueError, match="correct"):
        Probe.failed(Status.CORRECT, "")
    with pytest.raises((TypeError, ValueError, KeyError)):
        Evaluation.from_json(Probe(status=ProbeStatus.TIMED, times=TIMES).to_json())
    for status in set(Status) - {Status.CORRECT, Status.OUTPACED}:
        assert Probe.failed(status, "why").times is None
    assert Probe.failed(Status.INCORRECT, "").status is ProbeStatus.REJECTED


def test_a_result_is_consistent_and_comes_back_from_json() -> None:
    trace = ProbeTrace.of(MARKS, [[5, 9, 12]], 1)
    timed = Probe(status=ProbeStatus.TIMED, times=TIMES, trace=trace, device_s=0.5)
    assert Probe.from_json(json.loads(json.dumps(timed.to_json()))) == timed
    for wrong in (
        {"status": ProbeStatus.TIMED},
        {"status": ProbeStatus.CRASHED, "times": TIMES},
        {"status": ProbeStatus.CRASHED, "trace": trace},
    ):
        with pytest.raises(ValueError):
            Probe(**wrong)
    assert Probe.failed(Status.CRASHED, "it died of SIGSEGV\nmore").text() == "crashed: it died of SIGSEGV"


def test_times_have_their_interval() -> None:
    assert TIMES.low_ms <= 0.9 < TIMES.call_ms < 1.1 <= TIMES.high_ms
    assert TIMES.ratio == pytest.approx(2.0)
    assert TIMES.ratio_low < TIMES.ratio < TIMES.ratio_high
    assert TIMES.text().startswith("1 ms a call [")


def test_the_timeline_of_two_workers() -> None:
    """The second worker does not pass `mma`, and a further column is the end."""
    trace = ProbeTrace.of(MARKS, [[100, 110, 130, 135], [200, 0, 250, 265]], 2)
    load, mma, store = trace.phases
    assert (load.start, load.length, load.workers) == (0, 30, 2)
    assert (mma.start, mma.length, mma.workers) == (10, 20, 1)
    assert (store.start, store.length, store.workers) == (40, 10, 2)
    assert "means in ns" in trace.text() and trace.text().splitlines()[-1].split()[0] == "store"
    assert ProbeTrace.of(MARKS, [[1, 2, 4]], 1).phases[-1].length is None
    assert ProbeTrace.of(MARKS, [[0, 0, 0]], 1).phases == ()


def test_a_table_has_at_most_20_lines() -> None:
    marks = TraceMarks.of(f"PROBE_MARKS = {[f'phase {n}' * 20 for n in range(50)]}")
    assert len(marks.names) == MOST_MARKS
    text = ProbeTrace.of(marks, [list(range(1, MOST_MARKS + 2))] * 3, 3).text()
    assert len(text.splitlines()) <= 20
    assert max(map(len, text.splitlines())) < 100


@pytest.mark.parametrize(
    ("source", "names", "unit"),
    [
        ('PROBE_MARKS = ["load", "mma"]\nPROBE_UNIT = "cycles"', ("load", "mma"), "cycles"),
        ('PROBE_MARKS = ("a\\n\\x1b[2J", 7)', ("a [2J", "7"), "ticks"),
        ("PROBE_MARKS = make()", (), "ticks"),
        ("PROBE_MARKS = {}", (), "ticks"),
        ("PROBE_UNIT = 'ns'", (), "ticks"),
        ("def (", (), "ticks"),
        ("", (), "ticks"),
    ],
)
def test_the_marks_are_read_from_the_source(source: str, names: tuple[str, ...], unit: str) -> None:
    found = TraceMarks.of(source)
    assert (found.names, found.unit) == (names, unit)
