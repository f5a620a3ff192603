"""What a worker answers to a request, sealed with a hash that shows whether the text was altered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from evaluators.base.json_record import JsonRecord
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import NOT_HERE, Evaluation
from evaluators.records.probe import Probe
from evaluators.records.problem import content_id
from evaluators.records.reference_audit import ReferenceAudit


class BadVerdict(ValueError):
    """A text that is no verdict, or one that was altered or does not fit its request. The message is one
    line."""


@dataclass(frozen=True, kw_only=True)
class DeviceVerdict(JsonRecord):
    """The answer to a request, and where it comes from.

    Attributes:
        request: The request's id.
        worker: The worker, as `host:process:number`.
        device: The device's name.
        isolation: How kernels were confined; "" if none ran.
        versions: Versions of driver and software, by name.
        facts: The facts of device and software, for a request to describe a problem.
        evaluations: One for each kernel, in the request's order.
        audit: The audit, for a request for one.
        diagnosis: The diagnosis, for a request for one.
        probe: The result of the probe, for a request to time one.
        unfit: Why the reference cannot judge; "" if it can, or if it was not asked for.
        broken: Why the worker could not carry out the request; "" if it did.
    """

    request: str
    worker: str
    device: str
    isolation: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    audit: ReferenceAudit | None = None
    diagnosis: Diagnosis | None = None
    probe: Probe | None = None
    unfit: str = ""
    broken: str = ""

    @property
    def is_lasting(self) -> bool:
        """Whether it says something about the request, and not about the machine: another worker would
        answer the same."""
        judged = all(each.is_lasting for each in self.evaluations)
        timed = self.probe is None or self.probe.is_lasting
        return judged and timed and not (self.broken or self.unfit.startswith(NOT_HERE))

    @property
    def measured(self) -> tuple[Evaluation, ...]:
        """The evaluations, with the worker's name before each device's number."""
        return tuple(
            replace(
                each, lease=each.lease and replace(each.lease, device=f"{self.worker}/{each.lease.device}")
            )
            for each in self.evaluations
        )

    @property
    def text(self) -> str:
        """The verdict as a line of JSON, with its seal."""
        body = self.to_json()
        return json.dumps({**body, "seal": _seal(body)}, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Self:
        """The verdict in a `text`. Raises BadVerdict."""
        try:
            body = json.loads(text)
            seal = body.pop("seal", "")
            verdict = cls.from_json(body)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadVerdict(f"a verdict cannot be read: {error}") from error
        if seal != _seal(body):
            raise BadVerdict(f"the verdict on request {verdict.request} was altered")
        return verdict


def _seal(body: Mapping[str, object]) -> str:
    return content_id("verdict", json.dumps(body, sort_keys=True))
