"""One candidate before the court: it is loaded, checked, counted and timed, and gets its verdict."""

from __future__ import annotations

import itertools
import math
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evaluators import weights
from evaluators.arena import Spot
from evaluators.bystanders import Bystanders
from evaluators.census import (
    PATIENCE_S,
    ROW_SLOTS,
    SHORT_MS,
    Census,
    Looks,
    hidden,
    of_kernels,
    row_length,
    sure,
    undecided,
)
from evaluators.channel import Message
from evaluators.correctness import FAMILIES, Comparison
from evaluators.court import CHAIN_CALLS, SINGLES, Court
from evaluators.evaluation import Status, Timing
from evaluators.side import Refused, Side
from evaluators.timing import (
    RESOLUTION_MS,
    SABOTAGED,
    SLACK_MS,
    Block,
    Plan,
    batched,
    credible_ms,
    interval,
    sabotaged,
    suspicious,
    undelivered,
)

if TYPE_CHECKING:
    import torch

CHECKED_CALLS, CHECKED_LINKS = 3, 8
MOST_CHAINS = 8
"""That a kernel is given to be fast enough in one: the first warms up, and a busy machine makes some slow."""
SLOW_MS = 50.0
"""Of a call: it need not be made once more for caches to be as before."""
CENSUS_CALLS = 4
MOST_KEPT_BLOCKS = 8

Stage = Callable[[str], None]
Outputs = list["torch.Tensor"]


@dataclass
class Samples:
    """ms a call of each block; of a baseline's at most `most_ms` counts."""

    most_ms: float
    kernel: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)

    @property
    def fair(self) -> list[float]:
        """The baseline's, as they count."""
        return [min(each, self.most_ms) for each in self.eager]

    @property
    def ratios(self) -> list[float]:
        """The speedups, a pair of blocks each."""
        return [eager / kernel for kernel, eager in zip(self.kernel, self.fair, strict=True)]


class Trial:
    """One candidate before the court. `say` is told when a stage begins."""

    def __init__(
        self, court: Court, side: Side, plan: Plan, scratch: str, *, thorough: bool, say: Stage
    ) -> None:
        if court.device == "cpu":
            # A block's figure is the median of its calls there, some of which other processes disturb.
            plan = replace(plan, block_ms=plan.block_ms / 4, least_calls=3)
        self._court, self._side, self._plan = court, side, plan
        self._eager_calls = court.eager_calls(plan)
        self._compiled = court.compiled if thorough else None
        self._say = say
        self._families: dict[str, bool] = {}
        self._comparisons: list[Comparison] = []
        self._remarks: list[str] = []
        self._census: Census | None = None
        self._changed = False
        self._turns = itertools.cycle(weights.turns(len(court.weight_forms)))
        self._before: list[float] = []
        """The baseline's ms a call while the candidate had not been loaded."""
        self._looks: Looks | None = None
        if court.library_code is not None:
            self._looks = Looks(side.pid, scratch, court.library_code)
        self._pending: list[Callable[[], None]] = []

    def verdict(self) -> Message:
        """Loads, checks and times the candidate; always a verdict. Raises ChannelClosed if it died."""
        import torch

        timing: Timing | None = None
        status, log, rule = Status.CORRECT, "", ""
        try:
            self._say("loading")
            self._court.lower_overhead()
            self._before = self._court.eager_alone(self._plan)
            self._court.load(self._side)
            self._say("checking")
            call_ms = self._check()
            self._say("counting")
            self._count()
            self._say("timing")
            timing = self._time(call_ms)
        except Refused as refused:
            status, log, rule = refused.status, refused.log, refused.rule
            if "torch._inductor" in log and self._court.problem["libraries"] == "no_library":
                status, rule = Status.REJECTED, "library"
        except (MemoryError, torch.OutOfMemoryError) as error:
            status, log = Status.CRASHED, f"beside it there is no memory left to check it: {error}"
        finally:
            self._court.restore_weights()
        return {
            "op": "verdict",
            "status": status.value,
            "log": log or self._notes(),
            "rule": rule,
            "timing": None if timing is None else asdict(timing),
            "correctness": self._correctness(),
            "roofline": asdict(self._court.roofline()),
            "own_share": None if self._census is None else self._census.own_share,
            "before_ms": self._before,
        }

    def _check(self) -> float:
        """Correctness on the problem's own inputs, then on the families. Returns about how long a call takes
        in ms, of two the shorter."""
        capacity = self._court.capacity
        first = self._check_block(1)
        self._change_weights(everywhere=True)
        again = self._check_block(self._plan.calls(first, min(CHECKED_CALLS, capacity)))
        names = list(FAMILIES)
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            for family, seed, outputs in zip(chosen, *self._answered(chosen)[1:], strict=True):
                self._try_family(family, seed, outputs)
        return min(first, again)

    def _change_weights(self, *, everywhere: bool = False) -> None:
        """A check with other weights, all or those whose turn it is: a kernel that leaves some out, or has
        kept something made of them, is wrong. Then, where calls are short, one to get used to the old ones
        again, which the next check is about."""
        if not self._court.weight_forms:
            return
        seed, turn = secrets.randbits(62), None if everywhere else next(self._turns)
        alike = self._side.change_weights(seed, turn, self._court.weight_forms)
        self._court.change_weights(seed, turn, alike=alike)
        self._changed = True
        call_ms = self._check_block(1)
        self._changed = False
        self._court.restore_weights()
        self._side.restore_weights()
        if call_ms < SLOW_MS:
            self._court.stage_fresh([""], self._side)
            self._side.block(1)

    def _check_block(self, calls: int) -> float:
        block, seeds, answers = self._answered([""] * calls)
        for seed, outputs in zip(seeds, answers, strict=True):
            self._require(seed, outputs)
        return block.call_ms(self._court.overhead(calls).total_ms)

    def _answered(self, families: list[str]) -> tuple[Block, list[int], list[Outputs]]:
        """A block with one fresh call a family: its secret seeds, and private copies of what came out."""
        seeds = self._court.stage_fresh(families, self._side)
        block = self._side.block(len(families))
        return block, seeds, [self._court.arena.snapshot(call) for call in range(len(families))]

    def _require(
        self, seed: int, outputs: Outputs, *, after: Outputs | None = None, spot: bool = False
    ) -> None:
        comparison = self._court.check(outputs, seed, after=after, spot=spot)
        if comparison is None:
            return
        self._comparisons.append(comparison)
        if comparison.problem:
            where = " after its weights were changed in place" if self._changed else ""
            where += " that depend on the answer before" if after is not None else ""
            raise Refused(Status.INCORRECT, f"wrong on fresh inputs{where}: {comparison.problem}")

    def _try_family(self, family: str, seed: int, outputs: Outputs) -> None:
        comparison = self._court.check(outputs, seed, family, spot=True)
        if comparison is None:
            return
        self._families[family] = not comparison.problem
        if comparison.problem and self._court.problem["tolerance"] == "strict":
            raise Refused(Status.INCORRECT, f"wrong on inputs of the family '{family}': {comparison.problem}")

    def _count(self) -> None:
        """On a GPU: what the device's trace of some calls says of who did the computing."""
        if self._court.problem["libraries"] == "any" or self._court.device != "cuda":
            return
        calls = min(CENSUS_CALLS, self._court.capacity)
        self._court.stage_fresh([""] * calls, self._side)
        self._census = of_kernels(self._side.census(calls))
        self._require_own_work()

    def _watch(self, looks: Looks, calls: int, call_ms: float) -> None:
        """On a CPU: a block like the timed ones, but each call is looked at, once."""
        looks.span_ms = call_ms + self._court.overhead(1).total_ms
        _, check = self._spot_check(calls, looks)
        check()

    def _watch_row(self, looks: Looks) -> None:
        """On a CPU: calls too short to be met by a look, in rows, one of which is looked at. What they return
        is checked like any other, and they must be about as fast as single ones."""
        names = [""] * min(ROW_SLOTS, self._court.capacity)
        length = row_length(looks.call_ms, self._court.arena.outputs.call_bytes, looks.stretch)
        for watching in (None, looks):
            seeds = self._court.stage_fresh(names, self._side)
            calls = [secrets.randbelow(len(names)) for _ in range(length)]
            row_ms, chosen = self._side.row_ms(calls, watching)
            self._require(seeds[chosen], self._court.arena.snapshot(chosen))
            looks.saw_row(row_ms, length, watched=watching is not None)

    def _conclude(self, looks: Looks, calls: int, call_ms: float) -> None:
        """On a CPU: as many further looks as it takes, and what they say."""
        start, bystanders = time.monotonic(), Bystanders(self._side.processes())
        while undecided(looks.count, looks.tries, looks.census(), time.monotonic() - start):
            if looks.call_ms < SHORT_MS:
                self._watch_row(looks)
            else:
                self._watch(looks, calls, call_ms)
        while looks.slower_in_rows(SLACK_MS["cpu"]) and time.monotonic() - start < PATIENCE_S:
            self._watch_row(looks)  # a busy machine makes rows slow, too
        self._census = seen = looks.census()
        if reason := hidden(looks.count) or seen.reason() or looks.slower_in_rows(SLACK_MS["cpu"]):
            if not sure(looks.count, seen) and bystanders.busy(self._side.processes()):
                raise RuntimeError(f"other processes keep the cores busy: {reason}")
            raise Refused(Status.REJECTED, reason, "library")

    def _require_own_work(self) -> None:
        if self._census is not None and (reason := self._census.reason()):
            raise Refused(Status.REJECTED, reason, "library")

    def _time(self, call_ms: float) -> Timing:
        """Samples, audits, and what they come to."""
        self._court.lower_overhead()
        on_gpu = self._court.device == "cuda"
        calls = self._block_calls(call_ms)
        samples = self._sample(calls, call_ms)
        sampled_ms = statistics.median(samples.kernel)
        # Who was slower before is sampled again: short blocks are for slow kernels.
        if on_gpu and self._plan.calls(sampled_ms, self._court.capacity) > 2 * calls:
            longer = self._block_calls(sampled_ms)
            if longer > 2 * calls:
                calls = longer
                samples = self._sample(calls, call_ms)
        kernel_ms, eager_ms = statistics.median(samples.kernel), statistics.median(samples.fair)
        if self._looks is not None:
            self._looks.call_ms = min(samples.kernel)  # what a busy machine adds makes no call long
            self._conclude(self._looks, calls, kernel_ms)
        if on_gpu and eager_ms <= RESOLUTION_MS:
            raise RuntimeError("the reference seems to take no time: what a block costs besides is wrong")
        if kernel_ms <= RESOLUTION_MS:
            self._require_true_overhead(calls)
        if on_gpu:
            more_ms = self._audit(calls, kernel_ms, samples.eager) + self._unproven_ms(calls)
            samples.kernel = [each + more_ms for each in samples.kernel]
            kernel_ms += more_ms
        if reason := self._court.too_fast(kernel_ms, eager_ms, calls):
            self._require_true_overhead(calls)
            raise Refused(Status.REJECTED, reason, "roofline")
        speedup, low, high = interval(samples.ratios)
        return Timing(
            kernel_ms=kernel_ms,
            eager_ms=eager_ms,
            compile_ms=statistics.median(samples.compiled) if samples.compiled else None,
            speedup=speedup,
            speedup_low=low,
            speedup_high=high,
            kernel_samples_ms=tuple(samples.kernel),
            eager_samples_ms=tuple(samples.fair),
        )

    def _sample(self, calls: int, call_ms: float) -> Samples:
        """Alternates blocks of kernel and baselines (ABBA) until the interval is narrow enough; then a last
        check with other weights."""
        # On a CPU the candidate is stopped beside the baseline; what runs slower there is the machine.
        most_ms = math.inf
        if self._court.device == "cuda":
            most_ms = credible_ms(self._before, SLACK_MS["cuda"] / self._eager_calls)
        samples = Samples(most_ms=most_ms)
        steps: list[Callable[[], None]] = [
            lambda: samples.kernel.append(self._timed_block(calls)),
            lambda: samples.eager.append(self._baseline_block(self._court.eager)),
        ]
        if (other := self._compiled) is not None:
            steps.append(lambda: samples.compiled.append(self._baseline_block(other)))
        start = time.monotonic()
        moments = weights.moments()
        while True:
            if next(moments):
                self._settle()
                self._change_weights()
            if self._looks is not None and secrets.randbelow(2):
                self._watch(self._looks, calls, samples.kernel[-1] if samples.kernel else call_ms)
            for step in steps if len(samples.kernel) % 2 == 0 else reversed(steps):
                step()
            self._settle()
            if self._plan.enough(samples.ratios, time.monotonic() - start):
                break
        self._change_weights()
        return samples

    def _require_true_overhead(self, calls: int) -> None:
        """Raises RuntimeError where a kernel seems too fast because of a mistake of ours."""
        if self._court.overstates(calls):
            raise RuntimeError("what a block costs besides was measured on a busy machine")

    def _block_calls(self, call_ms: float) -> int:
        """Calls of the kernel's blocks, as many as can be queued at once, which is tried; as many as the
        baseline's where both are about as fast, so that what blocks cost besides is the same."""
        capacity = self._court.capacity
        calls, tried = self._plan.calls(call_ms, capacity), 0
        while calls > tried:
            tried, call_ms = calls, self._timed_block(calls)
            self._settle()
            room = self._court.queue_room(self._side, calls)
            self._eager_calls = min(self._eager_calls, room)  # nobody gains by being measured in short blocks
            calls = min(self._plan.calls(call_ms, capacity), room)
            if max(calls, self._eager_calls) <= 2 * min(calls, self._eager_calls):
                calls = self._eager_calls
        return calls

    def _settle(self) -> None:
        """Does the checks that were put off, so that both sides' blocks come after the same work."""
        while self._pending:
            self._pending.pop()()

    def _audit(self, calls: int, kernel_ms: float, eager: list[float]) -> float:
        """On a GPU: ms a call that count besides. Raises Refused for times that an honest kernel cannot
        have."""
        slack_ms, more_ms = SLACK_MS["cuda"], 0.0
        if calls > 1 and self._court.link_ms:
            singles = [self._timed_block(1) for _ in range(SINGLES)]
            self._settle()
            if suspicious(singles, kernel_ms, self._court.waking_ms, slack_ms):
                more_ms = self._batching_ms(calls, kernel_ms)
        if reason := sabotaged(self._before, eager, slack_ms / self._eager_calls):
            raise Refused(Status.REJECTED, reason, SABOTAGED)
        return more_ms

    def _batching_ms(self, calls: int, kernel_ms: float) -> float:
        """ms that a call takes longer in a chain, in which none can begin before the answer to the one before
        is there, if it is far longer. Raises Refused if it is, but for kernels that wait for the GPU in every
        call: nothing hides the launches of a chain there, and their noise is no proof."""
        waits = self._side.waits and not self._side.queued_some
        link_ms, chain_ms, reason = self._court.link_ms[waits], math.inf, None
        for _ in range(MOST_CHAINS):
            chain_ms = min(chain_ms, self._chain_ms(min(calls, CHAIN_CALLS)))
            reason = batched(chain_ms, kernel_ms, link_ms, SLACK_MS["cuda"])
            if reason is None:
                return 0.0
        if not waits:
            raise Refused(Status.REJECTED, str(reason), "batched calls")
        self._remarks.append(f"it waits for the GPU in every call, and is timed in a chain: {reason}")
        return chain_ms - link_ms - kernel_ms

    def _chain_ms(self, calls: int) -> float:
        """ms a call of the candidate in a chain, some calls of which are checked."""
        seeds = self._court.stage_fresh([""] * calls, self._side)
        block, order = self._side.chain(calls)
        seen, snapshot = self._seen(calls), self._court.arena.snapshot
        before = {call: last for last, call in itertools.pairwise(order)}
        chosen = secrets.SystemRandom().sample(order[1:], min(CHECKED_LINKS, calls - 1))
        for call, outputs in [(seen.call, seen.outputs), *((each, snapshot(each)) for each in chosen)]:
            if call in before:
                self._require(seeds[call], outputs, after=snapshot(before[call]), spot=True)
        return block.call_ms(self._court.overhead(calls).total_ms)

    def _unproven_ms(self, calls: int) -> float:
        """ms a call that were taken off for the copying of outputs, where it is not proven that the kernel
        works as much without: one that returns the same memory in every call cannot hand it in later. Raises
        Refused when blocks are about as long without the copying as with it; of each kind the fastest counts,
        since noise only adds."""
        delivery_ms = self._court.overhead(calls).delivery_ms
        whole_ms = kept_ms = math.inf
        proven = True
        for _ in range(MOST_KEPT_BLOCKS):
            whole_ms = min(whole_ms, self._spot_check(calls)[0].wall_ms)
            seeds = self._court.stage_fresh([""] * calls, self._side)
            block, call, left = self._side.kept_block(calls)
            kept_ms = min(kept_ms, block.wall_ms)
            answers = [each for each in (self._court.arena.snapshot(call), left) if each]
            proven = proven and any(self._is_right(each, seeds[call]) for each in answers)
            reason = undelivered(whole_ms, kept_ms, delivery_ms)
            if reason is None:
                return 0.0 if proven else delivery_ms / calls
        raise Refused(Status.REJECTED, str(reason), "outputs not handed in")

    def _is_right(self, outputs: Outputs, seed: int) -> bool:
        comparison = self._court.check(outputs, seed, spot=True)
        return comparison is None or not comparison.problem

    def _timed_block(self, calls: int) -> float:
        """ms a call of the candidate; its answers are checked when the pair of blocks is complete."""
        overhead_ms = self._court.overhead(calls).total_ms
        block, check = self._spot_check(calls)
        self._pending.append(check)
        if self._looks is not None:
            self._looks.saw_alone(max(block.least_ms - overhead_ms / calls, RESOLUTION_MS))
        return block.call_ms(overhead_ms)

    def _spot_check(self, calls: int, looks: Looks | None = None) -> tuple[Block, Callable[[], None]]:
        """A block on fresh inputs, and what checks one of its calls; the others are glanced at."""
        seeds = self._court.stage_fresh([""] * calls, self._side)
        block = self._side.block(calls, looks=looks)
        seen = self._seen(calls)
        return block, lambda: self._require(seeds[seen.call], seen.outputs, spot=True)

    def _seen(self, calls: int) -> Spot:
        """A look at the last block, all of whose calls must have been answered."""
        spot = self._side.spot(calls)
        if spot.missing is not None:
            raise Refused(
                Status.INCORRECT,
                f"when the runner said it was done, call {spot.missing} had not been answered",
            )
        return spot

    def _baseline_block(self, side: Side) -> float:
        """ms a call of a baseline, after the same preparations."""
        calls = self._eager_calls
        overhead_ms = self._court.overhead(calls).total_ms
        self._court.stage_fresh([""] * calls, side)
        return side.block(calls).call_ms(overhead_ms)

    def _correctness(self) -> dict[str, Any] | None:
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return {
            "checked_calls": len(self._comparisons),
            "normwise_error": max(c.error for c in finite),
            "eager_error": max(c.eager_error for c in finite),
            "families": self._families,
        }

    def _notes(self) -> str:
        failed = [name for name, passed in self._families.items() if not passed]
        outside = [f"outside the tolerance on inputs of the families: {', '.join(failed)}"] if failed else []
        return "\n".join(outside + self._remarks)
