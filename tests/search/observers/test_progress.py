from __future__ import annotations

import pytest

from evaluators.evaluation import Status
from search.events import Event, RoundClosed, VariantEvaluated
from search.observers import wording
from search.observers.progress import Progress


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
    assert after(whole_run[:closed], evaluations=6).evaluations_left == 2


def test_time_goes_on_between_events(whole_run: list[Event]) -> None:
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
    ("id", "text"), [("", "ref"), ("0123456789ab", "012345"), ("conv2d/wmma", "conv2d/wmma")]
)
def test_words_ids(id: str, text: str) -> None:
    assert wording.short_id(id) == text
