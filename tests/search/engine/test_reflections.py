"""After each round a model may be asked what the measurements mean: when, how often, and at what cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search.proposers.llm.choice import Fixed
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import Budget
from search.records.events import IdeaProposed, RoundClosed, RoundReflected
from search.records.journal import replay
from search.records.model_calls import CallFailed, Cause, Purpose, Question
from search.strategies.idea_branching import IdeaBranching
from tests.search.engine_fakes import scripted
from tests.search.fakes import ScriptedModel, search, state_of


def reflecting(
    answer: Any = lambda question: f"It paid, says {question.about}.", **more: Any
) -> ScriptedModel:
    """A model with something new for every question, and this answer to reflections."""
    model = scripted(**more)
    other = model.answer

    def answers(question: Question) -> str | CallFailed:
        found: str | CallFailed = (answer if question.purpose is Purpose.REFLECTION else other)(question)
        return found

    model.answer = answers
    return model


def asked(model: ScriptedModel, purpose: Purpose = Purpose.REFLECTION) -> list[Question]:
    return [each for each in model.asked if each.purpose is purpose]


def test_each_round_is_reflected_on_once_before_the_next_ones_ideas(tmp_path: Path) -> None:
    path, model, again = tmp_path / "journal.jsonl", reflecting(), reflecting()
    search(path, rounds=2, proposer=LLMProposer({"one": model}))
    search(path, rounds=3, proposer=LLMProposer({"one": again}))
    assert [each.about for each in asked(model)] == ["round 1"]
    assert [each.about for each in asked(again)] == ["round 2"], "none about the last round"
    order = [
        (type(event).__name__, event.round if isinstance(event, RoundClosed) else 0)
        for event in replay(path)
        if isinstance(event, RoundClosed | RoundReflected)
        or (isinstance(event, IdeaProposed) and event.number == 1)
    ]
    one_round = ["IdeaProposed", "RoundClosed", "RoundReflected"]
    assert [name for name, _ in order] == [*one_round, *one_round, "IdeaProposed", "RoundClosed"]
    state = state_of(path)
    assert {number: each.model for number, each in state.reflections.items()} == dict.fromkeys(
        (1, 2), "scripted/one"
    )
    for question in asked(again, Purpose.IDEAS):
        assert "- Round 1: It paid, says round 1.\n- Round 2: It paid, says round 2.\n" in question.prompt
    (second,) = asked(again)
    assert "- Round 1: It paid, says round 1.\n" in second.prompt
    told = [idea.text in second.prompt for idea in state.tree.ideas.values() if idea.round == 2]
    assert told and all(told)
    assert not any(idea.text in second.prompt for idea in state.tree.ideas.values() if idea.round == 1)


def test_a_search_without_rounds_reflects_too(tmp_path: Path) -> None:
    path, model = tmp_path / "journal.jsonl", reflecting()
    strategy = IdeaBranching(ideas=2, branch=1, keep=1, synchronous=False)
    search(path, rounds=4, strategy=strategy, proposer=LLMProposer({"one": model}))
    about = [each.about for each in asked(model)]
    assert about == list(dict.fromkeys(about))
    assert {"round 1", "round 2"} <= set(about) <= {"round 1", "round 2", "round 3"}


@pytest.mark.parametrize("cause", [Cause.MALFORMED, Cause.SKIPPED, Cause.SERVER_ERROR, Cause.DENIED])
def test_a_failed_reflection_costs_a_warning(
    cause: Cause, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = reflecting(lambda question: CallFailed(cause, "no"))
    silent = LLMProposer({"one": reflecting(lambda question: "<think>Well.</think>\n")})
    path = tmp_path / "journal.jsonl"
    # The other model proposes nothing, unless this one denies access.
    models = {"one": failing, "two": scripted(name="scripted/two")}
    finished = search(path, rounds=2, proposer=LLMProposer(models, choice=Fixed({"two": 0.0})))
    assert finished.reason == "rounds"
    assert len(asked(failing)) == 1
    assert not state_of(path).reflections
    assert search(tmp_path / "silent.jsonl", rounds=2, proposer=silent).reason == "rounds"
    assert "no reflection on round 1" in caplog.text


def test_a_budget_without_room_is_left_for_ideas_and_kernels(tmp_path: Path) -> None:
    """A round of one idea with one kernel takes two calls."""
    path, few = {"ideas": 1, "branch": 1, "keep": 1}, reflecting()
    budget = Budget(rounds=2, calls=4)
    finished = search(tmp_path / "few", proposer=LLMProposer({"one": few}), budget=budget, **path)
    assert (finished.reason, len(asked(few))) == ("rounds", 0)
    enough = reflecting()
    budget = Budget(rounds=2, calls=5)
    finished = search(tmp_path / "enough", proposer=LLMProposer({"one": enough}), budget=budget, **path)
    assert (finished.reason, len(asked(enough))) == ("rounds", 1)


def test_reflection_is_off_with_its_key_and_without_a_history(tmp_path: Path) -> None:
    for name, more in (("off", {}), ("none", {"history": "none"})):
        model = reflecting()
        proposer = LLMProposer({"one": model}, reflection=name != "off")
        search(tmp_path / name, rounds=2, proposer=proposer, **more)
        assert not asked(model)


def test_the_model_that_had_most_of_the_ideas_is_asked(tmp_path: Path) -> None:
    one, two = reflecting(name="scripted/one"), reflecting(name="scripted/two")
    path = tmp_path / "journal.jsonl"
    search(path, rounds=2, ideas=5, proposer=LLMProposer({"one": one, "two": two}))
    had = [idea.model for idea in state_of(path).tree.ideas.values() if idea.round == 1]
    most = max(set(had), key=had.count)
    assert {each.name: len(asked(each)) for each in (one, two)} == {
        each.name: int(each.name == most) for each in (one, two)
    }
