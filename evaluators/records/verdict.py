"""What became of one try to judge a candidate, as the judge process or the watchdog says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from evaluators.records.evaluation import Correctness, Evaluation, Roofline, Status, Timing


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`timing` is there where the status is CORRECT; `correctness` where any answer was comparable.
    `before_ms`: the baseline's ms a call while the candidate had not been loaded. `canary_ms`: of a small
    copy of ours on a GPU, before the try, as a fact of the device."""

    status: Status
    log: str = ""
    rule: str = ""
    timing: Timing | None = None
    correctness: Correctness | None = None
    roofline: Roofline | None = None
    own_share: float | None = None
    before_ms: Sequence[float] = ()
    canary_ms: str | None = None

    def message(self) -> dict[str, Any]:
        """For the worker, in plain JSON types; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Verdict:
        """What `message` writes, alone or under more keys."""
        read: dict[str, Callable[[Any], Any]] = {
            "status": Status,
            "timing": Timing.from_json,
            "correctness": Correctness.from_json,
            "roofline": Roofline.from_json,
        }
        known = [each.name for each in fields(cls) if each.name in message]
        return cls(**{name: read.get(name, lambda value: value)(message[name]) for name in known})

    def evaluation(self, facts: Mapping[str, str], stages_s: dict[str, float]) -> Evaluation:
        """With the facts of device and software, and the seconds that each stage took."""
        canary = {} if self.canary_ms is None else {"canary_ms": self.canary_ms}
        return Evaluation(
            status=self.status,
            timing=self.timing,
            correctness=self.correctness,
            log=self.log,
            rule=self.rule,
            environment={**facts, **canary},
            device_s=sum(stages_s.values()),
            stages_s=stages_s,
            roofline=self.roofline,
            own_share=self.own_share,
        )
