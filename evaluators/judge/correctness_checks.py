"""Whether a candidate's answers are right on inputs that it has never seen."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.runner_client import CandidateRefused, RunnerClient
from evaluators.judge.staging import Batch
from evaluators.records.evaluation import Correctness, Status
from evaluators.records.timing import Block, Plan
from evaluators.reference.accuracy.comparison import OutputComparison
from evaluators.reference.accuracy.differences import spread_of
from evaluators.reference.answer import Draw, ReferenceAnswer, benchmark_rules
from evaluators.reference.inputs import weight_changes
from evaluators.reference.inputs.input_distributions import DESCRIPTIONS
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.reference.random_outputs import Evidence
from evaluators.runner.shared_buffers import SampledOutput

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

CHECKED_CALLS = 3
SLOW_MS = 50.0
"""Calls that take longer than this are not repeated just to restore caches."""

Outputs = list["torch.Tensor"]


class CorrectnessChecks:
    """Queries one candidate and records how accurate it was. Every finding that it is wrong raises
    CandidateRefused."""

    def __init__(self, session: ReferenceSession, client: RunnerClient) -> None:
        self._session, self._client, self._reference = session, client, session.reference
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
        """Checks the problem's own inputs, then every distribution with other weights. Returns the shortest
        time of a few calls in ms."""
        self._check_block(1, "on fresh inputs")
        if (evidence := self._new_evidence()) is not None:
            self._check_samples(evidence)
        self.change_weights(self._reference.full_change(), self._try_distributions)
        calls = min(CHECKED_CALLS, self._session.capacity)
        if self._session.problem.timed:
            calls = plan.calls(self._call_ms, calls)
        self._check_block(calls, "on fresh inputs")
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
        if not self._reference.weight_forms:
            return
        change = WeightChange(seed=secrets.randbits(62), turn=tuple(next(self._turns)), padded=self._padded)

        def check() -> float:
            return self._check_block(1, "after its weights were changed in place")

        if self.change_weights(change, check) < SLOW_MS:
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
        follows one on another distribution, so that leftovers of the call before show."""
        changed = self._reference.has_weights
        self._check_block(1, "after its weights were changed in place" if changed else "on fresh inputs")
        names = list(self._reference.distributions)
        secrets.SystemRandom().shuffle(names)
        capacity = self._session.capacity
        for start in range(0, len(names), capacity):
            chosen = names[start : start + capacity]
            batch = self._session.stage_distributions(chosen, self._client)
            self._client.block(batch)
            for call, name in enumerate(chosen):
                comparison = self._reference.check_on(self._client.buffers.snapshot(call), name)
                self._distributions[name] = not comparison.problem
                if comparison.problem:
                    raise CandidateRefused(
                        Status.INCORRECT, f"wrong on {described(name)}: {comparison.problem}"
                    )
            self._require_inputs(batch)

    def timed_block(self, calls: int) -> Block:
        """A block on fresh inputs, whose answers `settle` checks."""
        block, check = self.checked_block(calls)
        self._pending.append(check)
        return block

    def settle(self) -> None:
        """Does the postponed checks, so that the blocks of both sides follow the same work."""
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
            distributions=self._distributions,
            untried=self._reference.untried,
            benchmark_rules=self._benchmark_rules,
            spread=self._spread,
            statistic=max(c.error for c in finite) if self._evidence else None,
        )

    def _check_block(self, calls: int, where: str) -> float:
        """Checks every call of a block on the problem's own inputs. Returns ms per call."""
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
        self._call_ms = min(self._call_ms, call_ms := self._session.call_ms(block))
        return call_ms

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


def described(name: str) -> str:
    """A distribution in words."""
    return f"inputs of the distribution '{name}' ({DESCRIPTIONS[name]})"
