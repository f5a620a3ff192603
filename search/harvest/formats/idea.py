"""Format idea: what was expected of every idea, and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from search.harvest.corpus import Corpus, HarvestedRun, comparable, task
from search.harvest.rows import ORIGIN, TASK, Column, Row, columns, timed, times
from search.records.tree import Seed, Variant


class IdeaOutcome:
    """A row per idea: its text, what the proposer expected, and the verdict on each of its kernels."""

    name = "idea"
    about = (
        "Every idea of a search with what its proposer expected and what was measured, failures included. "
        "`parent_idea` makes the rows of a run a tree."
    )
    columns = (
        *TASK,
        *columns("int64", round="round in which it was proposed, from 1"),
        *columns(
            "string",
            id="id of the idea",
            parent_idea="id of the idea whose kernel it starts from; empty if it starts elsewhere",
            parent="the kernel that it starts from; empty for the reference",
            idea="the idea",
            category="category of the idea, one of six",
            expected="the effect that the proposer expects, in its words; empty if it named none",
            refuted_by="the result that would refute the idea, in its words; empty if it named none",
        ),
        *columns(
            "float64",
            predicted_gain="expected gain: how many times as fast as its parent; null if none was given",
            gain="measured gain of its best kernel; null if none is correct or the parent was measured on "
            "another device",
        ),
        *columns(
            "int64",
            tried="number of its kernels that were judged",
            correct="number of these that are correct",
        ),
        Column(
            name="kernels",
            meaning="these kernels",
            type=(
                *columns(
                    "string",
                    variant="id of the variant",
                    repairs="id of the failed variant that it repairs; empty otherwise",
                    kernel="source that defines `ModelNew`",
                    language="language of the kernel",
                    status="`correct`, or how it failed",
                    rule="the rule that it broke, if it cheated",
                ),
                *timed("", "the kernel; null where it failed"),
            ),
        ),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per idea with at least one judged kernel."""
        for run in corpus.runs:
            for id in run.state.tree.ideas:
                own = [each for each in run.written.values() if each.idea == id]
                if own:
                    yield self._row(run, own)
                else:
                    left_out["ideas without a judged kernel"] += 1

    def _row(self, run: HarvestedRun, own: list[Variant]) -> Row:
        tree = run.state.tree
        idea, seed = tree.ideas[own[0].idea], run.seed_of(own[0])
        parent, asked = tree.variants.get(idea.parent), task(run.problem)
        correct = [each for each in own if each.timing is not None]
        values = asked | {
            "round": idea.round,
            "id": idea.id,
            "parent_idea": parent.idea if parent else "",
            "parent": seed.kernel.source if seed else "",
            "idea": idea.text,
            "category": idea.category.value,
            "expected": idea.expected,
            "refuted_by": idea.refuted_by,
            "predicted_gain": idea.predicted_gain or None,
            "gain": _gain(correct, seed),
            "tried": len(own),
            "correct": len(correct),
            "kernels": [_kernel(each) for each in own],
            **run.origin(*own),
        }
        compared = (asked["reference"], idea.text, *(each.kernel.source for each in own))
        return Row(values=values, compared=compared, worth=float(len(own)))


def _kernel(variant: Variant) -> dict[str, str | float | None]:
    verdict = variant.evaluation
    assert verdict is not None, "judged variants have a verdict"
    return {
        "variant": variant.id,
        "repairs": variant.repairs,
        "kernel": variant.kernel.source,
        "language": variant.kernel.language,
        "status": verdict.status.value,
        "rule": verdict.rule,
        **times("", verdict),
    }


def _gain(correct: list[Variant], seed: Seed | None) -> float | None:
    """Of the variant whose speedup is surely the largest."""
    verdicts = [each.evaluation for each in correct if each.evaluation]
    best = max(verdicts, key=lambda verdict: verdict.speedup_low, default=None)
    if best is None or seed is None:
        return best.speedup if best else None  # over the reference, which is eager PyTorch
    before = seed.evaluation
    if before is None or before.timing is None or not comparable(best, before):
        return None
    return best.speedup / before.speedup
