"""Which searches a comparison has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from search.compare.curves import Searched, read_searches


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is compared: a name, and what it changes of the shared call."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SearchTask:
    """One search of a comparison, the one with this name: all overrides of its call, and its folder."""

    comparison: str
    problem: str
    arm: str
    seed: int
    overrides: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """`problems`: the overrides that choose each, by its name; `shared`: those of all searches;
    `without_device`: whether verdicts are made up or recorded, and searches done in processes; `unit`: the
    unit of the budget at which they are compared; `command`: the call; `seeds_at_once`: of how many seeds the
    searches go on at a time; `shares_verdicts`: see `SharedVerdicts`."""

    folder: Path
    arms: tuple[Arm, ...]
    problems: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    shared: tuple[str, ...]
    without_device: bool
    unit: str
    command: str = ""
    seeds_at_once: int = 1
    shares_verdicts: bool = True

    @property
    def results(self) -> Path:
        """Of the searches that have ended, a line each."""
        return self.folder / "searches.jsonl"

    @cached_property
    def searches(self) -> list[SearchTask]:
        """All of them: for each seed all problems and arms, so that what is there at any time is paired."""
        return [
            SearchTask(
                comparison=self.folder.name,
                problem=problem,
                arm=arm.name,
                seed=seed,
                overrides=(*chosen, *self.shared, *arm.overrides, f"seed={seed}"),
                folder=self.folder / problem / arm.name / f"seed_{seed}",
            )
            for seed in self.seeds
            for problem, chosen in self.problems.items()
            for arm in self.arms
        ]

    def ended(self) -> list[Searched]:
        """The searches that have ended so far, in the order of `searches`. Raises OSError."""
        if not self.results.exists():
            return []
        found = {(each.problem, each.arm, each.seed): each for each in read_searches(self.results)}
        keys = ((task.problem, task.arm, task.seed) for task in self.searches)
        return [found[key] for key in keys if key in found]
