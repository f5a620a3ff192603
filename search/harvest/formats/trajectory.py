"""Format trajectory: whole branches of a search, with a reward for every step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from evaluators.base.compiler_messages import without_folders
from evaluators.records.evaluation import Evaluation, Status
from search.harvest.conversations import ASKED, PROMPT, asks_for_code, asks_for_repair
from search.harvest.corpus import Corpus, HarvestedRun, comparable, task
from search.harvest.rows import ORIGIN, TASK, Column, Row, columns, timed, times
from search.records.tree import Variant


class Trajectory:
    """Each path from the reference, or from a library entry, to a leaf of the search tree.

    The reward of a correct step is ln(its speedup / the speedup of the level that the branch has reached) if
    the 95 % intervals of the two do not overlap, and the step is then the new level; otherwise it is 0. The
    reference has a speedup of 1. A step that failed has the reward `failed`, one that cheated `rejected`.
    Raises ValueError if one of these is above 0.
    """

    name = "trajectory"
    about = (
        "Whole branches of a search, from the reference to a leaf, with the question and a reward for every "
        "step: ln(speedup / speedup reached before) where the 95 % intervals of the two do not overlap, 0 "
        "where they do, and a fixed one for failures. Branches share their first steps; these have the same "
        "variant ids."
    )
    columns = (
        *TASK,
        *columns("string", start="the library kernel that the branch starts from; empty for the reference"),
        Column(
            name="steps",
            meaning="the steps of the branch, in order",
            type=(
                *columns(
                    "string",
                    variant="id of the variant",
                    repairs="id of the failed step that it repairs; empty otherwise",
                    idea="the idea",
                    category="category of the idea, one of six",
                    kernel="the kernel written for it",
                    language="language of the kernel",
                    status="`correct`, or how it failed",
                    rule="the rule that it broke, if it cheated",
                    log="the evaluator's log for it",
                ),
                PROMPT,
                ASKED,
                *timed("", "the kernel; null where it failed"),
                *columns("float64", reward="reward of this step"),
            ),
        ),
        *columns(
            "float64",
            total_reward="sum of all rewards",
            final_speedup="speedup of the last correct step, 0 without one",
        ),
        *ORIGIN,
    )

    def __init__(self, *, failed: float = -0.1, rejected: float = -1.0) -> None:
        if failed > 0 or rejected > 0:
            raise ValueError(
                f"format.failed is {failed} and format.rejected {rejected}; they must not be above 0"
            )
        self._failed = failed
        self._rejected = rejected

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per branch."""
        for run in corpus.runs:
            inner = {before.id for each in run.written.values() if (before := run.before(each))}
            for variant in run.written.values():
                if variant.id not in inner:
                    yield self._row(run, variant)

    def _row(self, run: HarvestedRun, last: Variant) -> Row:
        branch = [last]
        while (before := run.before(branch[0])) is not None:
            branch.insert(0, before)
        start, asked = run.seed_of(branch[0]), task(run.problem)
        steps = self._steps(run, branch)
        rewards = [step["reward"] for step in steps]
        speedups = [step["speedup"] for step in steps if step["speedup"] is not None]
        values = asked | {
            "start": start.kernel.source if start else "",
            "steps": steps,
            "total_reward": math.fsum(rewards),
            "final_speedup": speedups[-1] if speedups else 0.0,
            **run.origin(*reversed(branch)),
            "variants": [each.id for each in branch],
        }
        compared = (asked["reference"], *(each.kernel.source for each in branch))
        return Row(values=values, compared=compared, worth=values["total_reward"])

    def _steps(self, run: HarvestedRun, branch: list[Variant]) -> list[dict[str, Any]]:
        entry, first = run.seed_of(branch[0]), branch[0].evaluation
        # The speedup that the branch has reached, with its interval. None for an entry measured on another
        # device: the gain over it is unknown, and its own speedup is not part of the branch.
        level: tuple[float, float, float] | None = None if entry else (1.0, 1.0, 1.0)
        if entry and entry.evaluation and first and comparable(first, entry.evaluation):
            level = _level(entry.evaluation)
        steps = []
        for variant in branch:
            verdict, idea, brief = variant.evaluation, run.state.tree.ideas[variant.idea], run.brief(variant)
            failed = run.judged.get(variant.repairs)
            assert verdict is not None, "judged variants have a verdict"
            if verdict.status is Status.CORRECT:
                reached = _level(verdict)
                differs = reached and level and (reached[1] > level[2] or reached[2] < level[1])
                reward = math.log(reached[0] / level[0]) if reached and level and differs else 0.0
                level = reached if differs or level is None else level
            else:
                reward = self._rejected if verdict.status is Status.REJECTED else self._failed
            steps.append(
                {
                    "variant": variant.id,
                    "repairs": variant.repairs,
                    "idea": idea.text,
                    "category": idea.category.value,
                    "kernel": variant.kernel.source,
                    "language": variant.kernel.language,
                    "status": verdict.status.value,
                    "rule": verdict.rule,
                    "log": without_folders(verdict.log),
                    "prompt": (
                        asks_for_repair(run.problem, brief, failed)
                        if failed
                        else asks_for_code(run.problem, brief)
                    ),
                    "asked": brief.asked is not None,
                    **times("", verdict),
                    "reward": reward,
                }
            )
        return steps


def _level(evaluation: Evaluation) -> tuple[float, float, float] | None:
    """The speedup with its interval; None for a kernel without one."""
    timing = evaluation.timing
    return (timing.speedup, timing.speedup_low, timing.speedup_high) if timing else None
