"""The problems of a model, as stored in `extraction.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluators.base.atomic_write import write_atomically

EXTRACTION = "extraction.json"
FOLDER = "problems"
"""Folder of the references, within the run folder."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the model where a problem's kernel can run: the indices of its calls in the recorded run.
    `time_ms`: per iteration. `shape`: index of the model's input shape."""

    calls: tuple[int, ...]
    site: str
    time_ms: float
    shape: int = 0

    @property
    def members(self) -> set[tuple[int, int]]:
        """The calls as (shape, index)."""
        return {(self.shape, call) for call in self.calls}


@dataclass(frozen=True, kw_only=True)
class ExtractedProblem:
    """A problem made from a target (its name in the profile). `places`: where its kernel can run; `floor_ms`:
    their least time together, 0 if not known; `exact`: whether the reference reproduces the model's tensors
    bit for bit; `searched`: whether new kernels are searched, or only library kernels tried."""

    name: str
    target: str
    places: tuple[Place, ...]
    floor_ms: float
    exact: bool
    searched: bool = True

    @property
    def time_ms(self) -> float:
        """Time per iteration of all places."""
        return sum(each.time_ms for each in self.places)

    @property
    def file(self) -> str:
        """The reference's path within the run folder."""
        return f"{FOLDER}/{self.name}.py"

    @property
    def ceiling(self) -> float | None:
        """The speedup that the roofline allows; None if not known."""
        return max(1.0, self.time_ms / self.floor_ms) if self.floor_ms else None


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The problems of a model, the most promising first, and why other targets were left out."""

    problems: tuple[ExtractedProblem, ...]
    left_out: Mapping[str, str]

    def sites(self, names: Sequence[str], shape: int) -> list[str]:
        """The call sites of these problems' kernels, in the order of a forward at a shape."""
        problems = [each for each in self.problems if each.name in names]
        places = [each for one in problems for each in one.places if each.shape == shape]
        ends = [(each.calls[-1], each.site) for each in places]
        return [site for _, site in sorted(ends)]

    def write(self, file: Path) -> None:
        """Writes the record as JSON."""
        write_atomically(file, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, file: Path) -> Extraction:
        """Reads what `write` wrote. Raises OSError and ValueError."""
        fields = json.loads(file.read_text())
        for each in fields["problems"]:
            places = (Place(**{**place, "calls": tuple(place["calls"])}) for place in each["places"])
            each["places"] = tuple(places)
        problems = tuple(ExtractedProblem(**each) for each in fields["problems"])
        return cls(problems=problems, left_out=fields["left_out"])
