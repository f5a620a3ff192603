"""What an idea will write: the record that the idea carries, and the draft before the idea is chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from search.proposers.playbook.move import Knob, Knobs
from search.records.tree import Category

NAIVE = "naive"
RETUNE = "retune"
CROSS_OVER = "cross-over"
RESTART = "restart"
TOGETHER = "together"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an idea will write: its knobs, which of them are open, and what each variant changes."""

    language: str
    moves: tuple[str, ...]
    knobs: Knobs
    opens: tuple[str, ...]
    variants: tuple[Knobs, ...] = ()

    @property
    def state(self) -> str:
        """A key of the fixed knobs and the names of the open ones; ideas with equal keys would repeat each
        other."""
        fixed = {knob: value for knob, value in self.knobs.items() if knob not in self.opens}
        return json.dumps([self.language, fixed], sort_keys=True)

    def settings(self) -> list[dict[str, Knob]]:
        """All knobs of each variant."""
        return [{**self.knobs, **chosen} for chosen in self.variants]

    def to_json(self) -> str:
        """The text for `Idea.plan`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan | None:
        """The plan in a text; None if another proposer wrote it."""
        try:
            data = json.loads(text)
            lists = {name: tuple(data[name]) for name in ("moves", "opens", "variants")}
            return cls(language=data["language"], knobs=data["knobs"], **lists)
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An idea before it is chosen. `values` are the values worth trying for its open knobs, preferred
    first."""

    moves: tuple[str, ...]
    text: str
    category: Category
    knobs: Knobs
    values: Mapping[str, tuple[Knob, ...]]
