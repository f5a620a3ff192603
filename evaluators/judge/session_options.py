"""How the worker wants a problem opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluators.records.timing import Plan


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How a problem is opened: at most so many calls a block, in how long blocks, and in which folder is kept
    what outlives the session. `keep_range` as of `RunningReference`."""

    max_calls: int
    plan: Plan
    cache: str
    keep_range: bool

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SessionOptions:
        """Out of the plain JSON types that `dataclasses.asdict` makes of them."""
        return cls(**fields | {"plan": Plan(**fields["plan"])})
