"""The events of a small run."""

from __future__ import annotations

from search.records.events import (
    Event,
    IdeaProposed,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.records.tree import Category, Idea, Variant
from tests.search.fakes import PROBLEM, correct, failed, kernel


def events_of_a_run() -> list[Event]:
    """One round: three ideas in one answer, two variants of the first, both judged."""
    ideas = [
        Idea(text=f"idea {i}", category=Category.MEMORY, parent="", round=1, proposer="fake")
        for i in range(3)
    ]
    idea = ideas[0].id
    first = Variant(kernel=kernel(1), idea=idea, parent="", round=1)
    second = Variant(kernel=kernel(2), idea=idea, parent="", round=1)
    judged = [
        Variant(kernel=v.kernel, idea=idea, parent="", round=1, evaluation=e)
        for v, e in ((first, correct()), (second, failed()))
    ]
    started = RunStarted(
        at_s=0.0, problem=PROBLEM, proposer="fake", strategy="fake", rounds=1, seed=0, environment={}
    )
    return [
        started,
        *(IdeaProposed(at_s=1.0, idea=it, number=i, expansion=0, of=3) for i, it in enumerate(ideas, 1)),
        VariantWritten(at_s=2.0, variant=first, number=1),
        VariantWritten(at_s=2.0, variant=second, number=2),
        *(VariantEvaluated(at_s=3.0, variant=v) for v in judged),
    ]
