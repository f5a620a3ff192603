"""What the judge process finds of one candidate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evaluators.evaluation import Roofline, Status, Timing
from evaluators.system.channel import Message


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`timing` is there where the status is CORRECT; `correctness` (the fields of `evaluation.Correctness`)
    where any answer was comparable."""

    status: Status
    log: str = ""
    rule: str = ""
    timing: Timing | None = None
    correctness: dict[str, Any] | None = None
    roofline: Roofline | None = None
    own_share: float | None = None
    before_ms: tuple[float, ...] = ()
    """The baseline's ms a call while the candidate had not been loaded."""
    canary_ms: str | None = None
    """Of a small copy of ours on a GPU, as a fact of the device."""

    def message(self) -> Message:
        """For the worker, in plain JSON types; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}
