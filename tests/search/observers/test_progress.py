from __future__ import annotations

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import FrameType

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.time_spent import DeviceLease
from search.observers import wording
from search.observers.run_progress import FAILURE_SHOWN_S, Progress
from search.records.events import Event, IdeaImplemented, IdeaProposed, RoundClosed, VariantEvaluated
from search.records.journal import replay
from search.records.model_calls import Cause, Spending
from tests.search.fakes import search, state_of
from tests.search.observers.conftest import MEMORY, call


def after(events: list[Event], **options: object) -> Progress:
    progress = Progress(clock=lambda: 0.0, **options)  # type: ignore[arg-type]
    for event in events:
        progress.apply(event)
    return progress


def test_counts_what_was_evaluated_and_what_was_reused(whole_run: list[Event]) -> None:
    progress = after(whole_run)
    assert (progress.evaluations, progress.reused, progress.device_s) == (9, 1, 13.0)
    assert progress.statuses.total() == 9
    assert progress.statuses[Status.CORRECT] == 2


def test_summarises_each_round(whole_run: list[Event]) -> None:
    one, two = after(whole_run).summaries
    assert (one.ideas, one.evaluations, one.correct_share, one.wall_s, one.device_s) == (
        2,
        4,
        0.25,
        10.0,
        5.0,
    )
    assert (two.ideas, two.evaluations, two.correct_share, two.wall_s, two.device_s) == (
        1,
        5,
        pytest.approx(2 / 6),
        10.0,
        6.0,
    )
    assert two.best is not None
    assert two.best.evaluation is not None
    assert two.best.evaluation.speedup == 4.0
    assert two.improved


def test_a_repair_counts_in_the_round_that_it_was_written_in(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=3, repairs=1, repairs_in="next_round")
    events, variants = list(replay(path)), state_of(path).tree.variants.values()
    summaries = after(events).summaries
    assert [each.statuses.total() for each in summaries] == [
        sum(each.round == number for each in variants) for number in (1, 2, 3)
    ]
    assert sum(each.evaluations for each in summaries) == state_of(path).evaluations


def test_events_seen_twice_count_once(runs: dict[str, list[Event]]) -> None:
    once, twice = after(runs["whole"]), after(runs["every event twice"])
    assert once.statuses == twice.statuses
    assert once.rounds == twice.rounds


def test_a_resumed_run_of_unknown_past_takes_the_engines_figures(runs: dict[str, list[Event]]) -> None:
    progress = after(runs["resumed, its past unknown"])
    assert progress.evaluations == 9
    assert progress.best is not None
    assert progress.rounds_closed == 2


def test_estimates_the_time_left_by_the_nearest_limit(whole_run: list[Event]) -> None:
    closed = next(i for i, event in enumerate(whole_run) if isinstance(event, RoundClosed)) + 1
    assert after(whole_run[:1]).remaining_s is None
    assert after(whole_run[:closed]).remaining_s == 10.0
    assert after(whole_run[:closed], seconds=14.0).remaining_s == 4.0
    assert after(whole_run[:closed], rounds=20, evaluations=6).remaining_s == 5.0
    assert after(whole_run[:closed], evaluations=2).remaining_s == 0.0


def test_the_limits_on_models_count_as_well(runs: dict[str, list[Event]]) -> None:
    events = [event for event in runs["two models"] if event.at_s <= 10.0]  # 7 calls, 41,200 tokens, 0.50 $
    for limits in ({"calls": 14}, {"tokens": 82_400}, {"dollars": 1.0}):
        assert after(events, **limits).remaining_s == pytest.approx(10.0)
        assert after(events, **limits).fraction == pytest.approx(0.5)


@pytest.mark.parametrize("times", [1, 2])
def test_counts_what_each_model_did_and_cost(times: int, runs: dict[str, list[Event]]) -> None:
    progress = after([event for event in runs["two models"] for _ in range(times)])
    gpt, gemini = progress.models["openai/gpt-6"], progress.models["google/gemini-4-pro"]
    assert gpt.spending == Spending(calls=4, failed=1, tokens=33_200, dollars=Decimal("0.5"))
    assert gemini.spending == Spending(calls=3, failed=2, tokens=8_000, dollars=Decimal(0))
    assert progress.spent == Spending(calls=7, failed=3, tokens=41_200, dollars=Decimal("0.5"))
    assert (gpt.ideas, gemini.ideas) == (1, 1)
    assert [model.best and model.best.evaluation.speedup for model in (gpt, gemini)] == [3.0, 1.5]  # type: ignore[union-attr]
    assert progress.causes == {Cause.RATE_LIMITED: 2, Cause.MALFORMED: 1}
    assert progress.repairs == 1


def test_a_round_keeps_the_models_as_they_were(runs: dict[str, list[Event]]) -> None:
    progress = after(runs["two models"])
    later = call(30.0, 8, "openai/gpt-6", 1000)
    progress.apply(later)
    assert progress.models["openai/gpt-6"].spending.calls == 5
    assert progress.rounds[1].models["openai/gpt-6"].spending.calls == 4


def test_the_last_failure_is_shown_for_a_while(runs: dict[str, list[Event]]) -> None:
    now = [0.0]
    progress = Progress(clock=lambda: now[0])
    for event in runs["two models"]:
        if event.at_s <= 8.0:
            progress.apply(event)
    assert progress.failure is not None
    assert progress.failure.cause is Cause.MALFORMED
    now[0] += FAILURE_SHOWN_S
    assert progress.failure is None
    failed = after([*runs["two models"][:-1], call(21.0, 8, "openai/gpt-6", cause=Cause.TIMEOUT)])
    assert failed.failure is not None
    failed.apply(runs["two models"][-1])
    assert failed.failure is None


def test_an_idea_is_open_while_it_is_written(runs: dict[str, list[Event]]) -> None:
    events = runs["two models"]
    written = next(i for i, event in enumerate(events) if isinstance(event, IdeaImplemented)) + 1
    verdict = next(i for i, event in enumerate(events) if isinstance(event, VariantEvaluated)) + 1
    one = after(events[:verdict]).in_round[0]
    assert [item.variant.evaluation is not None for item in one.variants.values()] == [True]
    assert one.open
    two = after(events[:written]).in_round[1]
    assert two.open
    assert not after([*events[:written], *events[written + 2 :]]).ideas[two.id].open


def test_an_event_takes_as_long_in_a_long_run(runs: dict[str, list[Event]]) -> None:
    """By what Python executes, not by time: nothing is searched for among all ideas or variants."""

    def lines(ideas: int) -> int:
        progress, events = Progress(clock=lambda: 0.0), runs["two models"]
        for number in range(ideas):
            idea = replace(MEMORY, text=f"idea {number}", round=1)
            progress.apply(IdeaProposed(at_s=1.0, idea=idea, number=number + 1, expansion=0))
        count, tracer = 0, sys.gettrace()

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            for event in events:
                if not isinstance(event, RoundClosed):
                    progress.apply(event)
        finally:
            sys.settrace(tracer)
        return count

    lines(10)  # ids are computed once
    assert abs(lines(1000) - lines(10)) < 100, "the collector of garbage may run a few lines, too"


def test_time_advances_between_events(whole_run: list[Event]) -> None:
    now = [100.0]
    progress = Progress(clock=lambda: now[0])
    for event in whole_run[:2]:
        progress.apply(event)
    now[0] += 5.0
    assert progress.elapsed_s == 6.0
    for event in whole_run[2:]:
        progress.apply(event)
    now[0] += 5.0
    assert progress.elapsed_s == 30.0


def test_knows_the_open_round(whole_run: list[Event]) -> None:
    assert after(whole_run[:1]).round == 1
    first_verdict = next(i for i, event in enumerate(whole_run) if isinstance(event, VariantEvaluated)) + 1
    progress = after(whole_run[:first_verdict])
    assert [item.number for item in progress.in_round] == [1]
    assert after(whole_run).in_round == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (245, "4m05s"), (3599.7, "1h00m"), (3720, "1h02m")]
)
def test_words_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("speedup", "text"),
    [(0.5, "0.50x"), (9.994, "9.99x"), (9.996, "10.0x"), (99.94, "99.9x"), (123.4, "123x")],
)
def test_words_speedups(speedup: float, text: str) -> None:
    assert wording.times(speedup) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1234, "1.23k"), (412_345, "412k"), (999_600, "1.00M"), (2.5e9, "2.50G")],
)
def test_words_counts(number: int, text: str) -> None:
    assert wording.amount(number) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "$0.00"), (0.42, "$0.42"), (0.0042, "$0.0042"), (1234.5, "$1,234.50")]
)
def test_words_dollars(value: float, text: str) -> None:
    assert wording.dollars(value) == text


@pytest.mark.parametrize(
    ("spent", "limits", "text"),
    [
        (Spending(calls=1, failed=1), {}, "1 call, 1 failed; 0 tokens"),
        (Spending(calls=2, tokens=9000), {"dollars": 5.0}, "2 calls; 9.00k tokens"),
        (
            Spending(calls=2, tokens=9000, dollars=Decimal("0.42")),
            {"calls": 9, "tokens": 10_000, "dollars": 5.0},
            "2/9 calls; 9.00k/10.0k tokens; $0.42/$5.00",
        ),
        (
            Spending(calls=2, estimated=1, tokens=9000, dollars=Decimal("0.42")),
            {"dollars": 5.0},
            "2 calls; at most 9.00k tokens; at most $0.42/$5.00",
        ),
    ],
)
def test_words_what_models_cost(spent: Spending, limits: dict[str, float | None], text: str) -> None:
    assert "; ".join(wording.cost(spent, limits)) == text


@pytest.mark.parametrize(
    ("name", "text"), [("openai/gpt-6", "gpt-6"), ("local/org/small\x1b", "small"), ("agent", "agent")]
)
def test_words_models(name: str, text: str) -> None:
    assert wording.short_model(name) == text


@pytest.mark.parametrize(
    ("id", "text"), [("", "ref"), ("0123456789ab", "012345"), ("conv2d/wmma", "conv2d/wmma")]
)
def test_words_ids(id: str, text: str) -> None:
    assert wording.short_id(id) == text


@pytest.mark.parametrize(
    ("leases", "text"),
    [
        ([("0", 15.0, 0.0)], ", device busy 50% of the time"),
        ([("0", 15.0, 3.0)], ", device busy 50% of the time, idle 10% while kernels were built"),
        ([("0", 27.0, 0.0), ("1", 27.0, 0.0)], ", each of 2 devices busy 90% of the time"),
        (
            [("0", 27.0, 0.0), ("1", 15.0, 3.0)],
            ", each of 2 devices busy 50% to 90% of the time, idle 0% to 10% while kernels were built",
        ),
        ([("node:1:1/0", 3600.0, 0.0)], ""),
        ([("", 13.0, 0.0)], ", devices busy 43% of the time"),
    ],
)
def test_words_how_busy_devices_were(leases: list[tuple[str, float, float]], text: str) -> None:
    progress = Progress(clock=lambda: 0.0)
    for device, held_s, idle_s in leases:
        lease = DeviceLease(device=device, held_s=held_s, idle_s=idle_s)
        progress.state.time.add(Evaluation(status=Status.CRASHED, lease=lease))
    progress.state.used_s = 30.0
    assert wording.busy(progress) == text
