"""Profiles kernels apart from any measurement: those that a round's ideas start from, or a single one."""

from __future__ import annotations

from collections.abc import Sequence

from search.engine.session import Session
from search.protocols import Diagnoser
from search.records.events import KernelDiagnosed
from search.records.tree import Expansion, Seed

BEST = 2
"""The best kernel and its runner-up are profiled even if no idea starts from them."""


class Diagnoses:
    """Takes each diagnosis once, and records it. Call its methods while nothing is in flight."""

    def __init__(self, session: Session, diagnoser: Diagnoser) -> None:
        self._session, self._diagnoser = session, diagnoser

    async def take(self, expansions: Sequence[Expansion]) -> None:
        """Profiles the best kernel, its runner-up and the seeds, unless they were profiled before: all are
        asked for at once. A stop ends it at once."""
        work = self._session.work
        tasks = [work.spawn(self.one(seed), f"profile {seed.id}") for seed in self._due(expansions)]
        while not all(task.done() for task in tasks) and work.stop is None:
            await work.changed()
        for task in tasks:
            task.cancel()

    async def one(self, seed: Seed) -> None:
        """Profiles a correct kernel and records its diagnosis."""
        session = self._session
        assert seed.evaluation is not None
        diagnosing = self._diagnoser.diagnose(session.problem, seed.kernel, seed.evaluation)
        diagnosis = await session.requests.asked(diagnosing)
        session.record(
            KernelDiagnosed(at_s=session.now_s, seed=seed.id, kernel=seed.kernel.id, diagnosis=diagnosis)
        )

    def _due(self, expansions: Sequence[Expansion]) -> list[Seed]:
        """What is to be profiled: correct kernels, each once."""
        state = self._session.state
        chosen = [each.seed for each in expansions if each.seed is not None and not each.as_it_is]
        wanted = [*(variant.seed for variant in state.tree.best(BEST)), *chosen]
        due = {
            seed.kernel.id: seed
            for seed in reversed(wanted)
            if seed.evaluation is not None and seed.evaluation.timing is not None
        }
        return [seed for id, seed in reversed(due.items()) if id not in state.diagnoses]
