"""Finds kernels for a model's problems: tries those of the library, then steers a campaign whose budget goes
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
from evaluators.records.configurations import judged_kernel
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
from search.optimize.extraction.record import ExtractedProblem
from search.optimize.extraction.traced_model import TracedModel

ASKED = "library.jsonl"
"""The file with the evaluations of library kernels on the model's problems."""
FIRST_GAIN = 0.5
"""Expected gain of a search in its first slice: logarithm of the speedup."""
AHEAD = 2
"""Number of slices over which the gain of a search is predicted."""
MOST_ENTRIES = 4
"""Library entries to try per problem."""


@dataclass(frozen=True, kw_only=True)
class AcceptedKernel:
    """A kernel significantly faster than eager on the model's shapes. `origin`: `library <entry>` or
    `search`."""

    kernel: Kernel
    speedup: float
    low: float
    high: float
    origin: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without the source."""
        return {**vars(self), "kernel": self.kernel.id, "language": self.kernel.language}


def accepted_kernel(kernel: Kernel, evaluation: Evaluation | None, origin: str) -> AcceptedKernel | None:
    """The kernel, if it is correct and its speedup's 95 % interval lies above 1; otherwise None."""
    timing = evaluation.timing if evaluation else None
    if evaluation is None or timing is None or not timing.speedup_low > 1:
        return None
    return AcceptedKernel(
        kernel=judged_kernel(kernel, evaluation),
        speedup=timing.speedup,
        low=timing.speedup_low,
        high=timing.speedup_high,
        origin=origin,
    )


class LibraryAnswers:
    """Evaluates the library's kernels on a model's problems, each once: the folder keeps the evaluations."""

    def __init__(
        self,
        folder: Path,
        library: FolderLibrary,
        traced_models: Sequence[TracedModel],
        say: Callable[[str], None],
    ) -> None:
        self._kept = JsonlStore(folder / ASKED)
        self._library, self._traced_models, self._say = library, traced_models, say
        self._entries = library.entries()
        self._environment: Mapping[str, str] = {}
        self._asking = asyncio.Lock()

    async def ask(self, pool: Pool, extracted: ExtractedProblem, problem: Problem) -> AcceptedKernel | None:
        """The best library kernel for a problem; None if there is none or the problem cannot be judged."""
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
        """The facts about the device, asked once, so that a problem without kernels is never opened."""
        async with self._asking:
            self._environment = self._environment or await pool.describe(problem)
            return self._environment

    def _kernels(
        self, extracted: ExtractedProblem, problem: Problem, environment: Mapping[str, str]
    ) -> list[tuple[str, Kernel]]:
        """The kernels to try, with their entries' ids: drop-in ones, then those adapted to the problem."""
        seeds = library_seeds(self._library, problem, environment, MOST_ENTRIES)
        fitting = {
            each.id for each in self._entries if is_for(each, problem.device, backward=problem.backward)
        }
        found = {seed.id: seed.kernel for seed in seeds if seed.drop_in and seed.id in fitting}
        architecture = architecture_of(problem.device, environment.get("architecture", ""))
        fragment, traced = self._fragment(extracted), self._traced_models[extracted.places[0].shape]
        for entry in self._entries:
            fits = entry.id in fitting and entry.runs_on(architecture)
            fits = fits and problem.dtype in (entry.dtypes or (problem.dtype,))
            kernel = adapted(entry, fragment, traced.views) if fits else None
            if kernel is not None and takes(entry, kernel, problem):
                found.setdefault(entry.id, kernel)
        return list(found.items())[:MOST_ENTRIES]

    def _fragment(self, extracted: ExtractedProblem) -> Fragment:
        """The fragment at the problem's first place, with the code that all places share."""
        own = [self._traced_models[each.shape].fragment(each) for each in extracted.places]
        return (unified(own) or own)[0]

    async def _evaluate(
        self, pool: Pool, extracted: ExtractedProblem, problem: Problem, entry: str, kernel: Kernel
    ) -> AcceptedKernel | None:
        key = _key(extracted, entry, kernel)
        known = self._kept.get(key)
        evaluation = await pool.evaluate(problem, kernel) if known is None else Evaluation.from_json(known)
        if known is None and evaluation.status is not Status.INFRASTRUCTURE_ERROR:
            self._kept.put(key, evaluation.to_json())
        timing = evaluation.timing
        worth = f"{timing.speedup:.2f}x" if timing else f"{evaluation.status.value}: {evaluation.cause}"
        self._say(f"{extracted.name}: library kernel {entry}: {worth}")
        return accepted_kernel(kernel, evaluation, f"library {entry}")


def _key(extracted: ExtractedProblem, entry: str, kernel: Kernel) -> str:
    """The key under which an evaluation is stored."""
    return f"{extracted.name} {entry} {kernel.id}"


class SavedTime(ExpectedGain):
    """Gives the next slice to the search that is expected to save most of the model's current time.

    A search's weight is its calls' time in the original model; dividing it by the speedup reached so far
    gives the current time, so each kernel that is found changes the ranking. A kernel slower than eager saves
    nothing: such a search is ranked by how far above eager it should be after `AHEAD` slices.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(target=None, **how)

    def choose(self, searches: Sequence[SearchProgress], running: Collection[str]) -> SearchProgress | None:
        """See `Scheduler`. Unlike in the base class, a search without a slice need not come first."""
        free = [each for each in searches if each.key not in running]
        return max(free, key=self.expected, default=None)

    def expected(self, search: SearchProgress) -> float:
        """Expected saving per slice, in ms of the model's time."""
        if not search.slices:
            most = math.inf if search.ceiling is None else math.log(max(1.0, search.ceiling))
            return search.weight * min(FIRST_GAIN, most)
        level = math.log(max(NOTHING, search.speedup))
        gain = max(0.0, level + AHEAD * self.gain(search)) - max(0.0, level)
        return search.weight * gain / AHEAD / max(1.0, search.speedup)


@dataclass(frozen=True, kw_only=True)
class ModelRules(StopRules):
    """Also ends a search when its problem can save less than the share `model_gain` of the model's time,
    `total_ms`. A search's weight is in ms."""

    total_ms: float
    model_gain: float

    def why(self, search: SearchProgress) -> str:
        """See `StopRules`."""
        if reason := super().why(search):
            return reason
        if search.ceiling is None or not search.slices:
            return ""
        now_ms = search.weight / max(1.0, search.speedup)
        left = max(0.0, now_ms - search.weight / search.ceiling) / self.total_ms
        if left < self.model_gain:
            return f"at most {left:.1%} of the model's time could still be saved here"
        return ""


def search_winner(folder: Path) -> AcceptedKernel | None:
    """The best kernel of the search in a folder, by its confirming measurement if there is one."""
    state = state_of(folder)
    if state is None:
        return None
    for variant in state.tree.best(3):
        evaluation = state.confirmed.get(variant.kernel.id, variant.evaluation)
        if (found := accepted_kernel(variant.kernel, evaluation, "search")) is not None:
            return found
    return None


def fastest_kernels(found: Mapping[str, Sequence[AcceptedKernel | None]]) -> dict[str, AcceptedKernel]:
    """The kernel of each problem with the highest lower end of its interval, if the problem has one."""
    kept = {name: [each for each in several if each is not None] for name, several in found.items()}
    return {name: max(each, key=lambda one: one.low) for name, each in kept.items() if each}
