"""How the worker wants a problem to be opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evaluators.records.timing import Plan


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How a problem is opened.

    Attributes:
        max_calls: calls of a block at most.
        plan: the length of blocks.
        cache: the folder for results that outlive the session.
        keep_range: see `RunningReference`.
    """

    max_calls: int
    plan: Plan
    cache: str
    keep_range: bool

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SessionOptions:
        """The inverse of `dataclasses.asdict`."""
        return cls(**fields | {"plan": Plan(**fields["plan"])})
