"""Kernels for a model's problems: the library is asked first, then a campaign searches, whose budget goes
where the model gains most."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.cause import cause_of
from evaluators.base.jsonl_store import JsonlStore
from evaluators.device.child_processes import WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.pool import Pool
from kernel_library.catalogue.entry import architecture_of
from kernel_library.catalogue.library import FolderLibrary
from search.campaign.running import state_of
from search.campaign.schedulers import ExpectedGain
from search.campaign.slices import NOTHING, SearchProgress, StopRules
from search.engine.library_seeds import library_seeds
from search.optimize.adapters import adapted, is_for, takes
from search.optimize.extraction.fragments import Fragment, unified
from search.optimize.extraction.record import Extracted
from search.optimize.extraction.whole import Whole

ASKED = "library.jsonl"
"""What the library's kernels were worth on the model's problems."""
FIRST_GAIN = 0.5
"""What a search is expected to gain in its first slice, in the logarithm of the speedup."""
AHEAD = 2
"""Slices over which the gain of a search is expected."""
MOST_ENTRIES = 4
"""Of the library, that are tried on one problem."""


@dataclass(frozen=True, kw_only=True)
class AcceptedKernel:
    """A kernel that is surely faster than eager on the model's own shapes. `origin`: `library <entry>`, or
    `search`."""

    kernel: Kernel
    speedup: float
    low: float
    high: float
    origin: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without the source."""
        return {
            "kernel": self.kernel.id,
            "language": self.kernel.language,
            "speedup": self.speedup,
            "low": self.low,
            "high": self.high,
            "origin": self.origin,
        }


def won(kernel: Kernel, evaluation: Evaluation | None, origin: str) -> AcceptedKernel | None:
    """None unless it is correct and its whole interval is above 1."""
    timing = evaluation.timing if evaluation is not None else None
    if evaluation is None or evaluation.status is not Status.CORRECT or timing is None:
        return None
    if not timing.speedup_low > 1:
        return None
    return AcceptedKernel(
        kernel=kernel,
        speedup=timing.speedup,
        low=timing.speedup_low,
        high=timing.speedup_high,
        origin=origin,
    )


class LibraryAnswers:
    """The library's kernels on a model's problems, each evaluated once: what is known is kept in the
    folder."""

    def __init__(
        self, folder: Path, library: FolderLibrary, wholes: Sequence[Whole], say: Callable[[str], None]
    ) -> None:
        self._kept = JsonlStore(folder / ASKED)
        self._library, self._wholes, self._say = library, wholes, say
        self._entries = library.entries()
        self._environment: Mapping[str, str] = {}
        self._asking = asyncio.Lock()

    async def ask(self, pool: Pool, extracted: Extracted, problem: Problem) -> AcceptedKernel | None:
        """The best for a problem. A problem that cannot be judged is said, and has none."""
        try:
            environment = await self._described(pool, problem)
            kernels = self._kernels(extracted, problem, environment)
            if any(self._kept.get(_key(extracted, *each)) is None for each in kernels):
                await pool.describe(problem)
        except WorkerBroken as error:
            self._say(f"{extracted.name}: {cause_of(str(error))}")
            return None
        evaluated = [self._evaluate(pool, extracted, problem, *each) for each in kernels]
        return max(filter(None, await asyncio.gather(*evaluated)), key=lambda each: each.low, default=None)

    async def _described(self, pool: Pool, problem: Problem) -> Mapping[str, str]:
        """The facts on the device, which is asked once: a problem that has no kernels need not be opened."""
        async with self._asking:
            self._environment = self._environment or await pool.describe(problem)
            return self._environment

    def _kernels(
        self, extracted: Extracted, problem: Problem, environment: Mapping[str, str]
    ) -> list[tuple[str, Kernel]]:
        """By the names of their entries: those that stand for the problem as they are, and those that were
        written in its form."""
        seeds = library_seeds(self._library, problem, MOST_ENTRIES, environment)
        found = {seed.id: seed.kernel for seed in seeds if seed.drop_in}
        architecture = architecture_of(problem.device, environment.get("architecture", ""))
        fragment, whole = self._fragment(extracted), self._wholes[extracted.places[0].shape]
        for entry in self._entries:
            fits = is_for(entry, problem.device) and entry.runs_on(architecture)
            fits = fits and problem.dtype in (entry.dtypes or (problem.dtype,))
            kernel = adapted(entry, fragment, whole.views) if fits else None
            if kernel is not None and takes(entry, kernel, problem):
                found.setdefault(entry.id, kernel)
        return list(found.items())[:MOST_ENTRIES]

    def _fragment(self, extracted: Extracted) -> Fragment:
        """At the first of the problem's places, with the code that is that of all."""
        own = [self._wholes[each.shape].fragment(each) for each in extracted.places]
        return (unified(own) or own)[0]

    async def _evaluate(
        self, pool: Pool, extracted: Extracted, problem: Problem, entry: str, kernel: Kernel
    ) -> AcceptedKernel | None:
        key = _key(extracted, entry, kernel)
        known = self._kept.get(key)
        evaluation = await pool.evaluate(problem, kernel) if known is None else Evaluation.from_json(known)
        if known is None and evaluation.status is not Status.INFRASTRUCTURE_ERROR:
            self._kept.put(key, evaluation.to_json())
        timing = evaluation.timing
        worth = f"{timing.speedup:.2f}x" if timing else f"{evaluation.status.value}: {evaluation.cause}"
        self._say(f"{extracted.name}: {entry} of the library: {worth}")
        return won(kernel, evaluation, f"library {entry}")


def _key(extracted: Extracted, entry: str, kernel: Kernel) -> str:
    """Of what is kept of a library's kernel."""
    return f"{extracted.name} {entry} {kernel.id}"


class SavedTime(ExpectedGain):
    """The next slice goes where it is expected to save most of the model's time, as it is now: a search's
    weight is the time of its calls before, which the speedup that it has reached divides. So the ranking is
    made anew after each kernel that was found. A kernel that is slower than eager saves nothing: such a
    search counts by how far above eager it is expected to be in `AHEAD` slices."""

    def __init__(self, **how: Any) -> None:
        super().__init__(target=None, **how)

    def choose(self, searches: Sequence[SearchProgress], running: Collection[str]) -> SearchProgress | None:
        """See `Scheduler`; a search that has had no slice is no longer first, but by what it may save."""
        free = [each for each in searches if each.key not in running]
        return max(free, key=self.expected, default=None)

    def expected(self, search: SearchProgress) -> float:
        """In ms of the model's time."""
        if not search.slices:
            most = math.inf if search.ceiling is None else math.log(max(1.0, search.ceiling))
            return search.weight * min(FIRST_GAIN, most)
        level = math.log(max(NOTHING, search.speedup))
        won = max(0.0, level + AHEAD * self.gain(search)) - max(0.0, level)
        return search.weight * won / AHEAD / max(1.0, search.speedup)


@dataclass(frozen=True, kw_only=True)
class ModelRules(StopRules):
    """A search ends, too, when all that its problem can still give would raise the model's speedup by less
    than `model_gain`. `total_ms`: the time of the model; a search's weight is in ms, too."""

    total_ms: float
    model_gain: float

    def why(self, search: SearchProgress) -> str:
        """See `StopRules`."""
        if said := super().why(search):
            return said
        if search.ceiling is None or not search.slices:
            return ""
        now_ms = search.weight / max(1.0, search.speedup)
        left = max(0.0, now_ms - search.weight / search.ceiling) / self.total_ms
        if left < self.model_gain:
            return f"the model could gain {left:.1%} more here"
        return ""


def of_search(folder: Path) -> AcceptedKernel | None:
    """What the search in a folder has found: its best kernel by the measurement that confirmed it, or by the
    only one that there is."""
    state = state_of(folder)
    if state is None:
        return None
    for variant in state.tree.best(3):
        evaluation = state.confirmed.get(variant.kernel.id, variant.evaluation)
        if (found := won(variant.kernel, evaluation, "search")) is not None:
            return found
    return None


def best_of(found: Mapping[str, Sequence[AcceptedKernel | None]]) -> dict[str, AcceptedKernel]:
    """By the problems' names, of those that have any."""
    kept = {name: [each for each in several if each is not None] for name, several in found.items()}
    return {name: max(each, key=lambda one: one.low) for name, each in kept.items() if each}
