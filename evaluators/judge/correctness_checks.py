"""Whether a candidate's answers are right on inputs that it has never seen."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient
from evaluators.judge.staging import Batch
from evaluators.records.evaluation import Correctness, Stage, Status
from evaluators.records.timing import Block, Effort, Plan
from evaluators.reference.accuracy.comparison import OutputComparison
from evaluators.reference.accuracy.differences import spread_of
from evaluators.reference.accuracy.sampled_elements import Places, pick, pick_all, some_places
from evaluators.reference.answer import Draw, ReferenceAnswer, benchmark_rules
from evaluators.reference.inputs import weight_changes
from evaluators.reference.inputs.input_distributions import DESCRIPTIONS
from evaluators.reference.inputs.near_repeats import is_stale, near_repeats
from evaluators.reference.inputs.strided_layouts import same_bits
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.reference.random_outputs import Evidence
from evaluators.runner.shared_buffers import SampledOutput

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

CHECKED_CALLS = 3
SLOW_MS = 50.0
"""Calls that take longer than this are not repeated just to restore caches."""

NEAR_REPEATS, FEW_NEAR_REPEATS, QUICK_MS = 6, 2, 5.0
"""Calls on inputs that hardly differ from the first call's; fewer where calls take longer than QUICK_MS."""
MOST_KEPT, LEAST_KEPT, KEPT_S, KEPT_BYTES = 1024, 32, 2.0, 2**30
"""More calls that a kernel gets that keeps the memory of its outputs, to find out whether it returns it
again: at most and at least; in between as many as take this time, and have outputs of this size."""

ALL_DISTRIBUTIONS_S = 5.0
"""Time for further distributions after one on which a kernel is wrong."""

Outputs = list["torch.Tensor"]


class CorrectnessChecks:
    """Queries one candidate and records how accurate it was. Every finding that it is wrong raises
    CandidateRefused."""

    def __init__(
        self, session: ReferenceSession, client: RunnerClient, effort: Effort = Effort.USUAL
    ) -> None:
        self._session, self._client, self._reference = session, client, session.reference
        self._effort = effort
        self._brief = effort is Effort.QUICK
        """Whether timed calls are not checked: a QUICK evaluation calls no kernel correct."""
        self._distributions: dict[str, bool] = {}
        self._comparisons: list[OutputComparison] = []
        self._benchmark_rules: dict[str, bool] = {}
        self._turns = itertools.cycle(weight_changes.turns(len(self._reference.weight_forms)))
        self._padded = False
        """Whether zeros among its weights are padding (see `WeightChange`)."""
        self._call_ms = math.inf
        """The shortest so far, in blocks of which every call is checked."""
        self._spread: float | None = None
        """See `Correctness`."""
        self._evidence = self._new_evidence()
        """From single calls, mainly those of timed blocks."""
        self._pending: list[Callable[[], None]] = []

    def begin(self, plan: Plan) -> float:
        """Checks the problem's own inputs and, unless the effort is QUICK, nearly equal ones and every
        distribution with other weights. Returns the shortest time of a few calls in ms."""
        # For a single large call on a GPU there may be no memory for it.
        self._client.keeps = self._session.capacity > 1 or self._session.device == "cpu"
        draw, outputs, answer = self._check_block(1, "on fresh inputs")
        kept = _Kept.of(outputs)
        del outputs  # they may be large
        if not self._brief:
            with self._session.clock.step(Stage.NEAR_REPEATS):
                self._check_near_repeats(draw, answer)
        del answer
        if (evidence := self._new_evidence()) is not None:
            self._check_samples(evidence)
        if not self._brief:
            with self._session.clock.step(Stage.DISTRIBUTIONS):
                self.change_weights(self._reference.full_change(), self._try_distributions)
        calls = min(CHECKED_CALLS, self._session.capacity)
        if self._session.problem.timed:
            calls = plan.calls(self._call_ms, calls)
        self._check_block(calls, "on fresh inputs")
        if self._client.keeps:
            self._check_kept(kept)
            self._client.keeps = False
        return self._call_ms

    def _new_evidence(self) -> Evidence | None:
        """Set if outputs are compared by statistical tests."""
        hook = self._reference.random_checks
        return None if hook is None else Evidence(hook)

    def _check_samples(self, evidence: Evidence) -> None:
        """Runs blocks, each with the same inputs for all its calls, until there are enough values."""
        while not evidence.enough:
            evidence.other_inputs()
            batch = self._session.stage_fresh(self._session.capacity, self._client, own=True)
            self._client.block(batch)
            for call, draw in enumerate(batch.draws):
                answer = self._reference.answer(draw)
                if answer.inputs is not None:
                    evidence.add(answer.inputs, self._client.buffers.snapshot(call), answer.eager)
            self._require_inputs(batch)
        self._comparisons.append(found := evidence.comparison())
        if found.problem:
            raise CandidateRefused(Status.INCORRECT, f"wrong on fresh inputs: {found.problem}")

    def change_some_weights(self) -> None:
        """Checks with other values in some weights, in turn: a kernel that ignores some, or keeps something
        computed from them, is wrong. If calls are short, one more call with the original weights follows, so
        that the next check starts warm."""
        if self._brief or not self._reference.weight_forms:
            return
        change = WeightChange(seed=secrets.randbits(62), turn=tuple(next(self._turns)), padded=self._padded)

        def check() -> None:
            self._check_block(1, "after its weights were changed in place")

        with self._session.clock.step(Stage.SPOT_CHECKS):
            self.change_weights(change, check)
            if self._call_ms < SLOW_MS:
                self._client.block(self._session.stage_fresh(1, self._client))

    def change_weights(self, change: WeightChange, check: Callable[[], T]) -> T:
        """The result of `check` with other weights on both sides."""
        if not self._reference.has_weights:
            return check()
        forms, buffers = self._reference.weight_forms, self._reference.buffer_forms
        alike, known = self._client.change_weights(change, forms, buffers)
        self._reference.change_weights(replace(change, buffers=known), alike=alike)
        if not (alike or change.padded or change.turn is not None) and not self._is_right_once():
            self._restore_weights()
            self._padded = True  # unless it is also wrong with padding
            return self.change_weights(replace(change, padded=True), check)
        found = check()
        self._restore_weights()
        return found

    def _restore_weights(self) -> None:
        self._reference.restore_weights()
        self._client.restore_weights()

    def _is_right_once(self) -> bool:
        batch = self._session.stage_fresh(1, self._client, own=True)
        self._client.block(batch)
        return self.is_right(self._client.buffers.snapshot(0), batch.draws[0])

    def _try_distributions(self) -> None:
        """Tries each distribution once, and the problem's own inputs, in an unpredictable order: each call
        follows one on another distribution, so that leftovers of the call before show. With FULL effort the
        others are tried too after a failure, while there is time."""
        changed = self._reference.has_weights
        self._check_block(1, "after its weights were changed in place" if changed else "on fresh inputs")
        names = list(self._reference.distributions)
        secrets.SystemRandom().shuffle(names)
        capacity, wrong, deadline_s = self._session.capacity, list[str](), math.inf
        for start in range(0, len(names), capacity):
            if time.monotonic() > deadline_s:
                break
            chosen = names[start : start + capacity]
            batch = self._session.stage_distributions(chosen, self._client)
            self._client.block(batch)
            for call, name in enumerate(chosen):
                comparison = self._reference.check_on(self._client.buffers.snapshot(call), name)
                self._distributions[name] = not comparison.problem
                if comparison.problem:
                    wrong.append(f"wrong on {described(name)}: {comparison.problem}")
                    if self._effort is not Effort.FULL:
                        raise CandidateRefused(Status.INCORRECT, wrong[0])
                    deadline_s = min(deadline_s, time.monotonic() + ALL_DISTRIBUTIONS_S)
            if not wrong:
                self._require_inputs(batch)
        if wrong:
            right = [name for name in names if self._distributions.get(name)]
            rest = [f"right on {len(right)} others: {', '.join(sorted(right))}"] if right else []
            raise CandidateRefused(Status.INCORRECT, "\n".join([*wrong, *rest]))

    def timed_block(self, calls: int) -> Block:
        """A block on fresh inputs, whose answers `settle` checks unless the effort is QUICK."""
        block, check = self.checked_block(calls)
        if not self._brief:
            self._pending.append(check)
        return block

    def settle(self) -> None:
        """Does the postponed checks, so that the blocks of both sides follow the same work."""
        with self._session.clock.step(Stage.SPOT_CHECKS):
            while self._pending:
                self._pending.pop()()

    def checked_block(self, calls: int) -> tuple[Block, Callable[[], None]]:
        """A block on fresh inputs, and a function that checks one of its calls. The other calls are only
        checked for unwritten elements."""
        batch = self._session.stage_fresh(calls, self._client)
        block = self._client.block(batch)
        seen = self.seen(calls)
        self._require_inputs(batch, [seen.call])
        draw = batch.draws[seen.call]
        return block, lambda: self._require(draw, seen.outputs, self._reference.answer(draw, spot=True))

    def seen(self, calls: int) -> SampledOutput:
        """A sample of the last block's outputs. Raises CandidateRefused if a call has not been answered."""
        sampled = self._client.sampled_output(calls)
        if sampled.missing is not None:
            raise CandidateRefused(
                Status.INCORRECT,
                f"when the runner reported the block done, call {sampled.missing} had not been answered",
            )
        return sampled

    def require_chained(self, draw: Draw, outputs: Outputs, before: Outputs) -> None:
        """Checks the outputs of a call of a chain that followed the answer `before`."""
        if answer := self._session.answer_after(before, draw):
            self._require(draw, outputs, answer, after=" that depend on the answer before")

    def _require(
        self,
        draw: Draw,
        outputs: Outputs,
        answer: ReferenceAnswer,
        *,
        where: str = "on fresh inputs",
        after: str = "",
    ) -> None:
        comparison = self._reference.judge_draw(outputs, answer, own=not draw.distribution)
        if self._evidence is not None and answer.inputs is not None:
            self._evidence.add(answer.inputs, outputs, answer.eager)
            comparison = self._evidence.comparison()
        if not draw.distribution:
            self._comparisons.append(comparison)
        if comparison.problem:
            where = f"on {described(draw.distribution)}" if draw.distribution else where
            raise CandidateRefused(Status.INCORRECT, f"wrong {where}{after}: {comparison.problem}")

    def is_right(self, outputs: Outputs, draw: Draw) -> bool:
        """Whether the outputs are right, without consequences."""
        answer = self._reference.answer(draw, spot=True)
        return not self._reference.judge_draw(outputs, answer, own=not draw.distribution).problem

    def correctness(self) -> Correctness | None:
        """None if no answer was comparable."""
        finite = [c for c in self._comparisons if c.error != float("inf")]
        if not finite:
            return None
        return Correctness(
            checked_calls=len(self._comparisons),
            normwise_error=0.0 if self._evidence else max(c.error for c in finite),
            eager_error=max(c.eager_error for c in finite),
            largest_error=None if self._evidence else max(c.largest for c in finite),
            distributions=self._distributions,
            untried=self._reference.untried,
            benchmark_rules=self._benchmark_rules,
            spread=self._spread,
            statistic=max(c.error for c in finite) if self._evidence else None,
        )

    def _check_block(self, calls: int, where: str) -> tuple[Draw, Outputs, ReferenceAnswer]:
        """Checks every call of a block on the problem's own inputs. Returns the draw of one, its outputs and
        the answer."""
        batch = self._session.stage_fresh(calls, self._client, own=True)
        block = self._client.block(batch)
        by_draw: dict[Draw, list[Outputs]] = {}
        for call, draw in enumerate(batch.draws):
            by_draw.setdefault(draw, []).append(self._client.buffers.snapshot(call))
        for draw, outputs in by_draw.items():
            answer = self._reference.answer(draw)
            if self._evidence is None:
                for other in outputs[1:]:
                    self._spread = max(self._spread or 0.0, spread_of(other, outputs[0]))
                self._benchmark_rules = self._benchmark_rules or benchmark_rules(outputs[0], answer)
            for each in outputs:
                self._require(draw, each, answer, where=where)
        self._require_inputs(batch)
        self._call_ms = min(self._call_ms, self._session.call_ms(block))
        return draw, outputs[0], answer

    def _check_near_repeats(self, draw: Draw, before: ReferenceAnswer) -> None:
        """Checks calls on the inputs of an earlier call with a few elements changed, in the same memory and
        in other memory: a kernel that keeps results must not take them for the same. `before` is the
        answer to that call."""
        session, reference = self._session, self._reference
        if self._evidence is not None or reference.slices is not None or session.memory.is_lean:
            return
        count = NEAR_REPEATS if self._call_ms < QUICK_MS else FEW_NEAR_REPEATS
        repeats = near_repeats(reference.draw(draw.seed), count, reference.distributions)
        while some := list(itertools.islice(repeats, min(2, session.capacity))):
            tried = [reference.run_if_valid(each, draw.seed) for each in some]
            answers = [each for each in tried if each is not None]
            if len(answers) < len(some):
                return
            self._client.block(session.stage_given(some, draw, self._client))
            for call, answer in enumerate(answers):
                outputs, flat = self._client.buffers.snapshot(call), reference.rule.tolerance != "strict"
                if is_stale(outputs, answer, before, flat=flat):
                    raise CandidateRefused(
                        Status.INCORRECT,
                        "wrong on inputs that differ from an earlier call's in a few elements: it returns "
                        "the earlier answer",
                    )

    def _check_kept(self, kept: _Kept) -> None:
        """Checks that the outputs of the first call are still as they were. A kernel that keeps the memory of
        outputs gets more calls: it may use a long ring of buffers."""
        calls, most = 0, self._most_more_calls()
        while True:
            outputs, found = self._client.kept_outputs(0, release=calls >= most)
            if found.returned_again or kept.differ(outputs, self._reference.shared_outputs):
                raise CandidateRefused(
                    Status.INCORRECT,
                    "later calls return the memory of an earlier output; a caller that keeps results would "
                    "find other values there, so return memory that no other call uses",
                )
            if found.keeps_all:
                raise CandidateRefused(
                    Status.INCORRECT,
                    f"it keeps the memory of its outputs, those of more than {calls} calls by now, and "
                    "returns it again or never frees it; return memory that only the caller holds",
                )
            if not found.suspect or calls >= most:
                return
            batch = self._session.staged(min(self._session.capacity, most))
            self._client.block(batch)
            calls += batch.calls

    def _most_more_calls(self) -> int:
        """See MOST_KEPT."""
        limits = (KEPT_S * 1e3 / self._call_ms, KEPT_BYTES / self._client.buffers.outputs.call_bytes)
        return max(int(min(MOST_KEPT, *limits)), LEAST_KEPT)

    def _require_inputs(self, batch: Batch, calls: Iterable[int] | None = None) -> None:
        """Raises CandidateRefused if the inputs of these calls of the last block (None: all) were changed."""
        checked = range(batch.calls) if calls is None else calls
        number = self._session.spoilt_input(self._client, batch, checked)
        if number is not None:
            raise CandidateRefused(
                Status.INCORRECT,
                f"it writes to its input {number}, which the reference leaves unchanged; a caller would find "
                "other values there after the call",
            )


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Outputs of a call as they were, or a secret sample of their elements."""

    outputs: Outputs
    places: list[Places | None]

    @classmethod
    def of(cls, outputs: Outputs) -> _Kept:
        places = [some_places(each) for each in outputs]
        return cls(outputs=pick_all(outputs, places), places=places)

    def differ(self, now: Outputs, shared: Container[int]) -> bool:
        """Whether an output is not as it was, except for `shared` ones."""
        return any(
            number not in shared and not same_bits(pick(each, at), self.outputs[number])
            for number, (each, at) in enumerate(zip(now, self.places, strict=False))
        )


def described(name: str) -> str:
    """A distribution in words."""
    return f"inputs of the distribution '{name}' ({DESCRIPTIONS[name]})"
