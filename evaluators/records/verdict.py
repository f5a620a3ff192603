"""The verdict on one try to judge a candidate, as the judge process or the watchdog reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from evaluators.base.json_record import JsonRecord
from evaluators.records.evaluation import Correctness, Evaluation, Passes, Roofline, Status, Timing


@dataclass(frozen=True, kw_only=True)
class Verdict(JsonRecord):
    """One try's result. The fields are those of an `Evaluation`, and:

    Attributes:
        before_ms: The baseline's ms per call, in blocks measured before the candidate was loaded.
        before_calls: The number of calls in the baseline's blocks before the candidate was loaded.
        baseline_calls: The number of calls in the baseline's blocks next to the candidate.
        canary_ms: Time of a small copy on the GPU before the try, which goes into the environment.
        stages_s: Seconds of each stage in the judge process; empty if it did not come to the end.
    """

    status: Status
    log: str = ""
    rule: str = ""
    timing: Timing | None = None
    correctness: Correctness | None = None
    roofline: Roofline | None = None
    own_share: float | None = None
    passes: Passes | None = None
    before_ms: tuple[float, ...] = ()
    before_calls: int = 0
    baseline_calls: int = 0
    canary_ms: str | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """The verdict for the worker, in plain JSON types, without the fields that are None."""
        return {name: value for name, value in self.to_json().items() if value is not None}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Verdict:
        """Restores a `message`; ignores further keys."""
        known = [each.name for each in fields(cls)]
        return cls.from_json({name: value for name, value in message.items() if name in known})

    def evaluation(self, facts: Mapping[str, str], stages_s: dict[str, float]) -> Evaluation:
        """The evaluation, with the facts of device and software and the seconds of each stage."""
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
            passes=self.passes,
        )
