"""The playbook's vocabulary: a `Template` renders kernels from knobs, a `Move` is an idea that turns some."""

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

    `needs` are knob values that the parent must have (what the idea builds on), `applies` is any further
    condition on workload and parent. `sets` are the knobs that the idea fixes, `varies` those it leaves
    open, with the values worth trying: its variants differ in them. `gain` is the speedup it is known to
    bring where it applies, the prior that measurements of the run correct.
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
        """Whether the idea can be tried on a kernel with these knobs and would change it."""
        ready = all(knobs.get(knob) in values for knob, values in self.needs.items())
        news = any(knobs.get(knob) != value for knob, value in self.sets.items()) or bool(self.varies)
        return ready and news and self.applies(workload, knobs)


class Template(Protocol):
    """A family of kernels for one operation in one language, spanned by knobs."""

    op: str
    language: str
    naive: Knobs
    """Every knob with the value of the naive kernel: the direct translation, and nothing more."""
    moves: tuple[Move, ...]

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Whether these knobs make a kernel at all: divisibility, memory per block, registers."""
        ...

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel: standalone Python source that defines `ModelNew`."""
        ...
