"""One reference, ready to judge: its inputs under every distribution, and the right answers to them.

Answers are eager PyTorch's at the task's dtype and, where the reference runs there, float64's. Those on the
distributions are worked out once, with other weights than the constructor's, and kept for all kernels: a
kernel is a process of its own that ends with its verdict, so what one has seen is of no use to the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.problem import Problem
from evaluators.reference.accuracy.comparison import NO_SHIFT, OutputComparison, Shift
from evaluators.reference.accuracy.jumps import at_jumps, furthest_off, with_elements
from evaluators.reference.accuracy.sampled_elements import Places, pick_all, some_places
from evaluators.reference.accuracy.shifts import eager_shifts_of, joined, shifts_of
from evaluators.reference.answer import Draw, ReferenceAnswer, judge, leave_open, writable
from evaluators.reference.containers import tensors_in
from evaluators.reference.inputs.input_distributions import Distribution
from evaluators.reference.inputs.strided_layouts import clone, span_of
from evaluators.reference.random_outputs import judge_random
from evaluators.reference.running_reference import RunningReference

if TYPE_CHECKING:
    import torch

NEAR_OWN = ("small", "shifted")
"""Distributions of inputs in timed calls."""
KEPT_SHARE = 0.05
"""Of the device's memory, for answers that are kept."""


class ReferenceModel(RunningReference):
    """Answers on every distribution, and compares outputs with the answers."""

    def __init__(self, problem: Problem, *, keep_range: bool = False, steps: Steps | None = None) -> None:
        super().__init__(problem, keep_range=keep_range, steps=steps)
        self._kept: dict[tuple[str, str], tuple[int, ReferenceAnswer]] = {}
        self._kept_bytes = 0
        self._shifts_kept: dict[str, list[Shift]] = {}
        self._complete: set[tuple[str, str]] = set()
        """The keys of `_kept` whose shifts have eager's part, too."""
        self._seeds: dict[str, int] = {}
        """Of the inputs of each distribution with which it was found fit: scales are drawn, too."""
        self.untried: dict[str, str] = {}
        """Why a distribution is not tried, by its name."""
        self.answer_bytes, self.peak_bytes = 0, 0
        """On a GPU: the most that working out one answer has taken, and that was held meanwhile."""

    def near(self) -> Draw:
        """Inputs of a timed call: the problem's own, or those made smaller or with a number added. What is
        left of the call before is wrong for them. They take as long as the problem's own, which larger ones
        do not: times 2^6, eager softmax took 1.2 to 1.8 times as long on an H200."""
        return Draw.fresh(secrets.choice(self.near_names))

    @property
    def near_names(self) -> list[str]:
        """The distributions of timed calls."""
        return ["", *(name for name in NEAR_OWN if name in self.distributions)]

    def own_draws(self, calls: int) -> list[Draw]:
        """Of so many calls on the problem's own inputs. The last has the inputs of the first; where outputs
        are random all have, so that calls that are not independent show."""
        draws = [Draw.fresh() for _ in range(calls)]
        return draws[:1] * calls if self.random_checks is not None else [*draws[:-1], draws[0]]

    def writes_to(self, number: int, draw: Draw) -> bool:
        """Whether the reference changes this input tensor on that draw: where it leaves its own alone (a
        running mean that moves by a momentum of 0), it may yet make NaN of an infinity."""
        given = self.draw(draw.seed, draw.distribution)
        tensor = tensors_in(given)[number]
        before = clone(tensor)
        with self._torch.no_grad():
            self.eager(*given)
        bits = (span_of(each).view(self._torch.uint8) for each in (before, tensor))
        return not self._torch.equal(*bits)

    def answer(
        self,
        draw: Draw,
        *,
        given: list[Any] | None = None,
        stirred: Callable[[list[Any]], list[Any]] | None = None,
        spot: bool = False,
    ) -> ReferenceAnswer:
        """The right outputs for a set of inputs, which are drawn where they are not `given`, and in a chain
        `stirred`. A `spot` check looks at some elements of a large output, nobody knows which."""

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
            whole=(lambda: self.answer(draw, stirred=stirred)) if any(places) else None,
        )

    def _answers(
        self, inputs: list[Any], seed: int, *, some: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Places | None]]:
        """Eager's outputs and, as far as the reference runs there, those in float64; of large ones `some`
        elements, and which these are."""

        def places_of(outputs: list[torch.Tensor]) -> list[Places | None]:
            return [some_places(each) if some else None for each in outputs]

        if self.slices is None:
            exact = self.run_exact(inputs)  # first: it takes the most memory
            eager = self.run(inputs, seed)
            exact = exact or eager
            places = places_of(exact)
            # At once: the whole of a large answer takes memory that the next steps need.
            return pick_all(eager, places), pick_all(exact, places), places
        eager = self.run(inputs, seed)
        places = places_of(eager)
        eager = pick_all(eager, places)
        return eager, self.run_exact(inputs, places) or eager, places

    def check_on(self, outputs: list[torch.Tensor], name: str) -> OutputComparison:
        """Compares outputs with the answers on a distribution, for the inputs of `seed_on`. What seems wrong
        is judged by the shifts of eager's answers, too, which are measured when they are needed first."""
        seed, answer = self.answer_on(name)
        orders = self.distributions[name].orders
        found = self.judge(outputs, answer, own=False, indices=orders)
        if found.problem and not self._is_complete(name):
            _, answer = self.answer_on(name, complete=True)
            found = self.judge(outputs, answer, own=False, indices=orders)
        if found.problem and any(each is not None for each in answer.places):  # in words about the whole
            answer = self.work_out(self.distributions[name], seed, some=False)
            found = self.judge(outputs, answer, own=False, indices=orders)
        if found.problem:
            found = self._judge_at_jumps(found, outputs, answer, self.draw(seed, name), indices=orders)
        return found

    def _judge_at_jumps(
        self,
        found: OutputComparison,
        outputs: list[torch.Tensor],
        answer: ReferenceAnswer,
        inputs: list[Any],
        *,
        indices: bool,
    ) -> OutputComparison:
        """The comparison without the few elements where the right answer jumps, if they alone are wrong."""
        try:
            doubtful = furthest_off(outputs, answer.exact)
            mended = with_elements(outputs, answer.exact, doubtful)
            if self.judge(mended, answer, own=False, indices=indices).problem:
                return found
            excused = at_jumps(self, inputs, outputs, answer.exact, doubtful)
            mended = with_elements(outputs, answer.exact, excused)
            return self.judge(mended, answer, own=False, indices=indices)
        except self._torch.OutOfMemoryError:
            return found

    def seed_on(self, name: str) -> int:
        """Of the inputs whose answers are kept for a distribution, with the weights that there are."""
        return self._kept_on(name)[0]

    def shifts_on(self, name: str) -> list[Shift]:
        """How far the answers on a distribution move by a rounding of the inputs, measured once, at the first
        answer."""
        if name not in self._shifts_kept:
            self.answer(Draw.fresh(name))
        return self._shifts_kept[name]

    def answer_on(self, name: str, *, complete: bool = False) -> tuple[int, ReferenceAnswer]:
        """The answer on a distribution with the weights that there are, and the seed of its inputs.
        `complete`: its shifts are those of eager's answers, too."""
        seed, answer = self._kept_on(name)
        if not answer.eager:
            answer = self.work_out(self.distributions[name], seed, shifts=answer.shifts)
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
        """The same, but without elements where there was no room for them."""
        key = self.weights_state, name
        if key not in self._kept:
            seed = self._seeds[name]
            self._keep(key, seed, self.work_out(self.distributions[name], seed))
        return self._kept[key]

    def _keep(self, key: tuple[str, str], seed: int, answer: ReferenceAnswer) -> None:
        """The answer, or, where there is no room, what it takes to work it out again."""
        if key in self._kept:
            self._kept_bytes -= self._kept[key][1].nbytes
        if self._kept_bytes + answer.nbytes > self._room():
            answer = ReferenceAnswer(eager=[], exact=[], shifts=answer.shifts, places=[])
        self._kept_bytes += answer.nbytes
        self._kept[key] = seed, answer

    def take_in(self, distribution: Distribution, seed: int, answer: ReferenceAnswer) -> None:
        """Kernels are tried on it from now on, and the answer to the inputs of this seed is kept."""
        name = distribution.name
        self.distributions[name] = distribution
        self._seeds[name] = seed
        self._keep((self.weights_state, name), seed, answer)
        if name in NEAR_OWN:  # now: beside a kernel that is timed there is less memory
            _, answer = self.answer_on(name, complete=True)
        self._shifts_kept[name] = answer.shifts

    def work_out(
        self, of: Distribution, seed: int, *, shifts: list[Shift] | None = None, some: bool = True
    ) -> ReferenceAnswer:
        """The answer to the inputs of this seed under a distribution; of a large output to `some` elements,
        whose `shifts`, where they are not known, are those of the right answer alone. Of all elements they
        are those of eager's answers, too. Raises what the reference raises."""
        with self._noted_memory():
            return self._worked_out(of, seed, shifts=shifts, some=some)

    def _worked_out(
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
        if self.has_products and not of.orders:
            eager, exact = list(map(writable, eager)), list(map(writable, exact))
            leave_open(eager, exact, pick_all(self.run(self.draw(seed), seed), places))
        return ReferenceAnswer(eager=eager, exact=exact, shifts=shifts, places=places)

    @contextmanager
    def _noted_memory(self) -> Iterator[None]:
        """Notes the device's memory that the block takes."""
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
        """Of the right answer and of eager's."""
        with self.steps.step(OpeningStep.SHIFTS):
            return joined(*(measure(self, inputs, exact, places) for measure in (shifts_of, eager_shifts_of)))

    def judge(
        self, outputs: list[torch.Tensor], answer: ReferenceAnswer, *, own: bool = True, indices: bool = True
    ) -> OutputComparison:
        """Compares outputs with the right ones, under the problem's rule; the worst of them. Integers count
        if `indices` do."""
        if self.random_checks is not None and answer.inputs is not None:
            return judge_random(self.random_checks, answer.inputs, outputs, answer.eager)
        return judge(
            outputs,
            answer,
            tolerance=self.rule.tolerance,
            own=own,
            indices=indices,
            exact=self.is_exact,
            products=self.has_products,
        )

    def judge_draw(
        self, outputs: list[torch.Tensor], answer: ReferenceAnswer, *, own: bool
    ) -> OutputComparison:
        """The same of an `answer` to inputs that were drawn for one call: what seems wrong is judged once
        more by how far a rounding moves this very answer, since in some draws it is much further."""
        found = self.judge(outputs, answer, own=own)
        try:
            if found.problem and answer.shifts_here is not None:
                found = self.judge(outputs, replace(answer, shifts=answer.shifts_here()), own=own)
            if found.problem and answer.whole is not None:  # in words about the whole
                found = self.judge_draw(outputs, answer.whole(), own=own)
        except self._torch.OutOfMemoryError:  # there was room before the kernel came
            pass
        return found

    def _room(self) -> float:
        """Bytes for answers that are kept."""
        if self.device == "cuda":
            return KEPT_SHARE * float(self._torch.cuda.get_device_properties(0).total_memory)
        return 2.0**30
