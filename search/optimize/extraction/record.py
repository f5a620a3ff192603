"""The problems of a model: the record that `extraction.json` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically

EXTRACTION = "extraction.json"
FOLDER = "problems"
"""Of the references, in the folder of the run."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place of the model that a problem's kernel can stand at: the calls by their numbers in the recorded
    run. `time_ms`: of an iteration. `shape`: of the inputs, by its place among the model's."""

    calls: tuple[int, ...]
    site: str
    time_ms: float
    shape: int = 0

    @property
    def members(self) -> set[tuple[int, int]]:
        """The calls, which are others at another shape."""
        return {(self.shape, call) for call in self.calls}


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A problem made of a target. `target`: its operators, as the profile names it. `floor_ms`: the least
    that all places together can take, 0 where that is not known; `exact`: whether the reference's code gave
    the model's own tensors bit for bit; `searched`: whether kernels are searched for it, otherwise the
    library alone is asked."""

    name: str
    target: str
    places: tuple[Place, ...]
    floor_ms: float
    exact: bool
    searched: bool = True

    @property
    def time_ms(self) -> float:
        """Of an iteration, all places together."""
        return sum(each.time_ms for each in self.places)

    @property
    def file(self) -> str:
        """Of the reference, in the folder of the run."""
        return f"{FOLDER}/{self.name}.py"

    @property
    def ceiling(self) -> float | None:
        """The speedup that the roofline allows; None where it is not known."""
        return max(1.0, self.time_ms / self.floor_ms) if self.floor_ms else None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Extracted:
        """Out of plain JSON types."""
        places = tuple(Place(**{**each, "calls": tuple(each["calls"])}) for each in fields["places"])
        return cls(**{**fields, "places": places})


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The problems of a model, the most promising first, and why other targets are none."""

    problems: tuple[Extracted, ...]
    left_out: Mapping[str, str]

    def sites(self, names: Sequence[str], shape: int) -> list[str]:
        """Where the kernels of these problems are called, in the order of a forward at a shape, in which each
        is called at all of its places."""
        problems = [each for each in self.problems if each.name in names]
        places = [each for one in problems for each in one.places if each.shape == shape]
        ends = [(each.calls[-1], each.site) for each in places]
        return [site for _, site in sorted(ends)]

    def write(self, file: Path) -> None:
        """As JSON."""
        write_atomically(file, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, file: Path) -> Extraction:
        """What `write` wrote. Raises OSError and ValueError."""
        fields = json.loads(file.read_text())
        problems = tuple(map(Extracted.from_json, fields["problems"]))
        return cls(problems=problems, left_out=fields["left_out"])
