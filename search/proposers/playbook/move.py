"""The playbook's vocabulary: a `Template` renders kernels from knobs; a `Move` is an idea that changes some
knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from search.proposers.playbook.workload import Workload
from search.records.tree import Category

Knob = int | str | bool
Knobs = Mapping[str, Knob]


def always(workload: Workload, knobs: Knobs) -> bool:
    """Applies everywhere."""
    return True


@dataclass(frozen=True, kw_only=True)
class Move:
    """One optimisation idea of the catalogue.

    Attributes:
        name: Short name, unique within a template.
        text: The idea in plain English, for people and for reports.
        category: The idea's category.
        gain: The expected speedup where the idea applies. Measurements of the run correct it.
        needs: Knob values that the parent must have.
        applies: A further condition on the workload and the parent's knobs.
        sets: Knobs that the idea fixes.
        varies: Knobs that the idea leaves open, with the values worth trying, preferred first. The idea's
            variants differ in them.
    """

    name: str
    text: str
    category: Category
    gain: float
    needs: Mapping[str, tuple[Knob, ...]] = field(default_factory=dict)
    applies: Callable[[Workload, Knobs], bool] = always
    sets: Knobs = field(default_factory=dict)
    varies: Mapping[str, tuple[Knob, ...]] = field(default_factory=dict)

    def fits(self, workload: Workload, knobs: Knobs) -> bool:
        """Whether the idea applies to a kernel with these knobs and would change it."""
        ready = all(knobs.get(knob) in values for knob, values in self.needs.items())
        changes = any(knobs.get(knob) != value for knob, value in self.sets.items()) or bool(self.varies)
        return ready and changes and self.applies(workload, knobs)


class Template(Protocol):
    """A family of kernels for one operation in one language; each setting of the knobs is a kernel."""

    op: str
    language: str
    naive: Knobs
    """All knobs with their values in the naive kernel, the direct translation."""
    moves: tuple[Move, ...]

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Whether a kernel with these knobs can exist: divisibility, memory per block, registers."""
        ...

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel's source: a standalone Python file that defines `ModelNew`."""
        ...
