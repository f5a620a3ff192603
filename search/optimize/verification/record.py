"""Whether a model with kernels computes what the original does, and how much faster it is: the record that
`verification.json` holds, and what follows from it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from evaluators.records.timing import median_interval

LEAST_LOSS = 0.02
"""A kernel that slows the model down by more than this share is switched off, even if it is faster alone."""
EAGER = "eager"
OPTIMIZED = "optimized"
GRAPH = "graph"
OPTIMIZED_GRAPH = f"{OPTIMIZED} {GRAPH}"
COMPILE = "compile"
REDUCED = "reduce-overhead"
REWRITTEN = "rewritten"
"""The forward as code, without any kernel: what it gains is not the kernels'."""
COMPILED_PAIRS = tuple((way, f"{OPTIMIZED} {way}") for way in (COMPILE, REDUCED))
"""Ways of compiling the model: the original, and with the kernels."""
LARGEST_SHARE = 0.1
"""Loss curves that may differ by more than this share of the loss's change say little."""
Session = Mapping[str, Mapping[str, Sequence[float]]]
FILE = "verification.json"


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """The comparison on one set of weights and inputs at one `shape`. `error`: of the model with kernels,
    against the original in float64, or against eager where float64 does not fit (`eager_error` None).
    `eager_error`: of the original in its dtype. `tokens`: share of the positions whose most likely token is
    the original's; None without logits. `where`: in training, the output or gradient that is the worst."""

    seed: int
    error: float
    eager_error: float | None
    allowed: float
    tokens: float | None = None
    shape: str = ""
    where: str = ""

    @property
    def passes(self) -> bool:
        """Whether the error is small enough."""
        return self.error <= self.allowed


@dataclass(frozen=True, kw_only=True)
class LossCurves:
    """The losses of the original and of the model with kernels, trained from the same weights on the same
    inputs, by step. `spread`: how far rounding had moved the original's loss until then; `allowed`: how far
    the loss with kernels may be from the original's (see `loss_curves`)."""

    optimizer: str
    learning_rate: float
    original: Sequence[float]
    with_kernels: Sequence[float]
    spread: Sequence[float]
    allowed: Sequence[float]

    @property
    def differences(self) -> list[float]:
        """The distance of the two curves by step; infinite where one is not finite."""
        pairs = zip(self.original, self.with_kernels, strict=True)
        return [abs(one - other) if math.isfinite(one - other) else math.inf for one, other in pairs]

    @property
    def passes(self) -> bool:
        """Whether the two curves are the same within the allowed error."""
        return all(own <= most for own, most in zip(self.differences, self.allowed, strict=True))

    @property
    def is_conclusive(self) -> bool:
        """Whether the curves would differ if the gradients did: the loss changes far more than is allowed."""
        return max(self.allowed) < LARGEST_SHARE * (max(self.original) - min(self.original))


@dataclass(frozen=True, kw_only=True)
class GrowthStep:
    """The error of one kernel call against the operators it replaces, in a forward where all kernels before
    it ran, too."""

    kernel: str
    site: str
    error: float


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A model with kernels compared with the original.

    Attributes:
        checks: the comparisons of outputs, one per set of weights and inputs and shape.
        calls: calls of each kernel in a forward.
        left_out: kernels that were removed, with the reason.
        growth: the error from kernel to kernel, where a check failed.
        sessions: ms of a forward, one value per turn, by input shape and way of running the model; the ways
            of one session were timed in turn.
        failed: ways that could not be run, with the reason.
        other_sizes: what happened on inputs of another size.
        shapes: weight of each input shape by its name ("" if there is one); the weights sum to 1.
        over_compiled: speedup of each kernel over its operators, both in compiled code, as
            (speedup, low, high); empty where no compiled code was timed.
        in_place: speedup of the forward with a kernel over the forward with its operators, by way of running
            the model and kernel, as (speedup, low, high).
        backward: whether the model is trained: results include gradients, and times are those of a step of
            training (forward, backward and the optimizer's step).
        curves: of a model that is trained, its losses.
        memory: of a model that is trained, bytes by way of running it and kind (see `memory_of`).
    """

    checks: Sequence[ModelCheck]
    calls: Mapping[str, int]
    left_out: Mapping[str, str] = field(default_factory=dict)
    growth: Sequence[GrowthStep] = ()
    sessions: Sequence[Session] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    other_sizes: str = ""
    shapes: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    over_compiled: Mapping[str, Sequence[float]] = field(default_factory=dict)
    in_place: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    backward: bool = False
    curves: LossCurves | None = None
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        """Whether the model with the remaining kernels computes what the original does."""
        learns = self.curves is None or self.curves.passes
        return learns and bool(self.checks) and all(each.passes for each in self.checks)

    @property
    def as_graph(self) -> bool:
        """Whether the model with kernels is significantly faster as a CUDA graph than without one."""
        return OPTIMIZED_GRAPH in self.ways and self.speedup(OPTIMIZED_GRAPH, OPTIMIZED)[1] > 1

    @property
    def is_faster(self) -> bool:
        """Whether the model with kernels, as it is delivered, is significantly faster than eager."""
        return self.delivered in self.ways and self.speedup(self.delivered)[1] > 1

    @property
    def delivered(self) -> str:
        """The way in which `optimized/` runs the model."""
        return OPTIMIZED_GRAPH if self.as_graph else OPTIMIZED

    def slower(self, way: str) -> list[str]:
        """The kernels that make the model significantly slower in this way, by more than LEAST_LOSS."""
        return [name for name, (_, _, high) in self.in_place.get(way, {}).items() if high < 1 - LEAST_LOSS]

    @property
    def slower_in(self) -> dict[str, list[str]]:
        """The kernels that make the model slower, in the form of `ForwardPlan.slower`."""
        ways = {"eager": self.slower(OPTIMIZED), "graph": self.slower(OPTIMIZED_GRAPH)}
        return {way: [name for name in own if name not in self.left_out] for way, own in ways.items()}

    @property
    def without_useless(self) -> Verification:
        """The same without the kernels that make the model slower in every way that was measured."""
        slower = [{*self.slower(way)} for way in self.in_place]
        useless = set.intersection(*slower) if slower else set()
        why = {
            name: "the model is slower with it than with the operators it replaces: "
            + ", ".join(interval_text(own[name]) for own in self.in_place.values())
            for name in self.calls
            if name in useless and name not in self.faster_compiled
        }
        calls = {name: count for name, count in self.calls.items() if name not in why}
        return replace(self, calls=calls, left_out={**self.left_out, **why})

    @property
    def faster_compiled(self) -> list[str]:
        """The kernels that are significantly faster than the compiler's code for their operators."""
        return [name for name, (_, low, _) in self.over_compiled.items() if low > 1]

    @property
    def compiled_pays(self) -> bool:
        """Whether compiled code should run the kernels: unless the compiled model is significantly slower
        with them, because a kernel keeps the compiler from fusing its operators with their neighbours. In
        training only if it was significantly faster."""
        timed = [each for each in COMPILED_PAIRS if {*each} <= {*self.ways}]
        pairs = [self.speedup(ours, theirs) for theirs, ours in timed]
        if self.backward:
            return any(low > 1 for _, low, _ in pairs)
        return all(high >= 1 for *_, high in pairs) or any(low > 1 for _, low, _ in pairs)

    @property
    def in_compiled(self) -> list[str] | None:
        """The kernels that run in compiled code; None (all of them) where that was not measured for each."""
        if self.backward or not any(ours in self.ways for _, ours in COMPILED_PAIRS):
            return None
        return self.faster_compiled

    @property
    def fastest(self) -> str:
        """The fastest way of running the model."""
        ways = [way for way in self.ways if not way.startswith(REWRITTEN)]
        return max(ways, key=lambda way: self.speedup(way)[0])

    def runs_kernels(self, way: str) -> bool:
        """Whether a kernel runs in this way of running the model."""
        compiled = way in dict(COMPILED_PAIRS).values()
        running = {*self.calls} - {*self.slower(way)}
        if compiled and not self.backward:
            running = {*self.faster_compiled}
        return way.startswith(OPTIMIZED) and any(name not in self.left_out for name in running)

    @property
    def ways(self) -> list[str]:
        """The ways of running the model that were timed."""
        ways = (way for session in self.sessions for own in session.values() for way in own)
        return list(dict.fromkeys(ways))

    def ms(self, way: str, shape: str | None = None) -> float:
        """Median ms of a forward in the first session with this way; without `shape` the weighted mean of
        all shapes."""
        return statistics.median(self._turns(self._session(way), way, shape))

    def speedup(self, way: str, over: str = EAGER, shape: str | None = None) -> tuple[float, float, float]:
        """The speedup of one way over another with its 95 % interval: the median of the turns' ratios in the
        first session with this way. Without `shape` it is that of the weighted mean time of all shapes."""
        session = self._session(way)
        turns = zip(self._turns(session, over, shape), self._turns(session, way, shape), strict=True)
        return median_interval([theirs / ours for theirs, ours in turns])

    def _session(self, way: str) -> Session:
        return next(each for each in self.sessions if all(way in own for own in each.values()))

    def _turns(self, session: Session, way: str, shape: str | None) -> list[float]:
        if shape is not None:
            return list(session[shape][way])
        turns = zip(*(session[name][way] for name in self.shapes), strict=True)
        return [
            sum(weight * ms for weight, ms in zip(self.shapes.values(), turn, strict=True)) for turn in turns
        ]

    def write(self, file: Path) -> None:
        """Writes the record as JSON."""
        speedups = {way: list(self.speedup(way)) for way in self.ways}
        of_shapes = {
            shape: {way: list(self.speedup(way, shape=shape)) for way in self.ways} for shape in self.shapes
        }
        follows = {"passes": self.passes, "speedup_over_eager": speedups, "of_shapes": of_shapes}
        fields = {**asdict(self), "follows": follows}
        write_atomically(file, json.dumps(fields, indent=1))

    @classmethod
    def read(cls, file: Path) -> Verification:
        """Reads what `write` wrote; earlier versions knew one shape. Raises OSError and ValueError."""
        fields = json.loads(file.read_text())
        if "shapes" not in fields:
            fields["sessions"] = [{"": session} for session in fields["sessions"]]
        fields.pop("follows")
        fields["checks"] = [ModelCheck(**each) for each in fields["checks"]]
        fields["growth"] = [GrowthStep(**each) for each in fields["growth"]]
        fields["curves"] = LossCurves(**fields["curves"]) if fields.get("curves") else None
        return cls(**fields)


def interval_text(interval: Sequence[float]) -> str:
    """A speedup with its interval, such as `1.50x [1.40, 1.60]`."""
    speedup, low, high = interval
    return f"{speedup:.2f}x [{low:.2f}, {high:.2f}]"
