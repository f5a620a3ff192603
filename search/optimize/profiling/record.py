"""A model's profile: where its time goes and what could be gained there. `profile.json` contains it.

Times are ms per iteration: one call of the model, forward or forward and backward. For a model with several
input shapes they are weighted averages over the shapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

LAUNCH_BOUND = 0.2
"""A model on a GPU that is idle for at least this share of the time is launch-bound."""
VERSION = 1
"""Version of the file format."""


class Bound(StrEnum):
    """What limits the least time of a target."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LAUNCH = "launch"
    """The time of the shortest kernel that was seen: none is assumed to be shorter."""
    UNKNOWN = ""


@dataclass(frozen=True, kw_only=True)
class SiteTime:
    """The calls made by one module."""

    calls: int
    time_ms: float


@dataclass(frozen=True, kw_only=True)
class TargetCase:
    """Calls with the same arguments at one input shape (`shape`: its index in `Profile.shapes`). `arguments`:
    text in the trace format per operator of a chain, "" where it cannot express them. `calls` per forward,
    `time_ms` and `floor_ms` (least possible time, 0 if not known) are of all these calls; `bytes` and
    `operations` of one. `sites`: the calling modules by path. `bound`: what `floor_ms` comes from."""

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
        """Reads what `Profile.to_json` makes of a case."""
        sites = {site: SiteTime(**each) for site, each in fields["sites"].items()}
        made = {"arguments": tuple(fields["arguments"]), "bound": Bound(fields["bound"]), "sites": sites}
        return cls(**{**fields, **made})


@dataclass(frozen=True, kw_only=True)
class LibraryKernel:
    """The library's kernel for a target: the entry's id, the lower end of its speedup over eager PyTorch on
    this architecture, and the sizes at which that was measured."""

    entry: str
    speedup: float
    measured_at: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """An operator, or a chain of operators that could be one kernel, with all its calls. `operators`: in the
    order of the calls. `kind`: the operator's `OperatorKind`, or "chain"."""

    operators: tuple[str, ...]
    kind: str
    cases: tuple[TargetCase, ...]
    library: LibraryKernel | None = None

    @property
    def name(self) -> str:
        """`addmm` or `addmm + gelu`; with the operators' overloads."""
        names = [each.split(".", 1)[1].removesuffix(".default") for each in self.operators]
        return " + ".join(names)

    @property
    def is_chain(self) -> bool:
        """Whether it has more than one operator."""
        return len(self.operators) > 1

    @property
    def calls(self) -> int:
        """Calls per iteration."""
        return sum(each.calls for each in self.cases)

    @property
    def time_ms(self) -> float:
        """Time per iteration."""
        return sum(each.time_ms for each in self.cases)

    @property
    def floor_ms(self) -> float:
        """Least time per iteration; 0 if not known."""
        return sum(each.floor_ms for each in self.cases) if all(each.floor_ms for each in self.cases) else 0.0

    @property
    def roofline_factor(self) -> float:
        """The speedup that the roofline allows, at least 1; 1 if not known."""
        return max(1.0, self.time_ms / self.floor_ms) if self.floor_ms else 1.0

    @property
    def library_factor(self) -> float:
        """The speedup of the library's kernel, at least 1."""
        return max(1.0, self.library.speedup) if self.library else 1.0

    @property
    def bound(self) -> Bound:
        """What most of the least time comes from."""
        weights: Counter[Bound] = Counter()
        for each in self.cases:
            weights[each.bound] += each.floor_ms  # type: ignore[assignment]
        return weights.most_common(1)[0][0] if self.floor_ms else Bound.UNKNOWN

    @property
    def sites(self) -> dict[str, SiteTime]:
        """The calling modules of all cases, the one with most time first."""
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
        """Reads what `Profile.to_json` makes of a target."""
        return cls(
            operators=tuple(fields["operators"]),
            kind=fields["kind"],
            cases=tuple(map(TargetCase.from_json, fields["cases"])),
            library=LibraryKernel(**fields["library"]) if fields["library"] else None,
        )


def amdahl(share: float, factor: float) -> float:
    """The end-to-end speedup when this share of the time becomes `factor` times faster (Amdahl, AFIPS 1967);
    infinite where nothing is left."""
    left = 1 - share + share / factor
    return 1 / left if left > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class ShapeTime:
    """An input shape: its name, its share of the calls, and the time of an iteration."""

    name: str
    weight: float
    wall_ms: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's profile on one device.

    Attributes:
        model: the model's name.
        device: `cuda` or `cpu`; `device_name` says which.
        dtype: of the weights and floating inputs.
        backward: whether an iteration is forward and backward.
        torch: the version of PyTorch.
        iterations: how many were traced.
        wall_ms: time of an iteration without a profiler.
        kernels: launches per iteration, 0 on a CPU.
        operators: all operators that were called.
        chains: groups of calls that could be one kernel; they overlap.
        both_passes: with `backward`, the operators and chains of the forward, each with the time of its
            forward and backward pass. A kernel replaces both.
        other_ms: device time that belongs to no operator.
        notes: caveats about the figures.
        shapes: the input shapes; empty in profiles of earlier versions.

    Raises ValueError for a `wall_ms` that is not finite and positive.
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
    both_passes: tuple[Target, ...] = ()
    other_ms: float = 0.0
    notes: tuple[str, ...] = field(default=())
    shapes: tuple[ShapeTime, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.wall_ms) and self.wall_ms > 0):
            raise ValueError(f"wall_ms is {self.wall_ms}; it must be finite and positive")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each shape by its name, which is "" for a single one."""
        return {each.name: each.weight for each in self.shapes} or {"": 1.0}

    @property
    def device_ms(self) -> float:
        """Time of all operators and of everything else that ran on the device."""
        return sum(each.time_ms for each in self.operators) + self.other_ms

    @property
    def total_ms(self) -> float:
        """The time that counts as 100 %: the iteration, or the device's time where that is longer, with
        concurrent streams or where the profiler slows short calls down."""
        return max(self.wall_ms, self.device_ms)

    @property
    def idle_share(self) -> float:
        """Share of an iteration in which the device is idle; on a CPU the share outside operators."""
        return max(0.0, 1 - self.device_ms / self.wall_ms)

    @property
    def launch_bound(self) -> bool:
        """Whether the GPU mostly waits for launches, so that faster kernels alone hardly help."""
        return self.device != "cpu" and self.idle_share >= LAUNCH_BOUND

    @property
    def graphs_speedup(self) -> float:
        """End-to-end speedup without any idle time, which CUDA graphs come close to."""
        return amdahl(self.idle_share, math.inf) if self.device_ms else 1.0

    def share(self, target: Target) -> float:
        """The target's share of an iteration's time."""
        return target.time_ms / self.total_ms

    def speedup_if(self, target: Target, factor: float) -> float:
        """End-to-end speedup when the target becomes `factor` times faster."""
        return amdahl(self.share(target), factor)

    def potential(self, target: Target) -> float:
        """End-to-end speedup if the target reaches the better of its roofline and the library kernel's
        speedup."""
        return self.speedup_if(target, max(target.roofline_factor, target.library_factor))

    @property
    def targets(self) -> list[Target]:
        """Operators (except views) and chains that take time, the most promising first."""
        listed = self.both_passes if self.backward else (*self.operators, *self.chains)
        found = [each for each in listed if each.time_ms > 0 and each.kind != "view"]
        return sorted(found, key=lambda each: (-self.potential(each), len(each.operators), each.name))

    def to_json(self) -> dict[str, Any]:
        """The profile as plain JSON types, with derived figures for readers of the file."""
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
        """Reads what `to_json` makes. Raises ValueError for another version."""
        if fields.get("version") != VERSION:
            raise ValueError(f"profile version {fields.get('version')}; this reads version {VERSION}")
        made = {key: value for key, value in fields.items() if key not in ("version", "follows")}
        for key in ("operators", "chains", "both_passes"):
            made[key] = tuple(map(Target.from_json, made.get(key, ())))
        shapes = tuple(ShapeTime(**each) for each in made.get("shapes", ()))
        return cls(**{**made, "notes": tuple(made["notes"]), "shapes": shapes})


def site_patterns(sites: Sequence[str]) -> dict[str, int]:
    """Module paths as patterns (`h.*.attn` for those that differ only in numbers), each with its count."""
    found = Counter(
        ".".join("*" if part.isdigit() else part for part in site.split(".")) or "(model)" for site in sites
    )
    return dict(found)
