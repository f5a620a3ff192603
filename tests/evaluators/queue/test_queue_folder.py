"""Requests, leases and verdicts in a folder: each once, whoever looks, and whatever the clocks say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evaluators.base.usage_error import UsageError
from evaluators.queue.queue_folder import QueueFolder
from evaluators.queue.requests import BadRequest, Operation
from evaluators.queue.turns import Turns, in_turn
from evaluators.queue.verdicts import BadVerdict, DeviceVerdict
from evaluators.records.problem import Case, Problem
from evaluators.records.race import after_quick_stage
from tests.evaluators.queue.queues import IDENTITY, Clock, filled, request, source, verdict_on
from tests.evaluators.scheduler.fake_host import CORRECT, kernel

WITH_CASES = Problem(
    name="level1/x", source="class Model: ...", overrides={"s": (2, (3,))}, cases=(Case(sizes={"n": (4, 5)}),)
)


def everything(_: object) -> bool:
    return True


def test_a_request_is_text_named_by_its_contents(tmp_path: Path) -> None:
    asked = request("a", problem=WITH_CASES, operation=Operation.COMPARE, kernels=[kernel("a"), kernel("b")])
    folder = filled(tmp_path, [asked, asked])
    (pending,) = folder.pending()
    assert pending.id == asked.id
    assert folder.read(pending) == asked
    others = [request("a", number=1), request("a", kind="fake"), request("a", search="two"), request("b")]
    assert len({each.id for each in [request("a"), asked, *others]}) == 6
    path = folder.requests / "one" / f"{asked.id}.json"
    path.write_text(path.read_text().replace("# a", "# evil"))
    with pytest.raises(BadRequest, match="was altered"):
        folder.read(pending)
    path.write_text("[]")
    with pytest.raises(BadRequest, match="cannot be read"):
        folder.read(pending)


def test_the_threshold_of_a_race_is_part_of_its_requests_id(tmp_path: Path) -> None:
    thresholds = (None, 0.0, 1.5, 1.25)
    asked = [request(operation=Operation.RACE, threshold=each) for each in thresholds]
    assert len({each.id for each in asked}) == 4
    folder = filled(tmp_path, asked)
    assert {folder.read(each).threshold for each in folder.pending()} == set(thresholds)


def test_other_requests_have_the_form_that_older_workers_read() -> None:
    assert "threshold" not in request().text
    assert '"threshold": null' in request(operation=Operation.RACE, threshold=None).text


@pytest.mark.parametrize(
    ("operation", "asked_for", "quick", "fits"),
    [
        (Operation.RACE, None, None, True),
        (Operation.RACE, 1.5, 1.5, True),
        (Operation.RACE, 1.5, 2.0, False),
        (Operation.RACE, 0.0, None, False),
        (Operation.EVALUATE, 0.0, None, False),
        (Operation.THOROUGH, 0.0, 0.5, False),
        (Operation.COMPARE, 0.0, None, False),
    ],
)
def test_a_quick_stage_answers_only_a_race_that_asked_for_it(
    tmp_path: Path, operation: Operation, asked_for: float | None, quick: float | None, fits: bool
) -> None:
    asked = request(operation=operation, threshold=asked_for)
    folder = filled(tmp_path, [asked])
    outpaced = after_quick_stage(CORRECT, quick)
    verdict = DeviceVerdict(request=asked.id, worker="node:1:a", device="fake", evaluations=(outpaced,))
    folder.answer("one", verdict)
    if fits:
        assert folder.verdict(asked).evaluations == (outpaced,)
    else:
        with pytest.raises(BadVerdict, match="only a quick stage"):
            folder.verdict(asked)


@pytest.mark.parametrize("name", ["../x", "", ".x", "a/b", "a\n"])
def test_a_search_cannot_name_another_folder(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a folder"):
        request(search=name)


def test_the_first_verdict_counts(tmp_path: Path) -> None:
    asked = request()
    folder = filled(tmp_path, [asked])
    assert folder.answer("one", verdict_on(asked, log="first"))
    assert not folder.answer("one", verdict_on(asked, log="second"))
    assert folder.verdict(asked).evaluations[0].log == "first"
    folder.submit(asked)
    assert folder.pending() == []


def test_a_verdict_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    asked = request(kind="NVIDIA H200")
    folder = filled(tmp_path, [asked])
    folder.answer("one", verdict_on(asked, device="NVIDIA L4"))
    with pytest.raises(BadVerdict, match=f"{asked.id}.*NVIDIA L4.*pinned to NVIDIA H200"):
        folder.verdict(asked)
    text = verdict_on(request()).text
    with pytest.raises(BadVerdict, match="was altered"):
        DeviceVerdict.read(text.replace('"speedup": 2.0', '"speedup": 2.05'))
    assert DeviceVerdict.read(text) == verdict_on(request())


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    QueueFolder(tmp_path)
    os.chmod(tmp_path / "verdicts", 0o770)
    with pytest.raises(UsageError, match=r"verdicts: others may write to it.*trusted=true"):
        QueueFolder(tmp_path)
    QueueFolder(tmp_path, trusted=True)


def test_one_of_several_workers_gets_a_request(tmp_path: Path) -> None:
    folder = filled(tmp_path, [request("a")])
    workers = [source(folder, worker=str(n)) for n in range(3)]
    took = [each.take(everything, everything) for each in workers]
    assert [each is not None for each in took] == [True, False, False]


def test_a_lease_expires_by_the_clock_of_the_worker_that_watches(tmp_path: Path) -> None:
    """The holder's clock is wrong by years; what counts is whether its lease changes."""
    folder = filled(tmp_path, [request("a")])
    clock = Clock()
    holder, other = source(folder, worker="holder"), source(folder, worker="other", clock=clock)
    held = holder.take(everything, everything)
    assert held is not None and held.lease is not None
    for year_s in (0, 4e9):
        for _ in range(2):
            clock.now_s += 59
            os.utime(held.lease.path, (year_s, year_s))
            assert other.take(everything, everything) is None
            holder.beat([held])
    assert other.take(everything, everything) is None  # the last beat is new to it
    clock.now_s += 61
    taken = other.take(everything, everything)
    assert taken is not None and taken.failures == 1
    holder.answer(held, verdict_on(held.request, log="late, but first"))
    other.answer(taken, verdict_on(held.request, log="second"))
    holder.beat([held])
    assert folder.verdict(held.request).evaluations[0].log == "late, but first"
    assert not list(folder.leases.iterdir()) and not folder.pending()


def test_a_request_that_was_answered_meanwhile_is_not_carried_out(tmp_path: Path) -> None:
    asked = request("a")
    folder = filled(tmp_path, [asked])
    slow = source(folder, worker="slow")
    text = (folder.requests / "one" / f"{asked.id}.json").read_text()

    def answer_meanwhile(_: object) -> bool:
        folder.answer("one", verdict_on(asked))
        (folder.requests / "one" / f"{asked.id}.json").write_text(text)  # a slow search repeats it
        return True

    assert slow.take(everything, answer_meanwhile) is None
    assert not folder.pending() and not list(folder.leases.iterdir())


def test_searches_take_turns_by_device_time() -> None:
    turns, given = Turns(), {"dear": 0.0, "cheap": 0.0}
    for _ in range(400):
        search = turns.next(given)
        given[search] += (cost := {"dear": 20.0, "cheap": 3.0}[search])
        turns.charge(search, cost)
    assert given["dear"] == pytest.approx(given["cheap"], rel=0.05)
    late = [turns.next([*given, "late"]) for _ in range(1)]
    for _ in range(100):
        turns.charge(search := turns.next([*given, "late"]), 3.0)
        late.append(search)
    assert 30 <= late.count("late") <= 40, "it does not make up for the time in which it had nothing to do"


def test_openings_come_first_then_the_searches_in_turn() -> None:
    many = [request(n, search="many") for n in range(4)]
    few = [request(n, search="few") for n in range(2)]
    opening, known = (
        request(search=search, operation=Operation.DESCRIBE, kernels=[]) for search in ("new", "few")
    )
    asked = [*many, known, *few, opening]
    ordered = in_turn(asked)
    assert ordered[0] == opening and {each.id for each in ordered} == {each.id for each in asked}
    of_few = [each for each in ordered if each.search == "few"]
    assert of_few == [*few, known], "it has begun, and an evaluation opens its problem as well"


def test_a_search_gets_all_its_requests_on_a_problem_in_one_turn() -> None:
    """Otherwise each kernel of a search opens the problem and its cases again."""
    first = [request(n, search="first") for n in range(3)]
    other = [request(n, search="first", problem=WITH_CASES) for n in range(3)]
    second = [request(n, search="second") for n in range(2)]
    mixed = [each for pair in zip(first, other, strict=True) for each in pair]
    assert in_turn([*mixed, *second]) == [*first, *second, *other]


def test_a_problem_of_another_device_is_left_to_others(tmp_path: Path) -> None:
    folder = filled(tmp_path, [request(kind="NVIDIA H200"), request(problem=WITH_CASES)])
    assert source(folder).take(IDENTITY.serves, everything) is None
