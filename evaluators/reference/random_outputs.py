"""Compares random outputs with the reference's by statistical tests: a kernel draws numbers of its own.

A reference asks for it by a function `random_checks(inputs, outputs)`, which returns what holds of the
outputs for such inputs: checks of the three kinds below, the same for the kernel's as for the reference's.
Each test fails a right kernel with a probability of RATE at most, so that all tests of an evaluation, of
which there are fewer than a thousand, fail one in a million.
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
"""The function by which a reference says that its outputs are random, and what holds of them."""
RATE = 1e-9
"""Of a test: how often it fails a right kernel, at most."""
ENOUGH = 2**16
"""Values of a sample, which tell standard deviations of 1 and 1.1 apart; the last so many are kept."""
MOST_CALLS = 256
"""That are made to have so many."""
RUN = 2**10
"""Neighbouring elements, of which a sample of a large output has some, anywhere in it."""
MOST_WAITING = 2
"""Calls that wait to be compared with others."""
RECENT = 8
"""Calls that each new one is compared with, one by one."""
REPEATED = 0.9
"""Of the places at which two answers of the reference differ, those of a kernel differ at this share."""


@dataclass(frozen=True, kw_only=True)
class Always:
    """`holds` for each element, a tensor of bool."""

    name: str
    holds: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Share:
    """Elements that are `hits`, a tensor of bool, each with a probability, a number or a tensor that is
    broadcast over them, and independently: their number lies in the binomial distribution's interval."""

    name: str
    hits: torch.Tensor
    probability: float | torch.Tensor


@dataclass(frozen=True, kw_only=True)
class ValueSample:
    """Values that are distributed as the reference's at the same places. `eps`: of the type in which they
    were rounded, 0 for whole numbers."""

    name: str
    values: torch.Tensor
    eps: float = 0.0


Check = Always | Share | ValueSample
Hook = Callable[[list[Any], list["torch.Tensor"]], Sequence[Check]]


class Evidence:
    """What calls of a kernel, and of the reference on the same inputs, come to together."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._wrong = ""
        self._hits: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        """Hits, the number expected, and elements."""
        self._values: dict[str, list[Pair]] = defaultdict(list)
        self._eps: dict[str, float] = {}
        self._places: dict[str, torch.Tensor] = {}
        """Of a sample, in each call: nobody knows which."""
        self._waiting: dict[str, list[Pair]] = defaultdict(list)
        """Samples that have not been compared with those of another call."""
        self._recent: dict[str, deque[Pair]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._differ: dict[str, Counts] = defaultdict(lambda: Counts(0, 0, 0))
        """Of all pairs of calls that were compared, none of them twice."""
        self._closest: dict[str, Counts] = defaultdict(lambda: Counts(0, 0, 0))
        """Of the two calls in which the kernel gave the same at the most places."""
        self._calls = 0

    @property
    def enough(self) -> bool:
        """Whether more calls would tell no more, or take too long."""
        sizes = [sum(len(one) for one, _ in pairs) for pairs in self._values.values()]
        return self._calls >= MOST_CALLS or (self._calls > 1 and min(sizes, default=ENOUGH) >= ENOUGH)

    @property
    def differs(self) -> bool:
        """Whether any two of the reference's answers did."""
        return any(counts.reference for counts in self._differ.values())

    def other_inputs(self) -> None:
        """From here on calls are on other inputs than those before, with which they are not compared."""
        self._waiting.clear()
        self._recent.clear()

    def add(self, inputs: list[Any], outputs: list[torch.Tensor], eager: list[torch.Tensor]) -> None:
        """One call of each side on the same inputs, as they were before it."""
        self._calls += 1
        theirs = self._hook(inputs, eager)
        for ours, right in zip(self._hook(inputs, outputs), theirs, strict=True):
            if isinstance(ours, Always):
                wrong = ours.holds.numel() - int(ours.holds.sum())
                if wrong and not self._wrong:
                    self._wrong = f"{ours.name} does not hold of {wrong} of {ours.holds.numel()} elements"
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
        """Compares a call with earlier ones, to see where both are equal: with RECENT ones each by itself,
        which finds a large answer that is given again, and with one at random, which adds up for small ones
        since no call is in two of these pairs."""
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
        """What the tests say, those that fail. `error` is the largest of their statistics, each as a
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
    """Places at which the answers to two calls differ."""

    kernel_alone: int
    reference_alone: int
    reference: int
    """Whether or not the kernel's do as well."""

    @property
    def repeated(self) -> int:
        """At how many more places the kernel's are the same than the reference's."""
        return self.reference_alone - self.kernel_alone


def judge_random(hook: Hook, inputs: list[Any], outputs: list[Any], eager: list[Any]) -> OutputComparison:
    """One call of a kernel's beside one of the reference's."""
    evidence = Evidence(hook)
    evidence.add(inputs, outputs, eager)
    return evidence.comparison()


def distribution_test(
    name: str, ours: Sequence[torch.Tensor], right: Sequence[torch.Tensor], eps: float
) -> tuple[float, str]:
    """The two-sample Kolmogorov-Smirnov test: the largest distance of the distribution functions as a share
    of what is allowed, and what it means if that is more than 1. Allowed are the inequality of Dvoretzky,
    Kiefer and Wolfowitz, with Bretagnolle's factor for elements that are not distributed alike, and `eps`,
    since a kernel may round otherwise."""
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
    """Of places where either the kernel's answers to two calls differ or the reference's, half should be the
    kernel's (McNemar's test). What is counted is that fewer are. `pairs` of calls were tested at most, of
    which these are the worst."""
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
    """Of two Bernoulli distributions, in nats: Chernoff's bound of the binomial distribution's tail."""
    found = 0.0
    for one, other in ((share, probability), (1 - share, 1 - probability)):
        if one > 1e-12:
            found += one * math.log(one / other) if other > 0 else math.inf
    return found


def _differences(one: Pair, others: Sequence[Pair]) -> list[Counts]:
    """From each of the others, together: to wait for a GPU 27 times a call took minutes a case where several
    processes had one."""
    import torch

    kernel, reference = (
        torch.stack(both) != mine for mine, both in zip(one, zip(*others, strict=True), strict=True)
    )
    places = kernel & ~reference, ~kernel & reference, reference
    counts = torch.stack([each.sum(1) for each in places], 1).tolist()
    return [Counts(*each) for each in counts]


def _some(numel: int, device: torch.device) -> torch.Tensor:
    """The places of at most ENOUGH elements: runs of neighbours, nobody knows which."""
    import torch

    if numel <= ENOUGH:
        return torch.arange(numel, device=device)
    starts = [secrets.randbelow(numel - RUN) for _ in range(ENOUGH // RUN)]
    return (torch.tensor(starts, device=device)[:, None] + torch.arange(RUN, device=device)).flatten()


def _steps(values: torch.Tensor) -> torch.Tensor:
    """From each other element to its neighbour."""
    pairs = values[: len(values) // 2 * 2].view(-1, 2)
    return pairs[:, 1] - pairs[:, 0]
