"""One reference, ready to judge: its inputs under every distribution, and the right answers to them.

Answers are eager PyTorch's at the task's dtype and, where the reference runs in float64, that type's. Those
on the distributions are computed once, with changed weights, and kept for all kernels. That is safe because
each kernel runs in its own process, which ends with its verdict: nothing it has seen reaches the next kernel.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.problem import Problem
from evaluators.reference.accuracy.choices import choices_in, is_valid, observed
from evaluators.reference.accuracy.comparison import NO_SHIFT, OutputComparison, Shift
from evaluators.reference.accuracy.jumps import at_jumps, largest_errors, with_elements
from evaluators.reference.accuracy.sampled_elements import Places, pick_all, some_places
from evaluators.reference.accuracy.shifts import eager_shifts_of, joined, shifts_of
from evaluators.reference.answer import Draw, ReferenceAnswer, Spread, freedom_of, judge, writable
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.input_distributions import OWN, Distribution
from evaluators.reference.inputs.strided_layouts import clone, same_bits
from evaluators.reference.random_outputs import judge_random
from evaluators.reference.running_reference import RunningReference

if TYPE_CHECKING:
    import torch

NEAR_OWN = ("small", "shifted")
"""Distributions that timed calls may use, in addition to the problem's own."""
KEPT_SHARE = 0.05
"""Share of the device's memory for stored answers."""


class ReferenceModel(RunningReference):
    """Computes the right answers on every distribution and compares outputs with them."""

    def __init__(
        self,
        problem: Problem,
        *,
        keep_range: bool = False,
        steps: Steps | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(problem, keep_range=keep_range, steps=steps, seed=seed)
        self._kept: dict[tuple[str, str], tuple[int, ReferenceAnswer]] = {}
        self._kept_bytes = 0
        self._shifts_kept: dict[str, list[Shift]] = {}
        self._complete: set[tuple[str, str]] = set()
        """The keys of `_kept` whose shifts include those of eager's answers."""
        self._seeds: dict[str, int] = {}
        """By distribution, the seed of the inputs on which it was accepted: it determines random scales."""
        self.untried: dict[str, str] = {}
        """Why a distribution is not tried, by its name."""
        self.answer_bytes, self.peak_bytes = 0, 0
        """GPU memory: the most that computing one answer has taken, and the peak allocation."""

    def near(self) -> Draw:
        """Inputs of a timed call: the problem's own, made smaller, or with a number added. Anything a kernel
        has kept from the call before is wrong for them. They take as long as the problem's own. Larger inputs
        do not: multiplied by 2^6, eager softmax took 1.2 to 1.8 times as long on an H200."""
        return Draw.fresh(secrets.choice(self.near_names))

    @property
    def near_names(self) -> list[str]:
        """The distributions of timed calls."""
        return ["", *(name for name in NEAR_OWN if name in self.distributions)]

    def own_draws(self, calls: int) -> list[Draw]:
        """Draws for this number of calls on the problem's own distribution. The last repeats the inputs of
        the first. With random outputs all calls have the same inputs, which exposes dependent calls."""
        draws = [Draw.fresh() for _ in range(calls)]
        return draws[:1] * calls if self.random_checks is not None else [*draws[:-1], draws[0]]

    def writes_to(self, number: int, draw: Draw) -> bool:
        """Whether the reference changes this input tensor on that draw. Even one that keeps its usual inputs
        (a running mean with momentum 0) may turn an infinity into NaN."""
        given = self.draw(draw.seed, draw.distribution)
        tensor = tensors_in(given)[number]
        before = clone(tensor)
        with self._torch.no_grad():
            self.eager(*given)
        return not same_bits(before, tensor)

    def answer(
        self,
        draw: Draw,
        *,
        given: list[Any] | None = None,
        stirred: Callable[[list[Any]], list[Any]] | None = None,
        spot: bool = False,
    ) -> ReferenceAnswer:
        """The right outputs for a set of inputs: `given`, or drawn and, in a chain of calls, `stirred`. With
        `spot`, only a secret sample of the elements of a large output is kept."""

        def inputs() -> list[Any]:
            drawn = self.draw(draw.seed, draw.distribution)
            return drawn if stirred is None else stirred(drawn)

        first = inputs() if given is None else given
        some = spot and self.random_checks is None
        eager, exact, places = self._answers(first, draw.seed, some=some)
        if self.random_checks is not None:
            shifts = [NO_SHIFT for _ in eager]
            return ReferenceAnswer(eager=eager, exact=exact, shifts=shifts, places=places, inputs=first)
        if draw.distribution not in self._shifts_kept:
            self._shifts_kept[draw.distribution] = self._both_shifts(first, exact, places)
        return ReferenceAnswer(
            eager=eager,
            exact=exact,
            shifts=self._shifts_kept[draw.distribution],
            places=places,
            shifts_here=lambda: self._both_shifts(inputs(), exact, places),
            following=self._following(inputs if given is None else lambda: given, draw.seed),
            whole=(lambda: self.answer(draw, stirred=stirred)) if any(places) else None,
        )

    def _answers(
        self, inputs: list[Any], seed: int, *, some: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Places | None]]:
        """Eager's outputs, those in float64 (or eager's again), and the places of the elements kept. With
        `some`, large outputs keep a sample of their elements."""

        def places_of(outputs: list[torch.Tensor]) -> list[Places | None]:
            return [some_places(each) if some else None for each in outputs]

        if self.slices is None:
            exact = self.run_exact(inputs)  # first, because it takes the most memory
            eager = self.run(inputs, seed)
            exact = exact or eager
            places = places_of(exact)
            # Pick now: the next steps need the memory of the whole answers.
            return pick_all(eager, places), pick_all(exact, places), places
        eager = self.run(inputs, seed)
        places = places_of(eager)
        eager = pick_all(eager, places)
        return eager, self.run_exact(inputs, places) or eager, places

    def check_on(self, outputs: list[torch.Tensor], name: str) -> OutputComparison:
        """Compares outputs with the answers on a distribution, for the inputs of `seed_on`. Outputs that seem
        wrong are judged again with the shifts of eager's answers, which are measured only then."""
        seed, answer = self.answer_on(name)
        of = self.distributions[name]
        found = self.judge(outputs, answer, own=False, of=of)
        if found.problem and not self._is_complete(name):
            _, answer = self.answer_on(name, complete=True)
            found = self.judge(outputs, answer, own=False, of=of)
        if found.problem and any(each is not None for each in answer.places):  # for a complete message
            answer = self.compute_answer(of, seed, some=False)
            found = self.judge(outputs, answer, own=False, of=of)
        if found.problem and answer.following is not None and (own := answer.following(outputs)) is not None:
            answer = own
            found = self.judge(outputs, answer, own=False, of=of)
        if found.problem:
            found = self._judge_at_jumps(found, outputs, answer, self.draw(seed, name), of)
        return found

    def _judge_at_jumps(
        self,
        found: OutputComparison,
        outputs: list[torch.Tensor],
        answer: ReferenceAnswer,
        inputs: list[Any],
        of: Distribution,
    ) -> OutputComparison:
        """Repeats the comparison without the few elements where the right answer jumps, if only such elements
        are wrong."""
        try:
            doubtful = largest_errors(outputs, answer.exact)
            mended = with_elements(outputs, answer.exact, doubtful)
            if self.judge(mended, answer, own=False, of=of).problem:
                return found
            excused = at_jumps(self, inputs, outputs, answer.exact, doubtful)
            mended = with_elements(outputs, answer.exact, excused)
            return self.judge(mended, answer, own=False, of=of)
        except self._torch.OutOfMemoryError:
            return found

    def seed_on(self, name: str) -> int:
        """The seed of the inputs whose answer is kept for a distribution with the current weights."""
        return self._kept_on(name)[0]

    def shifts_on(self, name: str) -> list[Shift]:
        """How far the answers on a distribution move when the inputs are rounded; measured once."""
        if name not in self._shifts_kept:
            self.answer(Draw.fresh(name))
        return self._shifts_kept[name]

    def answer_on(self, name: str, *, complete: bool = False) -> tuple[int, ReferenceAnswer]:
        """The answer on a distribution with the current weights, and the seed of its inputs. With `complete`,
        its shifts include those of eager's answers."""
        seed, answer = self._kept_on(name)
        if not answer.eager:
            answer = self.compute_answer(self.distributions[name], seed, shifts=answer.shifts)
        if complete and not self._is_complete(name):
            with self.steps.step(OpeningStep.SHIFTS):
                more = eager_shifts_of(self, self.draw(seed, name), answer.exact, answer.places)
            answer = replace(answer, shifts=joined(answer.shifts, more))
            key = self.weights_state, name
            self._complete.add(key)
            self._keep(key, seed, answer)
        return seed, answer

    def _is_complete(self, name: str) -> bool:
        return (self.weights_state, name) in self._complete

    def _kept_on(self, name: str) -> tuple[int, ReferenceAnswer]:
        """Like `answer_on`, but the answer has no elements if there was no room to keep them."""
        key = self.weights_state, name
        if key not in self._kept:
            seed = self._seeds[name]
            self._keep(key, seed, self.compute_answer(self.distributions[name], seed))
        return self._kept[key]

    def _keep(self, key: tuple[str, str], seed: int, answer: ReferenceAnswer) -> None:
        """Stores the answer or, if there is no room, only what is needed to compute it again."""
        if key in self._kept:
            self._kept_bytes -= self._kept[key][1].nbytes
        if self._kept_bytes + answer.nbytes > self._room():
            answer = ReferenceAnswer(eager=[], exact=[], shifts=answer.shifts, places=[])
        self._kept_bytes += answer.nbytes
        self._kept[key] = seed, answer

    def accept(self, distribution: Distribution, seed: int, answer: ReferenceAnswer) -> None:
        """Kernels are tried on this distribution from now on. Keeps the answer to the inputs of this seed."""
        name = distribution.name
        self.distributions[name] = distribution
        self._seeds[name] = seed
        self._keep((self.weights_state, name), seed, answer)
        if name in NEAR_OWN:  # now, because there is less memory while a kernel is timed
            _, answer = self.answer_on(name, complete=True)
        self._shifts_kept[name] = answer.shifts

    def compute_answer(
        self, of: Distribution, seed: int, *, shifts: list[Shift] | None = None, some: bool = True
    ) -> ReferenceAnswer:
        """The answer to the inputs of this seed under a distribution. With `some`, large outputs keep a
        sample of elements, and shifts that are not given are measured for the right answer only; otherwise
        they include those of eager's answers. Raises what the reference raises."""
        with self._track_memory():
            return self._compute_answer(of, seed, shifts=shifts, some=some)

    def _compute_answer(
        self, of: Distribution, seed: int, *, shifts: list[Shift] | None, some: bool
    ) -> ReferenceAnswer:
        inputs = list(of.applied(self.draw(seed)))
        eager, exact, places = self._answers(inputs, seed, some=some)
        if shifts is None and not some:
            shifts = self._both_shifts(inputs, exact, places)
        elif shifts is None:
            with self.steps.step(OpeningStep.SHIFTS):
                shifts = shifts_of(self, inputs, exact, places)
        del inputs
        freedom: list[torch.Tensor | None] = []
        if self.has_products and of.nonfinite and not of.masks:
            eager, exact = list(map(writable, eager)), list(map(writable, exact))
            freedom = self._freedom(of, seed, eager, exact, places)
        return ReferenceAnswer(
            eager=eager,
            exact=exact,
            shifts=shifts,
            places=places,
            freedom=freedom,
            following=None if freedom else self._following(lambda: list(of.applied(self.draw(seed))), seed),
        )

    def _following(
        self, inputs: Callable[[], list[Any]], seed: int
    ) -> Callable[[list[torch.Tensor]], ReferenceAnswer | None] | None:
        """See `ReferenceAnswer.following`."""

        def follow(outputs: list[torch.Tensor]) -> ReferenceAnswer | None:
            given = inputs()
            eager, made = observed(lambda: self.run(given, seed))
            chosen = choices_in(outputs, eager, made)
            exact, wide = None, made
            if self.is_exact and self.slices is None:
                exact, wide = observed(lambda: self.run_exact(given))
            of = zip(chosen, made, wide if exact else made, strict=True)
            if not any(each is not None for each in chosen) or not all(
                numbers is None or is_valid(numbers, narrow, double) for numbers, narrow, double in of
            ):
                return None

            def answer() -> ReferenceAnswer:
                eager = self.run(given, seed)
                right = (self.run_exact(given) if exact else None) or eager
                places: list[Places | None] = [None for _ in eager]
                shifts = self._both_shifts(given, right, places)
                return ReferenceAnswer(eager=eager, exact=right, shifts=shifts, places=places)

            return observed(answer, chosen)[0]

        return follow if self.has_choices and self.random_checks is None else None

    def _freedom(
        self,
        of: Distribution,
        seed: int,
        eager: list[torch.Tensor],
        exact: list[torch.Tensor],
        places: list[Places | None],
    ) -> list[torch.Tensor | None]:
        """See `freedom_of`. Flat tolerances do not ask for NaN: kernels that were made for these benchmarks
        often return 0 for the maximum of NaN and 0."""
        finite = pick_all(self.run(self.draw(seed), seed), places)
        spiked: Sequence[torch.Tensor | None] = [None for _ in finite]
        if of.instead is not None and self.rule.tolerance == "strict":
            inputs = list(of.finite().applied(self.draw(seed)))
            spiked = pick_all(self.run(inputs, seed), places)
        found = []
        for number, at in enumerate(places):
            spreads = Spread.NOWHERE
            if self.has_convolutions or (self.has_softmax and at is not None):
                spreads = Spread.ANYWHERE
            elif self.has_softmax:
                spreads = Spread.ROWS
            found.append(freedom_of(eager[number], exact[number], finite[number], spiked[number], spreads))
        return found

    @contextmanager
    def _track_memory(self) -> Iterator[None]:
        """Records the GPU memory that the block takes."""
        if self.device != "cuda":
            yield
            return
        cuda = self._torch.cuda
        self.peak_bytes = max(self.peak_bytes, cuda.max_memory_allocated())
        cuda.reset_peak_memory_stats()
        before_bytes = cuda.memory_allocated()
        yield
        self.answer_bytes = max(self.answer_bytes, cuda.max_memory_allocated() - before_bytes)

    def _both_shifts(
        self, inputs: list[Any], exact: list[torch.Tensor], places: list[Places | None]
    ) -> list[Shift]:
        """The shifts of the right answer and of eager's, combined."""
        with self.steps.step(OpeningStep.SHIFTS):
            return joined(*(measure(self, inputs, exact, places) for measure in (shifts_of, eager_shifts_of)))

    def judge(
        self,
        outputs: list[torch.Tensor],
        answer: ReferenceAnswer,
        *,
        own: bool = True,
        of: Distribution = OWN,
    ) -> OutputComparison:
        """Compares outputs with the right ones under the problem's rule and returns the worst comparison.
        `of` says which types of outputs are judged."""

        def judges(dtype: torch.dtype) -> bool:
            return of.judges(dtype) and not answer.freedom

        if self.random_checks is not None and answer.inputs is not None:
            return judge_random(self.random_checks, answer.inputs, outputs, answer.eager)
        return judge(
            outputs,
            answer,
            tolerance=self.rule.tolerance,
            own=own,
            judges=judges,
            exact=self.is_exact,
            products=self.has_products,
            name=self.output_name,
            terms=self.terms_of,
        )

    def judge_draw(
        self, outputs: list[torch.Tensor], answer: ReferenceAnswer, *, own: bool
    ) -> OutputComparison:
        """Like `judge`, for an `answer` to inputs drawn for one call. Outputs that seem wrong are judged
        again with shifts measured on this answer, because in some draws they are much larger."""
        found = self.judge(outputs, answer, own=own)
        try:
            if found.problem and answer.shifts_here is not None:
                found = self.judge(outputs, replace(answer, shifts=answer.shifts_here()), own=own)
            if found.problem and answer.whole is not None:  # for a complete message
                return self.judge_draw(outputs, answer.whole(), own=own)
            if found.problem and answer.following is not None:
                followed = answer.following(outputs)
                found = self.judge(outputs, followed, own=own) if followed is not None else found
        except self._torch.OutOfMemoryError:  # the kernel has taken the memory for this
            pass
        return found

    def _room(self) -> float:
        """Bytes available for stored answers."""
        if self.device == "cuda":
            return KEPT_SHARE * float(self._torch.cuda.get_device_properties(0).total_memory)
        return 2.0**30
