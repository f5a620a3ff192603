"""What a search asks of a device that is elsewhere: one operation, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from evaluators.base.json_record import JsonRecord, require_types
from evaluators.device.settings import Settings
from evaluators.profiling.profiler import PROFILES
from evaluators.records.evaluation import Roofline
from evaluators.records.problem import Kernel, Problem, content_id
from evaluators.records.race import Threshold

SEARCH = re.compile(r"\w[\w.-]{0,199}")
"""The names that a search may have in a queue; each names a folder."""


class BadRequest(ValueError):
    """A text that is no request, or one that was altered. The message is one line."""


class UnknownOperation(BadRequest):
    """A request of a newer version, which another worker may know."""


class Operation(StrEnum):
    """What a request asks for. New operations may follow; a worker leaves those that it does not know."""

    DESCRIBE = "describe"
    AUDIT = "audit"
    EVALUATE = "evaluate"
    THOROUGH = "thorough"
    COMPARE = "compare"
    RACE = "race"
    DIAGNOSE = "diagnose"
    PROBE = "probe"

    @property
    def judges(self) -> bool:
        """Whether the verdict has an evaluation of each kernel."""
        return self in (Operation.EVALUATE, Operation.THOROUGH, Operation.COMPARE, Operation.RACE)

    @property
    def examines(self) -> bool:
        """Whether it finds out something else about one kernel, in one case of the problem."""
        return self in (Operation.DIAGNOSE, Operation.PROBE)


EXPECTED_S = {
    Operation.DESCRIBE: 10.0,
    Operation.AUDIT: 20.0,
    Operation.EVALUATE: 3.0,
    Operation.THOROUGH: 20.0,
    Operation.COMPARE: 3.0,
    Operation.RACE: 2.0,
    Operation.DIAGNOSE: 30.0,
    Operation.PROBE: 3.0,
}
"""Device seconds to expect for a kernel, or for the problem. An evaluation took three seconds on an H200; the
others are estimates. They weigh requests against one another and need not be exact."""


@dataclass(frozen=True, kw_only=True)
class WantedProfile:
    """What a diagnosis needs in addition to the kernel.

    Attributes:
        level: The highest level to reach, or `auto`.
        roofline: The problem's roofline, from an evaluation.
        call_ms: The kernel's time in ms, likewise.

    Raises:
        ValueError: There is no such level.
    """

    level: str
    roofline: Roofline | None = None
    call_ms: float | None = None

    def __post_init__(self) -> None:
        if self.level not in PROFILES[1:]:
            raise ValueError(
                f"profile.level is {self.level!r:.40}; it must be one of {', '.join(PROFILES[1:])}"
            )


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
        profile: How to profile the kernel, for a diagnosis.
        companions: Kernels that the kernel is timed with if it is correct, for an evaluation.

    Raises:
        ValueError: The search's name cannot be that of a folder, or the operation cannot be carried out with
            these kernels on this problem.
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
    profile: WantedProfile | None = None
    companions: tuple[Kernel, ...] = ()

    def __post_init__(self) -> None:
        if not SEARCH.fullmatch(self.search):
            raise ValueError(f"the search is called {self.search!r:.60}, which is not the name of a folder")
        if self.operation.examines and len(self.kernels) != 1:
            raise ValueError(f"{self.operation.value} needs one kernel, not {len(self.kernels)}")
        if (self.operation is Operation.DIAGNOSE) != (self.profile is not None):
            raise ValueError("a diagnosis needs a profile, and nothing else does")
        if self.companions and (self.operation is not Operation.EVALUATE or len(self.kernels) != 1):
            raise ValueError("only the evaluation of one kernel has companions")
        if self.operation is Operation.PROBE and not self.problem.timed:
            raise ValueError(f"{self.problem.name} is not timed, so that no probe can be timed on it")

    def to_json(self) -> dict[str, Any]:
        """See `JsonRecord`. Without a `profile` or `companions` there is no such key, and only a race has a
        threshold, so that older workers can read it."""
        absent = [name for name in ("profile", "companions") if not getattr(self, name)]
        if self.operation is not Operation.RACE:
            absent.append("threshold")
        return {name: value for name, value in super().to_json().items() if name not in absent}

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
            data = json.loads(text)
            _require_known(data, id)
            request = cls.from_json(data)
            require_types(request)
        except BadRequest:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadRequest(f"request {id} cannot be read: {error}") from error
        if request.id != id:
            raise BadRequest(f"request {id} was altered: its contents have the id {request.id}")
        return request


def _require_known(data: Mapping[str, Any], id: str) -> None:
    """Raises UnknownOperation for an operation of a newer version."""
    if (operation := data["operation"]) not in list(Operation):
        raise UnknownOperation(
            f"request {id} asks for {operation!r:.40}, which this version cannot do; update this machine"
        )


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
    profile: WantedProfile | None = None,
    companions: Sequence[Kernel] = (),
) -> DeviceRequest:
    """A request, with its expected cost: see `DeviceRequest`."""
    cases = 1 if operation.examines else max(1, len(problem.cases))
    cost_s = EXPECTED_S[operation] * max(1, len(kernels))
    if companions:
        cost_s += EXPECTED_S[Operation.COMPARE] * (1 + len(companions))
    return DeviceRequest(
        search=search,
        operation=operation,
        problem=problem,
        kernels=tuple(kernels),
        settings=settings,
        kind=kind,
        number=number,
        threshold=threshold,
        cost_s=cost_s * cases,
        profile=profile,
        companions=tuple(companions),
    )
