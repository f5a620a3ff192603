"""The searches of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from search.compare.curves import Searched, read_searches
from search.run.searches import PlannedSearch, planned_searches


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison: each arm searches each problem with each seed. `arms` and `problems` are overrides by
    name, `shared` those of all searches; `unit` is the budget's, `command` the call that began it. `primary`
    are the two arms of the primary contrast, if one was named."""

    folder: Path
    arms: Mapping[str, Sequence[str]]
    problems: Mapping[str, Sequence[str]]
    seeds: tuple[int, ...]
    shared: tuple[str, ...]
    unit: str
    command: str = ""
    primary: Sequence[str] = ()

    @property
    def results(self) -> Path:
        """The file of the searches that have ended, one per line."""
        return self.folder / "searches.jsonl"

    @cached_property
    def searches(self) -> list[PlannedSearch]:
        """All searches, seed by seed, so that an unfinished comparison has pairs."""
        return planned_searches(self.folder, self.problems, self.arms, self.shared, self.seeds)

    def ended(self) -> list[Searched]:
        """The searches that have ended so far, in the order of `searches`. Raises OSError."""
        if not self.results.exists():
            return []
        found = {(each.problem, each.arm, each.seed): each for each in read_searches(self.results)}
        keys = ((planned.problem, planned.arm, planned.seed) for planned in self.searches)
        return [found[key] for key in keys if key in found]
