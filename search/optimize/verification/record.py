"""Whether a model with kernels is the same model, and how much faster: the record, and what follows from it.

Errors are relative: the norm of the difference over the norm of the answer, both in float64, the largest of a
model's outputs. The yardstick is the model itself in float64, where that fits, and then eager's own error.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evaluators.base.atomic_write import write_atomically
from evaluators.records.timing import median_interval

if TYPE_CHECKING:
    import torch

ALLOWED = 4.0
"""Times eager's own error that a model with kernels may have."""
LEAST_ERROR = 16.0
"""Units of the type's epsilon: an error below this is none."""
LEAST_LOSS = 0.02
"""Of a model's speed, for which a kernel that won alone is taken out of its place."""
EAGER = "eager"
OPTIMIZED = "optimized"
GRAPH = "graph"
OPTIMIZED_GRAPH = f"{OPTIMIZED} {GRAPH}"
COMPILE = "compile"
REDUCED = "reduce-overhead"
COMPILED_PAIRS = tuple((way, f"{OPTIMIZED} {way}") for way in (COMPILE, REDUCED))
"""Ways of the compiler, alone and around the kernels."""
Session = Mapping[str, Mapping[str, Sequence[float]]]
FILE = "verification.json"


@dataclass(frozen=True, kw_only=True)
class ModelCheck:
    """One set of inputs and weights. `error`: of the model with kernels; `eager_error`: of the model, both
    against float64; None where that does not fit, and `error` is then against the model. `tokens`: the share
    of positions whose most likely token is the model's, None without logits. `shape`: of the inputs."""

    seed: int
    error: float
    eager_error: float | None
    allowed: float
    tokens: float | None = None
    shape: str = ""

    @property
    def passes(self) -> bool:
        """Whether the error is allowed."""
        return self.error <= self.allowed


@dataclass(frozen=True, kw_only=True)
class GrowthStep:
    """How far a kernel's results are from those of the operators that it stands for, in a run where all
    kernels before it have been used."""

    kernel: str
    site: str
    error: float


@dataclass(frozen=True, kw_only=True)
class Verification:
    """`calls`: of each kernel in a forward; `left_out`: kernels that were taken out again, and why; `growth`:
    the errors from kernel to kernel where a check has failed. `sessions`: times of a forward in ms, by the
    shape of its inputs and the way of running it, those of a session in turn; `failed`: ways that could not
    be run. `shapes`: their weights, which come to 1, by their names; "" is that of one alone.
    `over_compiled`: the speedup of each kernel over its operators with its interval, both in compiled code;
    empty where no compiled code was timed. `in_place`: of each kernel that of the forward with it over the
    forward with its operators, by the way of running the model."""

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

    @property
    def passes(self) -> bool:
        """Whether the model with the kernels that are left is the model."""
        return bool(self.checks) and all(each.passes for each in self.checks)

    @property
    def as_graph(self) -> bool:
        """Whether the model with the kernels surely is faster as a CUDA graph than without one."""
        return OPTIMIZED_GRAPH in self.ways and self.speedup(OPTIMIZED_GRAPH, OPTIMIZED)[1] > 1

    @property
    def is_faster(self) -> bool:
        """Whether the model with the kernels surely is faster than eager, in the better of its ways."""
        return self.delivered in self.ways and self.speedup(self.delivered)[1] > 1

    @property
    def delivered(self) -> str:
        """The way in which the model with the kernels runs."""
        return OPTIMIZED_GRAPH if self.as_graph else OPTIMIZED

    def slower(self, way: str) -> list[str]:
        """The kernels with which the model surely is slower in this way, by more than LEAST_LOSS."""
        return [name for name, (_, _, high) in self.in_place.get(way, {}).items() if high < 1 - LEAST_LOSS]

    @property
    def slower_in(self) -> dict[str, list[str]]:
        """The kernels with which the model is slower, as `Plan.slower` has them."""
        ways = {"eager": self.slower(OPTIMIZED), "graph": self.slower(OPTIMIZED_GRAPH)}
        return {way: [name for name in own if name not in self.left_out] for way, own in ways.items()}

    @property
    def without_useless(self) -> Verification:
        """Without the kernels that are slower than their operators in all ways that were looked into."""
        slower = [{*self.slower(way)} for way in self.in_place]
        useless = set.intersection(*slower) if slower else set()
        why = {
            name: "the model is slower with it than with the operators in its place: "
            + ", ".join(_words(own[name]) for own in self.in_place.values())
            for name in self.calls
            if name in useless and name not in self.faster_compiled
        }
        calls = {name: count for name, count in self.calls.items() if name not in why}
        return replace(self, calls=calls, left_out={**self.left_out, **why})

    @property
    def faster_compiled(self) -> list[str]:
        """The kernels that surely are faster than what the compiler makes of their operators."""
        return [name for name, (_, low, _) in self.over_compiled.items() if low > 1]

    @property
    def compiled_pays(self) -> bool:
        """Whether the model as a whole is not surely slower in compiled code, where its own forward runs
        otherwise: a kernel keeps the compiler from fusing its operators with their neighbours."""
        timed = [each for each in COMPILED_PAIRS if {*each} <= {*self.ways}]
        pairs = [self.speedup(ours, theirs) for theirs, ours in timed]
        return all(high >= 1 for *_, high in pairs) or any(low > 1 for _, low, _ in pairs)

    @property
    def in_compiled(self) -> list[str] | None:
        """The kernels that run in compiled code; None where that was not looked into: all of them do."""
        if not any(ours in self.ways for _, ours in COMPILED_PAIRS):
            return None
        return self.faster_compiled

    @property
    def fastest(self) -> str:
        """The way of running the model that is the fastest."""
        return max(self.ways, key=lambda way: self.speedup(way)[0])

    @property
    def ways(self) -> list[str]:
        """Of running the model, that were timed."""
        ways = (way for session in self.sessions for own in session.values() for way in own)
        return list(dict.fromkeys(ways))

    def ms(self, way: str, shape: str | None = None) -> float:
        """A forward, the median of the first session with this way; of no `shape` the mean of all."""
        return statistics.median(self._turns(self._session(way), way, shape))

    def speedup(self, way: str, over: str = EAGER, shape: str | None = None) -> tuple[float, float, float]:
        """Of one way over another with its 95 % interval: of the median of the ratios of turns, in the first
        session with this way. Of no `shape` it is that of the means of the times of all."""
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
        """As JSON."""
        speedups = {way: list(self.speedup(way)) for way in self.ways}
        of_shapes = {
            shape: {way: list(self.speedup(way, shape=shape)) for way in self.ways} for shape in self.shapes
        }
        follows = {"passes": self.passes, "speedup_over_eager": speedups, "of_shapes": of_shapes}
        fields = {**asdict(self), "follows": follows}
        write_atomically(file, json.dumps(fields, indent=1))

    @classmethod
    def read(cls, file: Path) -> Verification:
        """What `write` wrote, in earlier versions of one shape. Raises OSError and ValueError."""
        fields = json.loads(file.read_text())
        if "shapes" not in fields:
            fields["sessions"] = [{"": session} for session in fields["sessions"]]
        fields.pop("follows")
        fields["checks"] = [ModelCheck(**each) for each in fields["checks"]]
        fields["growth"] = [GrowthStep(**each) for each in fields["growth"]]
        return cls(**fields)


def error_of(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest of the outputs' errors; infinite where they differ in number, shape, or in what is not
    finite, and where whole numbers differ."""
    if len(found) != len(wanted):
        return math.inf
    return max((_error(*pair) for pair in zip(found, wanted, strict=True)), default=0.0)


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    import torch

    if found.shape != wanted.shape:
        return math.inf
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else math.inf
    ours, theirs = found.double(), wanted.double()
    finite = theirs.isfinite()
    if not torch.equal(ours.isfinite(), finite) or not torch.equal(
        ours[~finite].nan_to_num(7.0), theirs[~finite].nan_to_num(7.0)
    ):
        return math.inf
    norm = float(theirs[finite].norm())
    off = float((ours[finite] - theirs[finite]).norm())
    return off / norm if norm else (0.0 if off == 0 else math.inf)


def allowed(eager_error: float | None, epsilon: float) -> float:
    """The error that a model with kernels may have: as many times eager's own, or what its type cannot tell
    from none."""
    return max(ALLOWED * (eager_error or 0.0), LEAST_ERROR * epsilon)


def guilty(names: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """The kernels to be taken out for the others to pass, by bisection: `fails` says whether the model fails
    with some of them. Of kernels that fail only together the last one is taken out."""
    left, out = list(names), []
    while left and fails(left):
        suspects = left
        while len(suspects) > 1:
            middle = len(suspects) // 2
            halves = suspects[:middle], suspects[middle:]
            suspects = next((half for half in halves if fails(half)), suspects[-1:])
        out.append(suspects[0])
        left = [each for each in left if each != suspects[0]]
    return out


def growth_lines(found: Verification) -> list[str]:
    """How the error grew from kernel to kernel, where kernels had to be taken out."""
    lines = [f"  {each.error:.1e}  {each.kernel}  {each.site}" for each in found.growth]
    return ["before that, errors of the kernels' results, call by call:", *lines] if lines else []


def said_of(found: Verification) -> list[str]:
    """What the comparison has found, a line each."""
    worst = max(found.checks, key=lambda each: each.error / each.allowed, default=None)
    lines = []
    if worst is not None:
        said = "the same" if found.passes else "NOT the same"
        against = "float64" if worst.eager_error is not None else "eager"
        eager = f", eager's own {worst.eager_error:.1e}" if worst.eager_error is not None else ""
        lines.append(
            f"{said} on {len({each.seed for each in found.checks})} sets of weights and inputs"
            f"{f' at each of {len(found.shapes)} shapes' if len(found.shapes) > 1 else ''}: "
            f"error {worst.error:.1e} against {against}{eager}, {worst.allowed:.1e} allowed"
        )
    tokens = [each.tokens for each in found.checks if each.tokens is not None]
    if tokens:
        lines.append(f"most likely tokens: {min(tokens):.2%} are the model's")
    if found.other_sizes:
        lines.append(found.other_sizes)
    if found.as_graph:
        lines.append("it runs as a CUDA graph, which is the faster way")
    if OPTIMIZED in found.ways and not found.is_faster:
        lines.append("NOT surely faster than the model: its own forward is the better one here")
    elif OPTIMIZED in found.ways:
        slow = [shape for shape in found.shapes if not found.speedup(found.delivered, shape=shape)[1] > 1]
        lines += [f"NOT surely faster than the model at {shape}" for shape in slow]
    for way, own in found.in_place.items():
        without = [f"{name} {_words(own[name])}" for name in found.slower(way) if name not in found.left_out]
        if without:
            where = "as a CUDA graph" if way == OPTIMIZED_GRAPH else "without a CUDA graph"
            lines.append(f"{where} the operators run in the place of {', '.join(without)}")
    if found.over_compiled or not found.compiled_pays:
        lines.append(_compiled_line(found))
    return lines + [f"taken out: {name}: {why}" for name, why in found.left_out.items()]


def _words(interval: Sequence[float]) -> str:
    """Of a speedup."""
    speedup, low, high = interval
    return f"{speedup:.2f}x [{low:.2f}, {high:.2f}]"


def _compiled_line(found: Verification) -> str:
    """Which kernels run in compiled code."""
    if not found.compiled_pays:
        return "in compiled code the model's own forward runs, which is faster there"
    used = [f"{name} {_words(found.over_compiled[name])}" for name in found.faster_compiled]
    left = len(found.over_compiled) - len(used)
    said = f"in compiled code {', '.join(used) if used else 'no kernel'} runs"
    return said + (f"; {left} no faster than the compiler's own code" if left else "")


def in_lines(found: Verification, title: Mapping[str, str]) -> list[str]:
    """All that there is to say, a line each; `title` has words for ways of running."""
    lines = said_of(found)
    if len(found.shapes) > 1 and found.ways:
        for shape, weight in found.shapes.items():
            lines += [f"at {shape}, {weight:.0%} of the calls:", *_times(found, title, shape)]
        lines.append("on average, by the weights:")
    lines += _times(found, title)
    if found.ways:
        lines.append(f"the fastest way: {title.get(found.fastest, found.fastest)}")
    lines += [f"{title.get(way, way):<34} failed: {why}" for way, why in found.failed.items()]
    return lines


def _times(found: Verification, title: Mapping[str, str], shape: str | None = None) -> Iterator[str]:
    """A line for each way of running."""
    for way in found.ways:
        speedup, low, high = found.speedup(way, shape=shape)
        over = "" if way == EAGER else f"  {speedup:.3f}x [{low:.3f}, {high:.3f}]"
        yield f"{title.get(way, way):<34} {found.ms(way, shape):9.3f} ms{over}"
