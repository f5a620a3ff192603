from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.problem import Kernel
from search.models.client import ModelClient
from search.proposers.llm.choice import Fixed
from search.proposers.llm.proposer import LLMProposer
from search.protocols import ProposerFailed, RunContext
from search.records.budget import Budget, BudgetSpent
from search.records.model_calls import CallFailed, Cause, Limits, ModelCall, Price, Purpose, Question
from search.records.run_state import RunState
from search.records.tree import Category, Expansion, Idea, Seed, Variant
from tests.search.fakes import PROBLEM, ScriptedModel, code_answer, correct, failed, ideas_answer, kernel
from tests.search.model_client_fakes import VirtualTime

Answer = Callable[[Question], str | CallFailed]

IDEAS = [
    "Stage the input tile in shared memory.",
    "Round the operands to bfloat16 and use the tensor cores.",
    "Unroll the innermost loop so that loads are hoisted.",
    "Let each block compute several outputs and keep them in registers.",
    "Transpose the weights so that neighbouring threads read neighbouring words.",
    "Replace the division by a multiplication with the reciprocal.",
]
IDEA = Idea(text=IDEAS[0], category=Category.MEMORY, parent="", round=1, proposer="llm", model="scripted/one")


def wanted(question: Question) -> int:
    found = re.search(r"Propose (\d+) ", question.prompt)
    assert found is not None
    return int(found[1])


class Counting:
    """Answers with the next ideas, as many as are asked for, and with a new kernel each time."""

    def __init__(self, start: int = 0) -> None:
        self.next = start

    def __call__(self, question: Question) -> str:
        if question.purpose is not Purpose.IDEAS:
            self.next += 1
            return code_answer(self.next)
        texts = IDEAS[self.next : self.next + wanted(question)]
        self.next += len(texts)
        return ideas_answer(*texts)


def context(
    tmp_path: Path, *, budget: Budget | None = None, **more: Any
) -> tuple[RunContext, list[ModelCall]]:
    calls: list[ModelCall] = []
    time = VirtualTime()
    model_client = ModelClient(
        budget=budget or Budget(),
        path=tmp_path / "model_calls.jsonl",
        report=calls.append,
        sleep=time.sleep,
        jitter=lambda: 1.0,
        clock=time,
    )
    given: dict[str, Any] = {"state": RunState(), "entries": (), "facts": {}} | more
    return RunContext(problem=PROBLEM, folder=tmp_path, model_client=model_client, **given), calls


def begun(tmp_path: Path, *models: ScriptedModel, **more: Any) -> tuple[LLMProposer, list[ModelCall]]:
    choice = more.pop("choice", None)
    run, calls = context(tmp_path, **more)
    proposer = LLMProposer({model.name.rpartition("/")[2]: model for model in models}, choice=choice)
    proposer.begin(run)
    return proposer, calls


def propose(proposer: LLMProposer, ideas: int = 3) -> list[Idea]:
    expansion = Expansion(seed=None, ideas=ideas, variants=2, round=1)
    return asyncio.run(proposer.propose(PROBLEM, expansion, [], random.Random(0)))


def implement(proposer: LLMProposer, n: int, written: list[Kernel] | None = None) -> list[Kernel]:
    async def all_of_them() -> list[Kernel]:
        answer = proposer.implement(PROBLEM, IDEA, None, n, written or [], random.Random(0))
        return [each async for each in answer]

    return asyncio.run(all_of_them())


def test_ideas_are_marked_with_their_model(tmp_path: Path) -> None:
    model = ScriptedModel(Counting())
    proposer, calls = begun(tmp_path, model)
    ideas = propose(proposer)
    assert [idea.text for idea in ideas] == IDEAS[:3]
    assert {(idea.proposer, idea.model, idea.expected) for idea in ideas} == {
        ("llm", "scripted/one", "faster")
    }
    assert [(call.purpose, call.about) for call in calls] == [(Purpose.IDEAS, "round 1")]
    assert model.asked[0].schema is not None


def test_too_many_ideas_are_cut(tmp_path: Path) -> None:
    proposer, _ = begun(tmp_path, ScriptedModel(lambda question: ideas_answer(*IDEAS)))
    assert [idea.text for idea in propose(proposer, 2)] == IDEAS[:2]


def test_a_repeated_idea_is_asked_for_again_once(tmp_path: Path) -> None:
    answers = iter([[IDEAS[0], IDEAS[0].upper(), IDEAS[1]], [IDEAS[1]], [IDEAS[2]]])
    model = ScriptedModel(lambda question: ideas_answer(*next(answers)))
    proposer, _ = begun(tmp_path, model)
    assert [idea.text for idea in propose(proposer)] == IDEAS[:2]
    assert len(model.asked) == 2
    assert wanted(model.asked[1]) == 1
    assert IDEAS[0].upper() in model.asked[1].prompt


def test_a_model_short_of_ideas_is_not_pressed(tmp_path: Path) -> None:
    model = ScriptedModel(lambda question: ideas_answer(IDEAS[0]))
    proposer, _ = begun(tmp_path, model)
    assert len(propose(proposer)) == 1
    assert len(model.asked) == 1


def test_two_models_share_the_ideas(tmp_path: Path) -> None:
    one, two = ScriptedModel(Counting()), ScriptedModel(Counting(3), name="scripted/two")
    proposer, _ = begun(tmp_path, one, two)
    ideas = propose(proposer, 4)
    assert len(ideas) == 4
    assert {idea.model for idea in ideas} == {"scripted/one", "scripted/two"}


@pytest.mark.parametrize("cause", list(Cause))
def test_what_one_model_cannot_answer_another_is_asked(tmp_path: Path, cause: Cause) -> None:
    broken = ScriptedModel(lambda question: CallFailed(cause, "out of order"), name="scripted/broken")
    proposer, calls = begun(tmp_path, broken, ScriptedModel(Counting()), choice=Fixed({"one": 0.0}))
    ideas = propose(proposer, 2)
    assert [idea.model for idea in ideas] == ["scripted/one"] * 2
    attempts = 2 if cause.retryable else 1
    assert [call.cause for call in calls] == [cause] * attempts + [None]
    before = len(broken.asked)
    propose(proposer, 2)
    is_over = cause is Cause.DENIED or cause.outage
    assert len(broken.asked) == before + (0 if is_over else attempts), "an outage is known"


def test_without_a_model_that_answers_the_proposer_says_why(tmp_path: Path) -> None:
    model = ScriptedModel(lambda question: CallFailed(Cause.DENIED, "the key is not valid"))
    proposer, _ = begun(tmp_path, model)
    for _ in range(2):
        with pytest.raises(ProposerFailed, match="scripted/one: access denied: the key is not valid"):
            propose(proposer)
    assert len(model.asked) == 1


def test_an_outage_is_waited_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = Counting()
    asked = itertools.count()

    def out_for_a_while(question: Question) -> str | CallFailed:
        return CallFailed(Cause.UNREACHABLE, "refused") if next(asked) < 9 else answers(question)

    proposer, calls = begun(tmp_path, ScriptedModel(out_for_a_while))
    assert len(propose(proposer, 2)) == 2
    assert [call.cause for call in calls] == [Cause.UNREACHABLE] * 9 + [None]
    assert sum(call.dollars for call in calls[:9]) == 0
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned[0] == (
        "no model answers (scripted/one: unreachable: refused); asking again in 2 s, giving up after 4 h "
        "(proposer.patience_s)"
    )
    pauses = [line.partition(" again in ")[2].partition(",")[0] for line in warned[:-1]]
    assert pauses == ["2 s", "4 s", "8 s", "16 s", "32 s", "64 s", "128 s", "256 s"]


def test_an_outage_is_waited_out_as_long_as_one_is_ready_to(tmp_path: Path) -> None:
    run, calls = context(tmp_path)
    model = ScriptedModel(lambda question: CallFailed(Cause.SERVER_ERROR, "503"))
    proposer = LLMProposer({"one": model}, patience_s=40.0)
    proposer.begin(run)
    with pytest.raises(ProposerFailed, match=r"no model answers \(scripted/one: server error: 503; .*resume"):
        propose(proposer)
    assert len(calls) == 7, "after 1, 2, 4, 8, 16 and the last 9 seconds"


def test_the_end_of_the_run_ends_the_wait(tmp_path: Path) -> None:
    broken = ScriptedModel(lambda question: CallFailed(Cause.UNREACHABLE, "refused"))
    proposer, _ = begun(tmp_path, broken, budget=Budget(seconds=3.0))
    with pytest.raises(BudgetSpent):
        propose(proposer)


def test_each_variant_is_a_call_and_comes_as_soon_as_it_is_there(tmp_path: Path) -> None:
    release = asyncio.Event()

    class Slow(ScriptedModel):
        async def complete(self, question: Question) -> Any:
            if "variant 1 of 3" not in question.prompt:
                await release.wait()
            return await super().complete(question)

    proposer, calls = begun(tmp_path, Slow(Counting()))

    async def first_then_rest() -> tuple[int, int]:
        answer = proposer.implement(PROBLEM, IDEA, None, 3, [], random.Random(0))
        await anext(answer)
        there = len(calls)
        release.set()
        return there, len([each async for each in answer])

    assert asyncio.run(first_then_rest()) == (1, 2)


def test_all_variants_of_an_idea_may_be_one_call(tmp_path: Path) -> None:
    model = ScriptedModel(lambda question: "\n".join(code_answer(i) for i in range(2)))
    run, calls = context(tmp_path)
    proposer = LLMProposer({"one": model}, together=True)
    proposer.begin(run)
    expected = [kernel(0).source, kernel(1).source]
    assert [each.source for each in implement(proposer, 3, [kernel("a")])] == expected
    assert len(calls) == 1
    assert implement(proposer, 1, [kernel("a")]) == []


def test_variants_that_are_there_are_not_asked_for_again(tmp_path: Path) -> None:
    model = ScriptedModel(Counting())
    proposer, _ = begun(tmp_path, model)
    assert len(implement(proposer, 4, [kernel("a"), kernel("b")])) == 2
    assert sorted(re.findall(r"variant (\d) of 4", "".join(q.prompt for q in model.asked))) == ["3", "4"]


def test_a_variant_that_fails_to_be_written_leaves_the_others(tmp_path: Path) -> None:
    def answer(question: Question) -> str | CallFailed:
        number = re.findall(r"variant (\d) of 3", question.prompt)[0]
        return "no code" if number == "2" else code_answer(number)

    model = ScriptedModel(answer)
    proposer, calls = begun(tmp_path, model)
    assert {each.source for each in implement(proposer, 3)} == {kernel(1).source, kernel(3).source}
    assert [call.cause for call in calls].count(Cause.MALFORMED) == model.limits.tries
    assert sum("An earlier answer could not be used" in q.prompt for q in model.asked) == 1


def test_at_the_cap_what_was_written_comes_first(tmp_path: Path) -> None:
    price = Price(input=0.0, output=1000.0)
    model = ScriptedModel(Counting(), price=price, limits=Limits(output_tokens=1000, tries=1))
    proposer, _ = begun(tmp_path, model, budget=Budget(dollars=1.02))

    came: list[Kernel] = []

    async def until_spent() -> None:
        async for each in proposer.implement(PROBLEM, IDEA, None, 8, [], random.Random(0)):
            came.append(each)

    # A call costs 0.05 dollars, and could cost 1: so much must be left for it.
    with pytest.raises(BudgetSpent, match="dollars"):
        asyncio.run(until_spent())
    assert len(came) == 1


def test_a_repair_tells_the_log(tmp_path: Path) -> None:
    model = ScriptedModel(Counting())
    proposer, calls = begun(tmp_path, model)
    bad = Variant(kernel=kernel("bad"), idea=IDEA.id, parent="", round=1, evaluation=failed())
    mended = asyncio.run(proposer.repair(PROBLEM, IDEA, bad, random.Random(0)))
    assert mended is not None
    assert mended.source == kernel(1).source
    (question,) = model.asked
    assert "it is incorrect" in question.prompt
    assert kernel("bad").source.strip() in question.prompt
    assert (calls[0].purpose, calls[0].about) == (Purpose.REPAIR, f"variant {bad.id}")


def test_a_failed_repair_returns_none(tmp_path: Path) -> None:
    proposer, _ = begun(tmp_path, ScriptedModel(lambda question: CallFailed(Cause.REFUSED, "no")))
    bad = Variant(kernel=kernel("bad"), idea=IDEA.id, parent="", round=1, evaluation=failed())
    assert asyncio.run(proposer.repair(PROBLEM, IDEA, bad, random.Random(0))) is None


def test_code_is_asked_of_the_model_that_had_the_idea_or_of_another_when_it_is_out(tmp_path: Path) -> None:
    out = ScriptedModel(lambda question: CallFailed(Cause.DENIED, "quota"), name="scripted/two")
    one = ScriptedModel(Counting())
    proposer, _ = begun(tmp_path, out, one)
    assert len(implement(proposer, 1)) == 1
    assert (len(out.asked), len(one.asked)) == (0, 1), "the idea is of scripted/one"
    other = Idea(text="x", category=Category.MEMORY, parent="", round=1, proposer="llm", model="scripted/two")
    bad = Variant(kernel=kernel("bad"), idea=other.id, parent="", round=1, evaluation=failed())
    assert asyncio.run(proposer.repair(PROBLEM, other, bad, random.Random(0))) is not None
    assert (len(out.asked), len(one.asked)) == (1, 2)


def test_a_proposer_needs_a_model() -> None:
    with pytest.raises(ValueError, match="llm=openai"):
        LLMProposer({})


@pytest.mark.parametrize("shown", [True, False])
def test_profiles_may_be_left_out(shown: bool, tmp_path: Path) -> None:
    seed = Seed(id="seed1", kernel=kernel("seed"), evaluation=correct())
    diagnosis = Diagnosis(reached=("static",), occupancy="that of the seed")
    run, _ = context(tmp_path, state=RunState(diagnoses={seed.kernel.id: diagnosis}))
    proposer = LLMProposer({"one": ScriptedModel(Counting())}, diagnoses=shown)
    proposer.begin(run)
    question = proposer.questions.ideas(PROBLEM, Expansion(seed=seed, ideas=1, variants=1, round=2), [], 1)
    assert ("Occupancy: that of the seed." in question.prompt) is shown


def screening(tmp_path: Path, ranking: str | CallFailed, **more: Any) -> tuple[list[Idea], ScriptedModel]:
    """The two ideas that are left of four, and the model, which ranks with this answer."""
    ideas = Counting()

    def answer(question: Question) -> str | CallFailed:
        return ranking if question.purpose is Purpose.SCREENING else ideas(question)

    model = ScriptedModel(answer)
    run, _ = context(tmp_path, **more)
    proposer = LLMProposer({"one": model}, screening=2)
    proposer.begin(run)
    return propose(proposer, 2), model


def test_the_most_promising_of_more_ideas_are_kept(tmp_path: Path) -> None:
    ranking = '{"ranking": [{"idea": 4, "rejected": false}, {"idea": 1, "rejected": true}, {"idea": 2}]}'
    kept, model = screening(tmp_path, ranking)
    assert [idea.text for idea in kept] == [IDEAS[3], IDEAS[1]]
    asked, ranked = model.asked
    assert (wanted(asked), ranked.about) == (4, "round 1")
    assert all(
        f"{number}. memory access: {text}" in ranked.prompt for number, text in enumerate(IDEAS[:4], 1)
    )


@pytest.mark.parametrize(
    "ranking", ["no idea", CallFailed(Cause.REFUSED, "no"), '[{"idea": 1, "rejected": true}, 2]']
)
def test_without_a_usable_ranking_the_first_ideas_are_kept(
    ranking: str | CallFailed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, model = screening(tmp_path, ranking)
    is_usable = isinstance(ranking, str) and ranking.startswith("[")
    assert [idea.text for idea in kept] == (IDEAS[1:3] if is_usable else IDEAS[:2])
    assert ("the ideas of round 1 are not screened" in caplog.text) is not is_usable
    assert len(model.asked) == 2, "the ranking is asked for once"


def test_a_budget_for_ideas_alone_leaves_them_unscreened(tmp_path: Path) -> None:
    kept, model = screening(tmp_path, '[{"idea": 4}]', budget=Budget(calls=3))
    assert [idea.text for idea in kept] == IDEAS[:2]
    assert len(model.asked) == 1


def test_another_model_may_rank(tmp_path: Path) -> None:
    one, two = ScriptedModel(Counting()), ScriptedModel(lambda question: "[2]", name="scripted/two")
    run, _ = context(tmp_path)
    proposer = LLMProposer({"one": one, "two": two}, choice=Fixed({"two": 0.0}), screening=2, screener="two")
    proposer.begin(run)
    assert [idea.text for idea in propose(proposer, 1)] == [IDEAS[1]]
    assert [question.purpose for question in two.asked] == [Purpose.SCREENING]
    for more, says in (({"screening": 1}, "screening is 1"), ({"screener": "three"}, "one of one")):
        with pytest.raises(ValueError, match=says):
            LLMProposer({"one": one}, **more)
