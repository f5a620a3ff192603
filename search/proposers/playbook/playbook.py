"""The built-in proposer: applies the moves of a catalogue to code templates, and learns which moves pay off.

A kernel of the playbook carries its knobs in a comment, from which the playbook reads a seed's state. An idea
carries its plan, so `implement` needs only the idea's record.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence

from evaluators.records.problem import Kernel, Problem
from search.proposers.playbook.bench import Bench, knobs_of
from search.proposers.playbook.fused import fused_workload
from search.proposers.playbook.move import Template
from search.proposers.playbook.one_operator import one_operator_workload
from search.proposers.playbook.operator_problem import operator_workload
from search.proposers.playbook.plan import Draft, Plan
from search.proposers.playbook.scores import Scores
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.workload import Workload, recognise
from search.protocols import RunContext
from search.records.tree import Expansion, Idea, Outcome, Seed, Variant

logger = logging.getLogger(__name__)

LANGUAGES = {"cpu": "cpp", "cuda": "triton"}
OPS = ("conv2d", "matmul", "softmax", "layernorm")
"""Operations with a template for one shape, in addition to the families in docs/guides/operators.md."""
REPETITION = 0.7
"""The penalty of an idea, in log gain, for each chosen idea of the expansion with the same move."""


class Playbook:
    """Proposes moves of the catalogue for the operation that a problem's reference computes.

    Args:
        noise: The standard deviation of the random term in an idea's score, in log gain.

    Raises:
        ValueError: If `noise` is negative.
    """

    def __init__(self, *, noise: float = 0.15) -> None:
        if noise < 0:
            raise ValueError(f"noise is {noise}; it must not be negative")
        self._noise = noise
        self._known: dict[str, tuple[Workload, Template] | None] = {}

    def refusal(self, problem: Problem) -> str | None:
        """Why the playbook cannot search this problem, in one line; None if it can."""
        if problem.backward:
            return "the playbook writes no backward passes; set proposer=llm or mailbox"
        if self._templates(problem) is not None:
            return None
        language = LANGUAGES[problem.device]
        return (
            f"the playbook does not know what this computes; in {language} it knows {', '.join(OPS)}, ReLU "
            "and max-pool after a conv2d, and chains of the operators in docs/guides/operators.md"
        )

    def workload(self, problem: Problem) -> Workload | None:
        """The operation that the problem computes; None if there is no template for it."""
        known = self._templates(problem)
        return known[0] if known else None

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Whether the kernel carries knobs of this problem's template. The playbook can only replace
        others."""
        known = self._templates(problem)
        return known is not None and knobs_of(*known, kernel.source) is not None

    def begin(self, run: RunContext) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to release."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The drafts with the highest scores that would write something new; none without a template."""
        known = self._templates(problem)
        if known is None:
            return []
        workload, template = known
        bench = Bench(workload, template, history, expansion.seed)
        expected = Scores(template.moves, history, expansion.seed)
        drafts = list(bench.drafts(rng))
        scores = [expected(draft) + rng.gauss(0, self._noise) for draft in drafts]
        used: Counter[str] = Counter()
        ideas: list[Idea] = []
        while drafts and len(ideas) < expansion.ideas:
            chances = [
                score - REPETITION * sum(used[name] for name in draft.moves)
                for draft, score in zip(drafts, scores, strict=True)
            ]
            place = chances.index(max(chances))
            draft, _ = drafts.pop(place), scores.pop(place)
            plan = bench.plan(draft, expansion.variants, rng)
            if plan is not None:
                used.update(draft.moves)
                ideas.append(_idea(draft, plan, expansion, history))
        return ideas

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """The first `n` kernels of the idea's plan; none of an idea that another proposer left unwritten in
        the run."""
        plan, known = Plan.from_json(idea.plan), self._templates(problem)
        if plan is None or known is None:
            logger.warning(
                "idea %s is dropped: %s made it, and the playbook cannot write it", idea.id, idea.proposer
            )
            return
        workload, template = known
        for knobs in plan.settings()[:n]:
            kernel = Kernel(source=template.render(workload, knobs), language=plan.language)
            if kernel not in written:
                yield kernel

    async def repair(self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random) -> None:
        """Nothing: the playbook cannot read error logs."""

    def _templates(self, problem: Problem) -> tuple[Workload, Template] | None:
        """The problem's operation and the first template for it, looked up once."""
        if problem.id not in self._known:
            self._known[problem.id] = next(_fitting(problem), None)
        return self._known[problem.id]


def _fitting(problem: Problem) -> Iterator[tuple[Workload, Template]]:
    """Each reading of the problem that has a template: readings for one shape before general ones."""
    for read in (operator_workload, recognise, one_operator_workload, fused_workload):
        if read is recognise and problem.cases:
            continue  # it reads one shape
        workload = read(problem)
        template = template_for(workload.op, LANGUAGES[problem.device]) if workload else None
        if workload and template and template.valid(workload, template.naive):
            yield workload, template


def _idea(draft: Draft, plan: Plan, expansion: Expansion, history: Sequence[Outcome]) -> Idea:
    return Idea(
        text=draft.text,
        category=draft.category,
        parent=expansion.seed.id if expansion.seed else "",
        round=expansion.round,
        proposer="playbook",
        known_ideas=tuple(outcome.idea.id for outcome in history),
        plan=plan.to_json(),
    )
