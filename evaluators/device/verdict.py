"""What became of a candidate, as the judge process or the watchdog says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluators.evaluation import Correctness, Evaluation, Roofline, Status, Timing
from evaluators.system.channel import Message


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One try's outcome. `canary_ms`: the canary's time before it, "" where none was measured; `before_ms`:
    the baseline's times before the candidate, where that is said to have slowed it."""

    status: Status
    log: str = ""
    rule: str = ""
    timing: Timing | None = None
    correctness: Correctness | None = None
    roofline: Roofline | None = None
    own_share: float | None = None
    canary_ms: str = ""
    before_ms: Sequence[float] = ()

    @classmethod
    def from_message(cls, message: Message) -> Verdict:
        """Of the judge process's `verdict`, or one of its `verdicts`."""
        timing, correctness = message.get("timing"), message.get("correctness")
        roofline = message.get("roofline")
        return cls(
            status=Status(message["status"]),
            log=message.get("log", ""),
            rule=message.get("rule", ""),
            timing=Timing.from_json(timing) if timing else None,
            correctness=Correctness(**correctness) if correctness else None,
            roofline=Roofline(**roofline) if roofline else None,
            own_share=message.get("own_share"),
            canary_ms=message.get("canary_ms", ""),
            before_ms=message.get("before_ms", ()),
        )

    def evaluation(self, facts: Mapping[str, str], stages_s: dict[str, float]) -> Evaluation:
        """With the facts of device and software, and the seconds that each stage took."""
        canary = {"canary_ms": self.canary_ms} if self.canary_ms else {}
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
