"""A search survives every bad day of a model's provider, in every phase, and loses nothing that could have
been read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from search.models import service
from search.proposers.llm import proposer
from search.records.events import ModelCalled
from search.records.journal import replay
from search.records.model_calls import Cause, ModelCall
from search.run import __main__ as command
from search.strategies.idea_branching import IdeaBranching
from tests.search.fakes import state_of
from tests.search.models.chaos import (
    ALL,
    LIMITS,
    OUTAGES,
    PHASES,
    READABLE,
    UNUSABLE,
    WIRES,
    Figures,
    Wire,
    Writer,
    run,
)
from tests.search.models.providers.servers import Asked, Reply

SMALL = Figures(ideas=2, kernels=4, repairs=2, ended="rounds")
"""Of an undisturbed search: a round of two ideas with two variants each, of which one is repaired."""


@pytest.fixture(params=["chat", "responses", "google"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds in place of seconds and minutes. The SDKs are imported before a call has to be
    in time."""
    for model in (wire.model("http://127.0.0.1") for wire in WIRES.values()):
        assert model.refusal() is None
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(service, "LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(proposer, "PAUSES_S", (0.01, 0.01))


def calls_of(folder: Path) -> list[ModelCall]:
    events = replay(folder / "journal.jsonl")
    return [event.call for event in events if isinstance(event, ModelCalled)]


@pytest.mark.slow
def test_fifty_bad_days_in_one_search(wire: Wire, tmp_path: Path) -> None:
    """Each question's first attempt has another bad day, in an order drawn at random."""
    sizes = {"rounds": 5, "ideas": 4, "branch": 2}
    (tmp_path / "undisturbed").mkdir()
    run(tmp_path / "undisturbed", wire, Writer(), **sizes)
    undisturbed = Figures.of(tmp_path / "undisturbed" / "journal.jsonl")
    assert undisturbed == Figures(ideas=20, kernels=40, repairs=20, ended="rounds")
    left = random.Random(7).sample(list(ALL.items()), len(ALL))
    met = {}

    def plan(good: Reply, phase: str, number: int, attempt: int) -> Reply:
        if attempt or not left:
            return good
        name, day = left.pop()
        met[name] = phase
        return day(wire, good)

    (tmp_path / "disturbed").mkdir()
    run(tmp_path / "disturbed", wire, Writer(plan), **sizes)
    assert Figures.of(tmp_path / "disturbed" / "journal.jsonl") == undisturbed
    assert len(met) == len(ALL) >= 50
    assert set(met.values()) == set(PHASES)
    failed = [call for call in calls_of(tmp_path / "disturbed") if call.cause is not None]
    assert len(failed) >= len(OUTAGES) + len(UNUSABLE), "and those that were slow for another reason"
    assert all(call.detail or call.cause is Cause.EMPTY for call in failed)


def survived(folder: Path, wire: Wire, phase: str, name: str) -> Figures:
    """A search in which every question of a phase has the same bad day: an outage for longer than the model's
    tries, an unusable answer for as long as it is asked again."""
    times = LIMITS.tries + 2 if name in OUTAGES else LIMITS.tries - 1 if name in UNUSABLE else 10**6

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        return ALL[name](wire, good) if of == phase and attempt < times else good

    folder.mkdir(parents=True)
    run(folder, wire, Writer(plan))
    return Figures.of(folder / "journal.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "name"),
    [
        ("code", "503, nested"),
        ("repair", "reset"),
        ("ideas", "200, html"),
        ("code", "refused"),
        ("ideas", "usage {}"),
    ],
)
def test_a_bad_day_that_lasts(phase: str, name: str, tmp_path: Path) -> None:
    assert survived(tmp_path / "run", WIRES["chat"], phase, name) == SMALL


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_bad_day_in_every_phase(wire: Wire, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a table: what each search made, next to an undisturbed one."""
    rows, lost = [f"{'':26} {'phase':7} {'ideas':>6} {'kernels':>8} {'repairs':>8} {'lost':>5}"], 0
    for number, name in enumerate(ALL):
        for phase in PHASES:
            if name == "slow" and phase != "code":
                continue  # it takes many seconds
            found = survived(tmp_path / f"{number} {phase}", wire, phase, name)
            missing = SMALL.total - found.total
            lost += bool(missing or found.ended != SMALL.ended)
            rows.append(
                f"{name:26} {phase:7} {found.ideas:6} {found.kernels:8} {found.repairs:8} {missing:5}"
            )
    rows.append(f"{'undisturbed':26} {'':7} {SMALL.ideas:6} {SMALL.kernels:8} {SMALL.repairs:8} {0:5}")
    with capsys.disabled():
        print("\n" + "\n".join(rows))
    assert not lost


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "down",
    [
        Reply(status=503, body="{}"),
        Reply(status=429, body="{}", headers={"Retry-After": "86400"}),
        Reply(hang_up="before"),
    ],
    ids=["503", "429 for a day", "reset"],
)
def test_another_model_answers_for_one_that_is_gone_for_good(phase: str, down: Reply, tmp_path: Path) -> None:
    """From a phase on, the first model is away, and the second one is healthy."""
    gone = False

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        nonlocal gone
        gone = gone or of == phase
        return down if gone else good

    second = Writer()
    run(tmp_path, WIRES["chat"], Writer(plan), second, patience_s=1e6)
    assert Figures.of(tmp_path / "journal.jsonl") == SMALL
    calls = calls_of(tmp_path)
    assert any(call.model == "openai/m-1" and call.cause is None for call in calls)
    if "Retry-After" in down.headers:
        failed = [call for call in calls if call.cause is not None]
        assert len(failed) <= LIMITS.concurrency


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("status", [503, 401, 404])
def test_after_the_patience_a_run_stops_and_resumes_without_a_loss(
    phase: str, status: int, tmp_path: Path
) -> None:
    """An outage that does not end, an account that is closed, a model that is withdrawn."""
    away = Reply(status=status, body={"error": {"message": "away"}})

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        return away if of == phase else good

    finished = run(tmp_path, WIRES["chat"], Writer(plan), patience_s=0.05)
    assert finished.reason.startswith("error: no model answers (openai/m-0: ")
    assert "resume the run" in finished.reason
    assert command._status(finished) == 1
    before = Figures.of(tmp_path / "journal.jsonl")
    assert before != SMALL
    run(tmp_path, WIRES["chat"], Writer())
    assert Figures.of(tmp_path / "journal.jsonl") == SMALL
    state = state_of(tmp_path / "journal.jsonl")
    assert state.implemented == set(state.tree.ideas)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["refused", "no JSON, no code", "message null"])
def test_unusable_answers_to_a_question_for_ideas_do_not_end_a_search(name: str, tmp_path: Path) -> None:
    """All of a model's tries, twice over: a person would ask once more."""

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        return ALL[name](WIRES["chat"], good) if of == "ideas" and attempt < 2 * LIMITS.tries else good

    run(tmp_path, WIRES["chat"], Writer(plan))
    assert Figures.of(tmp_path / "journal.jsonl") == SMALL


@pytest.mark.slow
def test_a_kernel_for_which_no_model_proposes_anything_usable_is_left_out(tmp_path: Path) -> None:
    """Of the second round's two questions for ideas the first, for three of its four, is always refused."""

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        return Reply(refusal="I cannot.") if of == "ideas" and number == 1 else good

    run(tmp_path, WIRES["chat"], Writer(plan), rounds=3, ideas=4, branch=2, keep=2)
    assert Figures.of(tmp_path / "journal.jsonl") == Figures(ideas=9, kernels=18, repairs=9, ended="rounds")


@pytest.mark.slow
@pytest.mark.parametrize("is_synchronous", [True, False])
def test_a_model_that_never_answers_usably_ends_the_search_with_an_error(
    is_synchronous: bool, tmp_path: Path
) -> None:
    strategy = IdeaBranching(ideas=2, branch=2, keep=2, synchronous=is_synchronous)

    def refuse(asked: Asked, before: int) -> Reply:
        return Reply(refusal="I cannot.")

    finished = run(tmp_path, WIRES["chat"], refuse, strategy=strategy)
    assert finished.reason.startswith("error: no model gives a usable answer")
    assert "I cannot." in finished.reason
    run(tmp_path, WIRES["chat"], Writer(), strategy=strategy)
    assert Figures.of(tmp_path / "journal.jsonl") == SMALL


@pytest.mark.slow
def test_what_can_be_read_is_not_asked_again(wire: Wire, tmp_path: Path) -> None:
    names = iter(list(READABLE) * 2)

    def plan(good: Reply, of: str, number: int, attempt: int) -> Reply:
        return READABLE[next(names)](wire, good)

    run(tmp_path, wire, Writer(plan), rounds=2)
    assert [call.cause for call in calls_of(tmp_path)] == [None] * 15, "14 for ideas and code, a reflection"
