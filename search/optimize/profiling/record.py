"""Where the time of a model goes, and what can be won there: the record that `profile.json` holds.

Times are in ms and of one iteration: a call of the model, forward or forward and backward. Where a model has
several shapes of inputs, they are those of an iteration on average: of each shape its weight times its time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

LAUNCH_BOUND = 0.2
"""From this share of idle time on a GPU's model is launch-bound."""
VERSION = 1
"""Of the form of the record."""


class Bound(StrEnum):
    """What the least time of a target comes from."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LAUNCH = "launch"
    """No kernel is quicker than the quickest that was seen."""
    UNKNOWN = ""


@dataclass(frozen=True, kw_only=True)
class SiteTime:
    """The calls that one module makes."""

    calls: int
    time_ms: float


@dataclass(frozen=True, kw_only=True)
class TargetCase:
    """Calls with the same arguments. `arguments`: as text of the trace format, one for each operator of a
    chain, "" where it has no words for them. `sites`: by the module's path. `floor_ms`: the least that the
    calls can take, 0 where that is not known. `shape`: at which they are made, by its place in the profile's;
    `calls` are those of a forward there."""

    arguments: tuple[str, ...]
    calls: int
    time_ms: float
    floor_ms: float
    bytes: int
    operations: int
    dtype: str
    bound: Bound
    sites: Mapping[str, SiteTime]
    shape: int = 0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Out of the plain JSON types of `Profile.to_json`."""
        sites = {site: SiteTime(**each) for site, each in fields["sites"].items()}
        made = {"arguments": tuple(fields["arguments"]), "bound": Bound(fields["bound"]), "sites": sites}
        return cls(**{**fields, **made})


@dataclass(frozen=True, kw_only=True)
class LibraryKernel:
    """What the library has for a target: the entry by its id, and how many times as fast as eager PyTorch it
    was measured on this architecture (the lower end of the interval), at sizes that are `measured_at`."""

    entry: str
    speedup: float
    measured_at: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """An operator, or a chain of them that could be one kernel, with all its calls. `operators`: in the order
    of the calls. `kind`: of an operator, what it does (see `recording.Kind`); "chain" of a chain."""

    operators: tuple[str, ...]
    kind: str
    cases: tuple[TargetCase, ...]
    library: LibraryKernel | None = None

    @property
    def name(self) -> str:
        """`addmm`, or `addmm + gelu`; of an operator with its overload where it has one."""
        names = [each.split(".", 1)[1].removesuffix(".default") for each in self.operators]
        return " + ".join(names)

    @property
    def is_chain(self) -> bool:
        """Whether it is more than one operator."""
        return len(self.operators) > 1

    @property
    def calls(self) -> int:
        """Of an iteration."""
        return sum(each.calls for each in self.cases)

    @property
    def time_ms(self) -> float:
        """Of an iteration."""
        return sum(each.time_ms for each in self.cases)

    @property
    def floor_ms(self) -> float:
        """The least that an iteration's calls can take; 0 where that is not known."""
        return sum(each.floor_ms for each in self.cases) if all(each.floor_ms for each in self.cases) else 0.0

    @property
    def roofline_factor(self) -> float:
        """How many times as fast it could be, 1 at least; 1 where the floor is not known."""
        return max(1.0, self.time_ms / self.floor_ms) if self.floor_ms else 1.0

    @property
    def library_factor(self) -> float:
        """How many times as fast the library's kernel was, 1 at least."""
        return max(1.0, self.library.speedup) if self.library else 1.0

    @property
    def bound(self) -> Bound:
        """What most of its least time comes from."""
        weights: Counter[Bound] = Counter()
        for each in self.cases:
            weights[each.bound] += each.floor_ms  # type: ignore[assignment]
        return weights.most_common(1)[0][0] if self.floor_ms else Bound.UNKNOWN

    @property
    def sites(self) -> dict[str, SiteTime]:
        """Of all cases, those that take most first."""
        calls: Counter[str] = Counter()
        times: dict[str, float] = {}
        for case in self.cases:
            for site, each in case.sites.items():
                calls[site] += each.calls
                times[site] = times.get(site, 0.0) + each.time_ms
        order = sorted(calls, key=lambda site: (-times[site], site))
        return {site: SiteTime(calls=calls[site], time_ms=times[site]) for site in order}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Out of the plain JSON types of `Profile.to_json`."""
        return cls(
            operators=tuple(fields["operators"]),
            kind=fields["kind"],
            cases=tuple(map(TargetCase.from_json, fields["cases"])),
            library=LibraryKernel(**fields["library"]) if fields["library"] else None,
        )


def amdahl(share: float, factor: float) -> float:
    """How many times as fast the whole is when this share of its time takes `factor` times less (Amdahl,
    AFIPS 1967). Infinite where nothing is left."""
    left = 1 - share + share / factor
    return 1 / left if left > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class ShapeTime:
    """A shape of the inputs: its name, its share of the calls, and the time of an iteration there."""

    name: str
    weight: float
    wall_ms: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's profile on one device. `device`: `cuda` or `cpu`; `device_name` and `torch` say which.

    `wall_ms` is the time of an iteration without a profiler; `operators` all operators that were
    called, `chains` those calls that could be one kernel, which overlap. `other_ms`: device time of no
    operator. `kernels`: launches of an iteration, 0 on a CPU. `notes`: what a reader should know of the
    figures. `shapes`: of the inputs; profiles of earlier versions have none. Raises ValueError for times that
    no measurement gives.
    """

    model: str
    device: str
    device_name: str
    dtype: str
    backward: bool
    torch: str
    iterations: int
    wall_ms: float
    kernels: int
    operators: tuple[Target, ...]
    chains: tuple[Target, ...] = ()
    other_ms: float = 0.0
    notes: tuple[str, ...] = field(default=())
    shapes: tuple[ShapeTime, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.wall_ms) and self.wall_ms > 0):
            raise ValueError(f"wall_ms is {self.wall_ms}; it must be finite and positive")

    @property
    def weights(self) -> dict[str, float]:
        """Of the shapes, by their names; "" is that of one alone."""
        return {each.name: each.weight for each in self.shapes} or {"": 1.0}

    @property
    def device_ms(self) -> float:
        """Of all operators, and of what else ran on the device."""
        return sum(each.time_ms for each in self.operators) + self.other_ms

    @property
    def total_ms(self) -> float:
        """That shares are of: the iteration, or the device's time where that is more, as with streams side by
        side or under a profiler that slows short calls down."""
        return max(self.wall_ms, self.device_ms)

    @property
    def idle_share(self) -> float:
        """Of an iteration in which the device has nothing to do; on a CPU what is spent outside operators."""
        return max(0.0, 1 - self.device_ms / self.wall_ms)

    @property
    def launch_bound(self) -> bool:
        """Whether the GPU waits for launches so long that faster kernels alone do not help."""
        return self.device != "cpu" and self.idle_share >= LAUNCH_BOUND

    @property
    def graphs_speedup(self) -> float:
        """Of the model without any idle time, as CUDA graphs leave it."""
        return amdahl(self.idle_share, math.inf) if self.device_ms else 1.0

    def share(self, target: Target) -> float:
        """Of an iteration's time."""
        return target.time_ms / self.total_ms

    def speedup_if(self, target: Target, factor: float) -> float:
        """Of the model when the target takes `factor` times less."""
        return amdahl(self.share(target), factor)

    def potential(self, target: Target) -> float:
        """Speedup of the model by the best that the roofline or the library says of the target."""
        return self.speedup_if(target, max(target.roofline_factor, target.library_factor))

    @property
    def targets(self) -> list[Target]:
        """Operators and chains that take time, the most promising first. Views are none."""
        found = [each for each in (*self.operators, *self.chains) if each.time_ms > 0 and each.kind != "view"]
        return sorted(found, key=lambda each: (-self.potential(each), len(each.operators), each.name))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types, with what follows from them for whoever reads the file."""
        follows = {
            "device_ms": self.device_ms,
            "idle_share": self.idle_share,
            "launch_bound": self.launch_bound,
            "ranking": [
                {
                    "name": each.name,
                    "kind": each.kind,
                    "calls": each.calls,
                    "time_ms": each.time_ms,
                    "share": self.share(each),
                    "roofline_factor": each.roofline_factor,
                    "library_factor": each.library_factor,
                    "model_speedup": self.potential(each),
                }
                for each in self.targets
            ],
        }
        return {"version": VERSION, **asdict(self), "follows": follows}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Out of what `to_json` makes. Raises ValueError for another version of it."""
        if fields.get("version") != VERSION:
            raise ValueError(f"a profile of version {fields.get('version')}; this reads version {VERSION}")
        made = {key: value for key, value in fields.items() if key not in ("version", "follows")}
        for key in ("operators", "chains"):
            made[key] = tuple(map(Target.from_json, made[key]))
        shapes = tuple(ShapeTime(**each) for each in made.get("shapes", ()))
        return cls(**{**made, "notes": tuple(made["notes"]), "shapes": shapes})


def patterns_of(sites: Sequence[str]) -> dict[str, int]:
    """Paths that differ in numbers alone are one pattern (`h.*.attn`), with how many there are of each."""
    found = Counter(
        ".".join("*" if part.isdigit() else part for part in site.split(".")) or "(model)" for site in sites
    )
    return dict(found)
