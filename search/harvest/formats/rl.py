"""Format rl: tasks for reinforcement learning, to be rewarded by a reward server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from evaluators.base.compiler_messages import without_folders
from evaluators.records.evaluation import Status
from evaluators.records.problem import Problem
from evaluators.reference.loading import PROBLEMS
from evaluators.rewards.requested_problems import CHANGES
from search.harvest.conversations import ASKED, PROMPT, asks_for_code, asks_for_repair
from search.harvest.corpus import Corpus, HarvestedRun, task
from search.harvest.rows import ORIGIN, TASK, Row, columns, timed, times
from search.records.tree import Variant


class Rl:
    """A row per question that a search asks for code: to write a kernel for an idea, and to repair one that
    failed. The prompts ask for one kernel in the words of a search, so that a trained model fits into one."""

    name = "rl"
    about = (
        "Tasks for reinforcement learning: a question for one kernel, what a reward server needs to reward "
        "the answer, and how difficult the task is for the kernels that were measured for it."
    )
    columns = (
        PROMPT,
        ASKED,
        *TASK,
        *columns(
            "string",
            kind="`code` to write a kernel for an idea, `repair` to repair one that failed",
            request="JSON: the fields of a request to a reward server, except for the completion",
            idea="the idea",
            category="category of the idea, one of six",
            parent="the kernel that the question starts from, or the one to repair; empty for the reference",
            log="the evaluator's log for the kernel to repair; empty otherwise",
        ),
        *columns("int64", tries="kernels that were measured for this question"),
        *columns(
            "float64",
            solved="share of them that are correct; null if there are none",
            eager_ms="time of eager PyTorch on that device; null if no kernel is correct",
        ),
        *timed("best_", "the fastest of them"),
        *ORIGIN,
    )

    def rows(self, corpus: Corpus, left_out: Counter[str]) -> Iterator[Row]:
        """A row per idea with a judged kernel, and one per failed kernel that is not a cheat."""
        for run in corpus.runs:
            if not _is_requestable(run.problem):
                left_out["problems with rules that a request cannot state"] += 1
                continue
            for idea in run.state.tree.ideas:
                own = [each for each in run.written.values() if each.idea == idea]
                if first := [each for each in own if not each.repairs]:
                    yield self._row(run, first, None)
                for failed in own:
                    status = failed.evaluation.status if failed.evaluation else None
                    if status is Status.REJECTED:
                        left_out["cheats, which are not to be repaired"] += 1
                    elif status is not Status.CORRECT:
                        yield self._row(run, [each for each in own if each.repairs == failed.id], failed)

    def _row(self, run: HarvestedRun, tries: Sequence[Variant], failed: Variant | None) -> Row:
        known = failed or tries[0]
        brief = replace(run.brief(known), asked=None)
        seed = run.seed_of(known)
        parent = failed.kernel.source if failed else seed.kernel.source if seed else ""
        prompt = asks_for_repair(run.problem, brief, failed) if failed else asks_for_code(run.problem, brief)
        correct = [each.evaluation for each in tries if each.evaluation and each.evaluation.timing]
        best = max(correct, key=lambda verdict: verdict.speedup_low, default=None)
        values: dict[str, Any] = task(run.problem) | {
            "prompt": prompt,
            "asked": False,
            "kind": "repair" if failed else "code",
            "request": json.dumps(request(run.problem, parent)),
            "idea": brief.idea.text,
            "category": brief.idea.category.value,
            "parent": parent,
            "log": without_folders(failed.evaluation.log) if failed and failed.evaluation else "",
            "tries": len(tries),
            "solved": len(correct) / len(tries) if tries else None,
            "eager_ms": best.timing.eager_ms if best and best.timing else None,
            **times("best_", best),
            **run.origin(*([failed] if failed else tries)),
        }
        compared = (values["reference"], *(each["content"] for each in prompt))
        return Row(values=values, compared=compared, worth=float(len(tries)))


def request(problem: Problem, parent: str) -> dict[str, Any]:
    """The fields of a request for a reward, except for the completion: a shipped problem by its name, any
    other by its reference."""
    keys = {
        "sizes": dict(problem.overrides),
        "cases": [each.to_json() for each in problem.cases],
        **{name: getattr(problem, name) for name in CHANGES if name not in ("sizes", "cases")},
    }
    shipped = PROBLEMS / f"{problem.name}.py"
    is_shipped = shipped.is_file() and shipped.read_text(encoding="utf-8") == problem.source
    named = {"problem": problem.name} if is_shipped else {"reference": problem.source}
    return {**named, "problem_keys": keys, **({"parent": parent} if parent else {})}


def _is_requestable(problem: Problem) -> bool:
    """Whether a request can state all of the problem's rules."""
    return problem.floor and not problem.allow_degenerate and problem.timed
