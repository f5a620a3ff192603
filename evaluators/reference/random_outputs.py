"""Compares random outputs with the reference's by statistical tests, because a kernel draws other numbers.

A reference asks for this by defining `random_checks(inputs, outputs)`. It returns checks of the three kinds
below that the outputs for such inputs must pass, the same for the kernel and the reference. Each test fails a
right kernel with a probability of at most RATE. An evaluation has fewer than a thousand tests, so they fail
at most one right kernel in a million.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from evaluators.reference.accuracy.comparison import OutputComparison

if TYPE_CHECKING:
    import torch

HOOK = "random_checks"
"""The function of a reference with random outputs that returns their checks."""
RATE = 1e-9
"""The largest probability with which one test fails a right kernel."""
ENOUGH = 2**16
"""Sample size, which distinguishes standard deviations of 1 and 1.1; only the latest values are kept."""
MOST_CALLS = 256
"""Calls made at most to collect a sample of that size."""
RUN = 2**10
"""Length of a run of neighbouring elements; the sample of a large output consists of random runs."""
MOST_WAITING = 2
"""Calls that wait for a later call to be compared with."""
RECENT = 8
"""Earlier calls with which each new one is compared individually."""
REPEATED = 0.9
"""Where two answers of the reference differ, those of a kernel must differ at this share of the places."""


@dataclass(frozen=True, kw_only=True)
class Always:
    """A condition that every element must meet; `holds` is a bool tensor."""

    name: str
    holds: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Share:
    """Elements that are `hits` (a bool tensor), independently of one another, each with this probability (a
    number, or a tensor broadcast over them). Their number must lie in the binomial interval."""

    name: str
    hits: torch.Tensor
    probability: float | torch.Tensor


@dataclass(frozen=True, kw_only=True)
class ValueSample:
    """Values that must be distributed like the reference's at the same places. `eps` is the machine epsilon
    of the type that they were rounded to, 0 for whole numbers."""

    name: str
    values: torch.Tensor
    eps: float = 0.0


Check = Always | Share | ValueSample
Hook = Callable[[list[Any], list["torch.Tensor"]], Sequence[Check]]


class Evidence:
    """Accumulates calls of a kernel and of the reference on the same inputs, and tests them together."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._wrong = ""
        self._hits: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        """Hits, expected hits, and elements."""
        self._values: dict[str, list[Pair]] = defaultdict(list)
        self._eps: dict[str, float] = {}
        self._places: dict[str, torch.Tensor] = {}
        """The secret places of each sample, the same in every call."""
        self._waiting: dict[str, list[Pair]] = defaultdict(list)
        """Samples that have not been paired with those of another call."""
        self._recent: dict[str, deque[Pair]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._differ: dict[str, Counts] = defaultdict(lambda: Counts(0, 0, 0))
        """Sums over disjoint pairs of calls."""
        self._closest: dict[str, Counts] = defaultdict(lambda: Counts(0, 0, 0))
        """Of the pair of calls in which the kernel repeated the most values."""
        self._calls = 0

    @property
    def enough(self) -> bool:
        """Whether the samples are large enough, or the maximum number of calls is reached."""
        sizes = [sum(len(one) for one, _ in pairs) for pairs in self._values.values()]
        return self._calls >= MOST_CALLS or (self._calls > 1 and min(sizes, default=ENOUGH) >= ENOUGH)

    @property
    def differs(self) -> bool:
        """Whether any two answers of the reference differ."""
        return any(counts.reference for counts in self._differ.values())

    def other_inputs(self) -> None:
        """Starts calls on other inputs: they are not compared with the calls before."""
        self._waiting.clear()
        self._recent.clear()

    def add(self, inputs: list[Any], outputs: list[torch.Tensor], eager: list[torch.Tensor]) -> None:
        """Adds one call of each side. `inputs` are those of both, as they were before the call."""
        self._calls += 1
        theirs = self._hook(inputs, eager)
        for ours, right in zip(self._hook(inputs, outputs), theirs, strict=True):
            if isinstance(ours, Always):
                wrong = ours.holds.numel() - int(ours.holds.sum())
                if wrong and not self._wrong:
                    self._wrong = f"{ours.name} does not hold for {wrong} of {ours.holds.numel()} elements"
            elif isinstance(ours, Share):
                self._add_hits(ours)
            elif isinstance(right, ValueSample):
                self._add_values(ours, right)

    def _add_hits(self, share: Share) -> None:
        import torch

        counts = self._hits[share.name]
        if isinstance(share.probability, torch.Tensor):
            expected = float(share.probability.double().expand(share.hits.shape).sum())
        else:
            expected = share.probability * share.hits.numel()
        for n, more in enumerate((float(share.hits.sum()), expected, float(share.hits.numel()))):
            counts[n] += more

    def _add_values(self, ours: ValueSample, right: ValueSample) -> None:
        """Counts where a call equals earlier ones. Comparing it with each RECENT call finds a large answer
        that is repeated. Comparing it with a random waiting call adds up over many small answers, because no
        call is in two such pairs."""
        name = ours.name
        if name not in self._places:
            self._places[name] = _some(ours.values.numel(), ours.values.device)
            self._eps[name] = ours.eps
        kernel, reference = (each.values.flatten()[self._places[name]].double() for each in (ours, right))
        self._values[name].append((kernel, reference))
        while len(self._values[name]) > 1 and sum(len(one) for one, _ in self._values[name]) > ENOUGH:
            del self._values[name][0]
        before, waiting = list(self._recent[name]), self._waiting[name]
        waits = not waiting or (len(waiting) < MOST_WAITING and secrets.randbelow(2))
        if not waits:
            before.append(waiting.pop(secrets.randbelow(len(waiting))))
        found = _differences((kernel, reference), before) if before else []
        if waits:
            waiting.append((kernel, reference))
        else:
            self._differ[name] = Counts(*map(sum, zip(self._differ[name], found.pop(), strict=True)))
        self._closest[name] = max([self._closest[name], *found], key=lambda counts: counts.repeated)
        self._recent[name].append((kernel, reference))

    def comparison(self) -> OutputComparison:
        """The result of all tests: `problem` names those that fail, `error` is the largest statistic as a
        share of what is allowed."""
        found = [self._of_share(name) for name in self._hits]
        for name, pairs in self._values.items():
            ours, right = ([each[side] for each in pairs] for side in (0, 1))
            eps = self._eps[name]
            found.append(distribution_test(name, ours, right, eps))
            steps = list(map(_steps, ours)), list(map(_steps, right))
            found.append(distribution_test(f"{name}: differences of neighbours", *steps, 2 * eps))
            together = repetition_test(name, self._differ[name])
            found.append(max(together, repetition_test(name, self._closest[name], MOST_CALLS * RECENT)))
        problem = self._wrong or "; ".join(text for _, text in found if text)
        error = max((share for share, _ in found), default=0.0)
        return OutputComparison(error=math.inf if self._wrong else error, eager_error=0.0, problem=problem)

    def _of_share(self, name: str) -> tuple[float, str]:
        hits, expected, total = self._hits[name]
        statistic = total * _divergence(hits / total, expected / total) if total else 0.0
        share = statistic / math.log(2 / RATE)
        text = f"{name}: {hits / max(total, 1):.6g} of {total:.0f} elements, the probability is "
        return share, f"{text}{expected / total:.6g}" if share > 1 else ""


Pair = tuple["torch.Tensor", "torch.Tensor"]
"""The kernel's, and the reference's."""


class Counts(NamedTuple):
    """The number of places at which the answers to two calls differ."""

    kernel_alone: int
    reference_alone: int
    reference: int
    """Including places where the kernel's answers differ, too."""

    @property
    def repeated(self) -> int:
        """At how many more places the kernel's answers are equal than the reference's."""
        return self.reference_alone - self.kernel_alone


def judge_random(hook: Hook, inputs: list[Any], outputs: list[Any], eager: list[Any]) -> OutputComparison:
    """Compares one call of a kernel with one of the reference."""
    evidence = Evidence(hook)
    evidence.add(inputs, outputs, eager)
    return evidence.comparison()


def distribution_test(
    name: str, ours: Sequence[torch.Tensor], right: Sequence[torch.Tensor], eps: float
) -> tuple[float, str]:
    """The two-sample Kolmogorov-Smirnov test. Returns the largest distance of the distribution functions as a
    share of what is allowed, and a message if that exceeds 1. The bound is the inequality of Dvoretzky,
    Kiefer and Wolfowitz, with Bretagnolle's factor for elements that are not identically distributed, plus
    `eps`, because a kernel may round differently."""
    import torch

    one, other = torch.cat(list(ours)), torch.cat(list(right))
    if not len(one) or not len(other):
        return 0.0, ""
    lost, theirs = int(one.isnan().sum()), int(other.isnan().sum())
    if lost and not theirs:
        return math.inf, f"{name}: {lost} of {len(one)} values are not numbers"
    values = torch.cat([one, other])
    step = torch.ones_like(values) / len(one)
    step[len(one) :] = -1 / len(other)
    order = torch.nan_to_num(values, math.inf, math.inf, -math.inf).argsort()
    values, distances = values[order], step[order].cumsum(0)
    last = torch.ones_like(values, dtype=torch.bool)
    last[:-1] = values[1:] != values[:-1]
    distance = float(distances[last].abs().max())
    inverse = 1 / len(one) + 1 / len(other)
    allowed = math.sqrt(inverse / 2 * math.log(2 * math.e / RATE)) + eps
    share = distance / allowed
    text = f"{name}: the distribution of {len(one)} values is {distance:.3g} from eager's, allowed is "
    return share, f"{text}{allowed:.3g}" if share > 1 else ""


def repetition_test(name: str, counts: Counts, pairs: int = 1) -> tuple[float, str]:
    """McNemar's test: of the places where only the kernel's or only the reference's answers to two calls
    differ, half should be the kernel's. Returns the statistic as a share of what is allowed if fewer are, and
    a message if that exceeds 1. `counts` are the worst of at most `pairs` pairs of calls."""
    total = counts.kernel_alone + counts.reference_alone
    if counts.repeated <= (1 - REPEATED) * counts.reference or not total:
        return 0.0, ""
    share = total * _divergence(counts.kernel_alone / total, 0.5) / math.log(2 * pairs / RATE)
    text = (
        f"{name}: two calls give the same at {counts.repeated} more places than eager's, which differ at "
        f"{counts.reference}: calls are not independent"
    )
    return share, text if share > 1 else ""


def _divergence(share: float, probability: float) -> float:
    """The divergence of two Bernoulli distributions, in nats: Chernoff's bound on the binomial tail."""
    found = 0.0
    for one, other in ((share, probability), (1 - share, 1 - probability)):
        if one > 1e-12:
            found += one * math.log(one / other) if other > 0 else math.inf
    return found


def _differences(one: Pair, others: Sequence[Pair]) -> list[Counts]:
    """The differences from each of the others, computed in one go: with a GPU shared by several processes, 27
    synchronisations per call took minutes per case."""
    import torch

    kernel, reference = (
        torch.stack(both) != mine for mine, both in zip(one, zip(*others, strict=True), strict=True)
    )
    places = kernel & ~reference, ~kernel & reference, reference
    counts = torch.stack([each.sum(1) for each in places], 1).tolist()
    return [Counts(*each) for each in counts]


def _some(numel: int, device: torch.device) -> torch.Tensor:
    """The places of at most ENOUGH elements, in secret runs of neighbours."""
    import torch

    if numel <= ENOUGH:
        return torch.arange(numel, device=device)
    starts = [secrets.randbelow(numel - RUN) for _ in range(ENOUGH // RUN)]
    return (torch.tensor(starts, device=device)[:, None] + torch.arange(RUN, device=device)).flatten()


def _steps(values: torch.Tensor) -> torch.Tensor:
    """The differences within pairs of neighbouring elements."""
    pairs = values[: len(values) // 2 * 2].view(-1, 2)
    return pairs[:, 1] - pairs[:, 0]
