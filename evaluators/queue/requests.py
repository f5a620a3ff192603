"""What a search asks of a device that is elsewhere: one operation, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from evaluators.base.json_record import JsonRecord, require_types
from evaluators.device.settings import Settings
from evaluators.records.problem import Kernel, Problem, content_id
from evaluators.records.race import Threshold

SEARCH = re.compile(r"\w[\w.-]{0,199}")
"""The names that a search may have in a queue; each names a folder."""


class BadRequest(ValueError):
    """A text that is no request, or one that was altered. The message is one line."""


class Operation(StrEnum):
    """What a request asks for. New operations may follow; a worker leaves those that it does not know."""

    DESCRIBE = "describe"
    AUDIT = "audit"
    EVALUATE = "evaluate"
    THOROUGH = "thorough"
    COMPARE = "compare"
    RACE = "race"


EXPECTED_S = {
    Operation.DESCRIBE: 10.0,
    Operation.AUDIT: 20.0,
    Operation.EVALUATE: 3.0,
    Operation.THOROUGH: 20.0,
    Operation.COMPARE: 3.0,
    Operation.RACE: 2.0,
}
"""Device seconds to expect for a kernel, or for the problem. An evaluation took three seconds on an H200; the
others are estimates. They weigh requests against one another and need not be exact."""


@dataclass(frozen=True, kw_only=True)
class DeviceRequest(JsonRecord):
    """One operation on a device.

    Attributes:
        search: The search that asks, by its name in the queue.
        operation: What to do.
        problem: The problem that is meant.
        kernels: The kernels to judge; none for operations on the problem alone.
        settings: How to measure.
        kind: The name of the devices that may do it, such as `NVIDIA H200`; "" for any that the problem can
            use.
        number: Counts equal questions of the search from 0: each is a new measurement.
        threshold: For a race, the speedup that a kernel must be able to reach (see
            `evaluators.records.race.Threshold`).
        cost_s: Device seconds to expect.

    Raises:
        ValueError: The search's name cannot be that of a folder.
    """

    search: str
    operation: Operation
    problem: Problem
    settings: Settings
    cost_s: float
    kernels: tuple[Kernel, ...] = ()
    kind: str = ""
    number: int = 0
    threshold: Threshold = 0.0

    def __post_init__(self) -> None:
        if not SEARCH.fullmatch(self.search):
            raise ValueError(f"the search is called {self.search!r:.60}, which is not the name of a folder")

    def to_json(self) -> dict[str, Any]:
        """See `JsonRecord`. Only a race has a threshold: older workers do not know the field."""
        body = super().to_json()
        if self.operation is not Operation.RACE:
            del body["threshold"]
        return body

    @cached_property
    def text(self) -> str:
        """The request as JSON."""
        return json.dumps(self.to_json(), sort_keys=True)

    @cached_property
    def id(self) -> str:
        """The hash of the request's text: equal requests are one request."""
        return content_id(self.text)

    @property
    def title(self) -> str:
        """The request in a few words, for people."""
        kernels = " and ".join(each.id for each in self.kernels)
        return f"{self.operation.value} {self.problem.name}{f' ({kernels})' if kernels else ''}"

    @classmethod
    def read(cls, text: str, id: str) -> Self:
        """The request with this id, from its `text`. Raises BadRequest."""
        try:
            request = cls.from_json(json.loads(text))
            require_types(request)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadRequest(f"request {id} cannot be read: {error}") from error
        if request.id != id:
            raise BadRequest(f"request {id} was altered: its contents have the id {request.id}")
        return request


def request_for(
    operation: Operation,
    problem: Problem,
    kernels: Sequence[Kernel],
    *,
    search: str,
    settings: Settings,
    kind: str,
    number: int,
    threshold: Threshold = 0.0,
) -> DeviceRequest:
    """A request, with its expected cost: see `DeviceRequest`."""
    parts = max(1, len(kernels)) * max(1, len(problem.cases))
    return DeviceRequest(
        search=search,
        operation=operation,
        problem=problem,
        kernels=tuple(kernels),
        settings=settings,
        kind=kind,
        number=number,
        threshold=threshold,
        cost_s=EXPECTED_S[operation] * parts,
    )
