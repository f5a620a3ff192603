"""One reference, ready to judge: its inputs under every distribution, and the right answers to them.

Answers are eager PyTorch's at the task's dtype and, where the reference runs there, float64's. Those on the
distributions are worked out once, with other weights than the constructor's, and kept for all kernels: a
kernel is a process of its own that ends with its verdict, so what one has seen is of no use to the next.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluators.reference import weight_changes
from evaluators.reference.comparison import (
    CHUNK,
    HALF_EPS,
    NO_SHIFT,
    Comparison,
    Places,
    Shift,
    about_equal,
    as_pairs,
    compare,
    passes_allclose,
    pick,
    some_places,
)
from evaluators.reference.containers import (
    map_tensors,
    plain_values,
    replaced,
    template_of,
    tensors_in,
    tensors_of,
)
from evaluators.reference.float64 import FAILURES, DoubleReference
from evaluators.reference.input_distributions import Distribution
from evaluators.reference.loading import (
    init_inputs,
    load_module,
    make_inputs,
    make_model,
    seed_all,
)
from evaluators.reference.rounding import rounded
from evaluators.reference.strided_layouts import clone, holds_all
from evaluators.reference.weight_changes import WeightChange

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

NEAR_OWN = ("small", "shifted")
"""Distributions of inputs in timed calls."""
KEPT_SHARE = 0.05
"""Of the device's memory, for answers that are kept."""
ROUNDINGS = 2
"""In which a shift is measured: where a softmax has two largest values that are nearly equal, one may by
chance move it little."""
SAME = 1e-3
"""Normwise: answers of one reference to the same inputs differ by less, if it keeps no state."""


class UnfitReference(Exception):
    """No kernel can be judged by this reference; the message has the findings."""


def raise_if_lost(error: Exception) -> None:
    """Raises an error of the GPU itself, after which nothing runs in this process any more."""
    if "CUDA error" in str(error):
        raise error


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The right outputs for one set of inputs. `exact` is float64's, or eager's where there is none; `shifts`
    how far they move by a rounding of the inputs, one an output; `places`: which elements these are, where
    not all were kept. `shifts_here` measures on exactly these inputs, where `shifts` are those of others."""

    eager: list[torch.Tensor]
    exact: list[torch.Tensor]
    shifts: list[Shift]
    places: list[Places | None]
    shifts_here: Callable[[], list[Shift]] | None = None


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One set of inputs: a secret seed, and the distribution, "" for the problem's own."""

    seed: int
    distribution: str = ""

    @classmethod
    def fresh(cls, distribution: str = "") -> Draw:
        """With a seed that nobody has seen."""
        return cls(seed=secrets.randbits(62), distribution=distribution)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How answers are judged: the problem's tolerance, and the precision that it allows to factors."""

    tolerance: str
    precision: str
    dtype: str

    @classmethod
    def of(cls, problem: dict[str, Any]) -> Rule:
        """`kernelbench` allows what float16 products cost."""
        precision = problem.get("precision", "")
        if problem["tolerance"] == "kernelbench" and problem["dtype"] in ("float32", "float64"):
            precision = "float16"
        return cls(tolerance=problem["tolerance"], precision=precision, dtype=problem["dtype"])


class ReferenceModel:
    """Draws inputs, answers, compares. `problem`: the fields of a `Problem`."""

    def __init__(self, problem: dict[str, Any], *, keep_range: bool = False) -> None:
        """`keep_range`: no distribution may leave the range of the problem's own inputs, out of which the
        reference has failed in a way that ended the process. Raises UnfitReference, and what the reference
        raises."""
        import torch

        self._torch, self.problem, self.rule = torch, problem, Rule.of(problem)
        self.device: str = problem["device"]
        self.keep_range = keep_range
        self.seed = secrets.randbits(62)
        """Of the constructor's arguments and weights."""
        self._secret, self._kept_bytes = secrets.randbits(62), 0
        self._kept: dict[tuple[str, str], tuple[int, Answer]] = {}
        self._module = load_module(problem["source"], problem["overrides"])
        self.eager = self._make(self.seed)
        self._exact: DoubleReference | None = DoubleReference(self.eager)
        self._before: list[torch.Tensor] = []
        self._state = ""
        """Which weights it has; "" the constructor's."""
        sample = self.draw(secrets.randbits(62))
        self.sample = sample
        self.changed_inputs: list[int] = []
        """The numbers of the input tensors that the reference writes to."""
        self.draws_numbers = False
        """Whether the answer depends on torch's random generator, too."""
        self.has_products = False
        """Whether it multiplies matrices, convolves or attends (see `comparison.compare`)."""
        try:
            self.template = template_of(sample)
            self._require_equal_values()
            self.outputs = self._look_at(sample)
        except TypeError as error:
            raise UnfitReference(str(error)) from error
        self.weight_forms = weight_changes.forms_of(self.eager)
        names = weight_changes.plain_buffers(self.eager, lambda: self._make(self.seed + 1))
        buffers = dict(self.eager.named_buffers())
        self.buffer_forms: list[list[object]] = [
            [name, list(buffers[name].shape), str(buffers[name].dtype)] for name in names
        ]
        self._shifts_kept: dict[str, list[Shift]] = {}
        self._seeds: dict[str, int] = {}
        """Of the inputs of each distribution with which it was found fit: scales are drawn, too."""
        self._everywhere = secrets.randbits(62)
        self.signed_weights = True
        self.distributions: dict[str, Distribution] = {}
        self.untried: dict[str, str] = {}
        """Why a distribution is not tried, by its name."""

    def _make(self, seed: int) -> nn.Module:
        values = init_inputs(self._module, self.seed)
        how = {"seed": seed, "device": self.device, "dtype": self.problem["dtype"]}
        return make_model(self._module, "Model", values, **how)

    def draw(self, seed: int, name: str = "") -> list[Any]:
        """A set of inputs; the same for the same seed and distribution."""
        values = make_inputs(self._module, seed=seed, device=self.device, dtype=self.problem["dtype"])
        return values if not name else list(self.distributions[name].applied(values))

    def call_seed(self, seed: int) -> int:
        """Of torch's generator for a call on the inputs of this seed, which it does not tell."""
        return hash((self._secret, seed)) & (2**62 - 1)

    def run(self, inputs: list[Any], seed: int = 0) -> list[torch.Tensor]:
        """Eager PyTorch's outputs, and the inputs that it has changed."""
        given = map_tensors(clone, inputs) if self.changed_inputs else inputs
        if self.draws_numbers:
            seed_all(self.call_seed(seed))
        with self._torch.no_grad():
            return self._with_changed(tensors_of(self.eager(*given)), given)

    def answers(self, inputs: list[Any], seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The reference's outputs at the task's dtype and, as far as it runs there, in float64."""
        eager = self.run(inputs, seed)
        return eager, self._run_exact(inputs) or eager

    @property
    def is_exact(self) -> bool:
        """Whether there are answers in float64."""
        return self._exact is not None

    def forget_sample(self) -> None:
        """Gives the memory of `sample` and `outputs` back: some are of several gigabytes."""
        self.sample, self.outputs = [], []

    def near(self) -> Draw:
        """Inputs of a timed call: the problem's own, or those made smaller or with a number added. What is
        left of the call before is wrong for them. They take as long as the problem's own, which larger ones
        do not: times 2^6, eager softmax took 1.2 to 1.8 times as long on an H200."""
        names = ["", *(name for name in NEAR_OWN if name in self.distributions)]
        return Draw.fresh(secrets.choice(names))

    def answer(
        self,
        draw: Draw,
        *,
        stirred: Callable[[list[Any]], list[Any]] | None = None,
        spot: bool = False,
    ) -> Answer:
        """The right outputs for a set of inputs, drawn anew, and in a chain `stirred`. A `spot` check looks
        at some elements of a large output, nobody knows which."""

        def inputs() -> list[Any]:
            drawn = self.draw(draw.seed, draw.distribution)
            return drawn if stirred is None else stirred(drawn)

        eager, exact = self.answers(inputs(), draw.seed)
        return Answer(
            eager=eager,
            exact=exact,
            shifts=self.shifts_on(draw.distribution),
            places=[some_places(each) if spot else None for each in exact],
            shifts_here=lambda: self._shifts(inputs(), exact),
        )

    def benchmark_rules(self, outputs: list[torch.Tensor], answer: Answer) -> dict[str, bool]:
        """Whether the benchmark's own rules, flat tolerances around eager's whole answer, would take them."""
        pairs = list(zip(outputs, answer.eager, strict=True))
        rules = ("kernelbench", "kernelbench_v02")
        return {rule: all(passes_allclose(*pair, rule) for pair in pairs) for rule in rules}

    def check_on(self, outputs: list[torch.Tensor], name: str) -> Comparison:
        """Compares outputs with the answers on a distribution, for the inputs of `seed_on`."""
        seed, answer = self.answer_on(name)
        orders = self.distributions[name].orders
        found = self.judge(outputs, answer, own=False, indices=orders)
        if found.problem and any(each is not None for each in answer.places):  # in words about the whole
            whole = self.work_out(self.distributions[name], seed, some=False)
            found = self.judge(outputs, whole, own=False, indices=orders)
        return found

    def seed_on(self, name: str) -> int:
        """Of the inputs whose answers are kept for a distribution, with the weights that there are."""
        return self._kept_on(name)[0]

    def shifts_on(self, name: str) -> list[Shift]:
        """How far the answers on a distribution move by a rounding of the inputs, measured once."""
        if name not in self._shifts_kept:
            inputs = self.draw(secrets.randbits(62), name)
            self._shifts_kept[name] = self._shifts(inputs, self.answers(inputs)[1])
        return self._shifts_kept[name]

    def answer_on(self, name: str) -> tuple[int, Answer]:
        """The answer on a distribution with the weights that there are, and the seed of its inputs."""
        seed, answer = self._kept_on(name)
        if not answer.eager:
            answer = self.work_out(self.distributions[name], seed, shifts=answer.shifts)
        return seed, answer

    def _kept_on(self, name: str) -> tuple[int, Answer]:
        """The same, but without elements where there was no room for them."""
        key = self._state, name
        if key not in self._kept:
            seed = self._seeds[name]
            self._keep(key, seed, self.work_out(self.distributions[name], seed))
        return self._kept[key]

    def _keep(self, key: tuple[str, str], seed: int, answer: Answer) -> None:
        """The answer, or, where there is no room, what it takes to work it out again."""
        size = sum(each.nbytes for each in (*answer.eager, *answer.exact))
        if self._kept_bytes + size > self._room():
            answer, size = Answer(eager=[], exact=[], shifts=answer.shifts, places=[]), 0
        self._kept_bytes += size
        self._kept[key] = seed, answer

    def take_in(self, distribution: Distribution, seed: int, answer: Answer) -> None:
        """Kernels are tried on it from now on, and the answer to the inputs of this seed is kept."""
        self.distributions[distribution.name] = distribution
        self._seeds[distribution.name] = seed
        self._shifts_kept[distribution.name] = answer.shifts
        self._keep((self._state, distribution.name), seed, answer)

    def work_out(
        self, of: Distribution, seed: int, *, shifts: list[Shift] | None = None, some: bool = True
    ) -> Answer:
        """The answer to the inputs of this seed under a distribution; of a large output to `some` elements.
        Raises what the reference raises."""
        inputs = list(of.applied(self.draw(seed)))
        eager, exact = self.answers(inputs, seed)
        shifts = self._shifts(inputs, exact) if shifts is None else shifts
        del inputs
        if self.has_products and not of.orders:
            eager, exact = list(map(_writable, eager)), list(map(_writable, exact))
            _leave_open(eager, exact, self.run(self.draw(seed), seed))
        places = [some_places(each) if some else None for each in exact]
        return Answer(
            eager=[pick(each, at) for each, at in zip(eager, places, strict=True)],
            exact=[pick(each, at) for each, at in zip(exact, places, strict=True)],
            shifts=shifts,
            places=places,
        )

    def judge(
        self, outputs: list[torch.Tensor], answer: Answer, *, own: bool = True, indices: bool = True
    ) -> Comparison:
        """Compares outputs with the right ones, under the problem's rule; the worst of them. Integers count
        if `indices` do."""
        found = []
        for number, out in enumerate(outputs):
            if not (indices or out.is_floating_point() or out.is_complex()):
                found.append(Comparison(error=0.0, eager_error=0.0, problem=""))
                continue
            at, exact, eager = answer.places[number], answer.exact[number], answer.eager[number]
            shift, rule = answer.shifts[number], self.rule.tolerance
            judged = partial(
                compare,
                tolerance=rule,
                shift=shift,
                own=own,
                exact=self.is_exact,
                products=self.has_products,
            )
            if out.numel() != exact.numel():  # the answer's elements were picked before
                out, at = pick(out, at), None
            if self.has_products and not indices and out.is_floating_point():
                out = out.where(out.isfinite(), exact.to(out.dtype))  # see `_leave_open`
            if at is None:
                comparison = judged(out, exact, eager)
            else:
                comparison = judged(pick(out, at), pick(exact, at), pick(eager, at))
                if comparison.problem and at is not None:  # in words about the whole output
                    comparison = judged(out, exact, eager)
            found.append(comparison)
        return max(found, key=lambda c: (bool(c.problem), c.error))

    def judge_draw(self, outputs: list[torch.Tensor], answer: Answer, *, own: bool) -> Comparison:
        """The same of an `answer` to inputs that were drawn for one call: what seems wrong is judged once
        more by how far a rounding moves this very answer, since in some draws it is much further."""
        found = self.judge(outputs, answer, own=own)
        if found.problem and answer.shifts_here is not None:
            try:
                shifts = answer.shifts_here()
            except self._torch.OutOfMemoryError:  # there was room before the kernel came
                return found
            found = self.judge(outputs, replace(answer, shifts=shifts), own=own)
        return found

    # Weights

    def everywhere(self, *, padded: bool = False) -> WeightChange:
        """The change of all weights with which kernels are checked on the distributions."""
        names = tuple(str(form[0]) for form in self.buffer_forms)
        return WeightChange(seed=self._everywhere, signed=self.signed_weights, padded=padded, buffers=names)

    @property
    def has_weights(self) -> bool:
        """Whether there are any to change."""
        return bool(self.weight_forms or self.buffer_forms)

    def change_weights(self, how: WeightChange, *, alike: bool) -> None:
        """Other weights for the reference, in both precisions (see `weight_changes.change`)."""
        if not self.has_weights:
            return
        self._buffers = how.buffers
        self._before = weight_changes.change(self.eager, how, alike=alike)
        self._state = f"{how.turn}/{alike}/{how.padded}/{how.signed}/{how.buffers}"
        self._copy_weights()

    def restore_weights(self) -> None:
        """The reference's own again, if they were changed."""
        if self._state:
            weight_changes.restore(self.eager, self._before, self._buffers)
            self._before, self._state = [], ""
            self._copy_weights()

    def _copy_weights(self) -> None:
        if self._exact is not None:
            self._exact.copy_weights(self.eager)

    # What the reference is like

    def _require_equal_values(self) -> None:
        """Runners are told once what is no tensor. Raises UnfitReference."""
        if values := plain_values(self.template):
            others = plain_values(template_of(self.draw(secrets.randbits(62))))
            if repr(values) != repr(others):
                raise UnfitReference(
                    f"numbers or strings among its inputs differ from draw to draw ({values} and {others}): "
                    "only tensors may"
                )

    def _look_at(self, sample: list[Any]) -> list[torch.Tensor]:
        """Its outputs; finds out what it does besides. Raises UnfitReference."""
        seed = secrets.randbits(62)
        with self._torch.no_grad():

            def outputs(seed: int) -> tuple[list[torch.Tensor], list[Any]]:
                seed_all(seed)
                given = map_tensors(clone, sample)
                found = tensors_of(self.eager(*given))
                if any(each.layout != self._torch.strided for each in found):
                    raise UnfitReference("an output is a sparse tensor")
                return found, given

            first, given = outputs(seed)
            kept = [clone(each) for each in first]
            before, after = tensors_in(sample), tensors_in(given)
            self.changed_inputs = [
                number for number, pair in enumerate(zip(before, after, strict=True)) if not _equal(*pair)
            ]
            del first, given
            if not all(about_equal(*pair, SAME) for pair in zip(outputs(seed)[0], kept, strict=True)):
                raise UnfitReference(
                    "it keeps state: its second answer to the same inputs is another than its first"
                )
            other = outputs(seed + 1)[0]
            self.draws_numbers = not all(about_equal(*pair, SAME) for pair in zip(other, kept, strict=True))
            del other
        if self.draws_numbers:
            self._exact = None  # other types draw other numbers
        if self._exact is not None:
            try:
                self._exact.run(sample, changes_inputs=bool(self.changed_inputs))
            except FAILURES as error:
                raise_if_lost(error)
                cause = str(error).partition("\n")[0]
                logger.warning("the reference does not run in float64, its own dtype stands in: %s", cause)
                self._exact = None
        return kept

    def _with_changed(self, outputs: list[torch.Tensor], given: list[Any]) -> list[torch.Tensor]:
        if not self.changed_inputs:
            return outputs
        tensors = tensors_in(given)
        return outputs + [tensors[number] for number in self.changed_inputs]

    def _run_exact(self, inputs: list[Any]) -> list[torch.Tensor] | None:
        """The outputs in float64; None where the reference does not run there, or not on such inputs."""
        if self._exact is None:
            return None
        try:
            return self._with_changed(*self._exact.run(inputs, changes_inputs=bool(self.changed_inputs)))
        except FAILURES as error:
            raise_if_lost(error)
            if isinstance(error, self._torch.OutOfMemoryError):
                raise  # who has no memory for the right answer has none to stand in for it
            return None

    # Roundings

    def _shifts(self, inputs: list[Any], exact: list[torch.Tensor]) -> list[Shift]:
        """How far the right answer moves when the inputs, and with a `precision` the weights, are rounded,
        and in wide types how far eager's lies from it then, which rounds in between, too. The largest of
        some roundings count."""
        shifts = [NO_SHIFT for _ in exact]
        for distance, outputs in self._moved(inputs):
            found = [distance(*pair) for pair in zip(outputs, exact, strict=True)]
            del outputs
            shifts = [shift.at_least(other) for shift, other in zip(shifts, found, strict=True)]
        return shifts

    def _moved(self, inputs: list[Any]) -> Iterator[tuple[Callable[..., Shift], list[torch.Tensor]]]:
        """Answers to inputs that are rounded, each with what measures their distance."""
        if self.draws_numbers:
            return
        for _ in range(1 if self.rule.precision else ROUNDINGS):
            given = map_tensors(self._rounded_input, inputs)
            if self._exact is None:
                yield Shift.between, self.run(_in_types_of(inputs, given))
                continue
            with self._rounded_weights():
                if (moved := self._run_exact(given)) is None:
                    return
                yield Shift.between, moved
            del moved
            if self._is_wide and not self.rule.precision:
                try:
                    yield Shift.of_eager, self.run(_in_types_of(inputs, given))
                except FAILURES as error:  # some references take no value that is rounded up
                    raise_if_lost(error)
                    return

    @property
    def _is_wide(self) -> bool:
        return self._torch.finfo(getattr(self._torch, self.rule.dtype)).eps <= HALF_EPS

    @contextmanager
    def _rounded_weights(self) -> Iterator[None]:
        """The weights in float64 rounded to the precision that the rule allows, where it does."""
        if self._exact is None or not self.rule.precision:
            yield
            return
        with self._torch.no_grad():
            before = [each.clone() for each in self._exact.module.parameters()]
            for each in self._exact.module.parameters():
                each.copy_(rounded(each, self.rule.precision, self.rule.dtype))
            try:
                yield
            finally:
                for each, was in zip(self._exact.module.parameters(), before, strict=True):
                    each.copy_(was)

    def _rounded_input(self, tensor: torch.Tensor) -> Any:
        """Within the tensor's own range where the reference must not leave it."""
        found = rounded(tensor, self.rule.precision, self.rule.dtype)
        bounded = self.keep_range and tensor.is_floating_point() and tensor.numel()
        return found.clamp(*tensor.aminmax()) if bounded else found

    def _room(self) -> float:
        """Bytes for answers that are kept."""
        if self.device == "cuda":
            return KEPT_SHARE * self._torch.cuda.get_device_properties(0).total_memory
        return 2.0**30


def _in_types_of(inputs: list[Any], rounded: list[Any]) -> list[Any]:
    """The rounded inputs in the types of those that they were made of."""
    pairs = zip(tensors_in(rounded), tensors_in(inputs), strict=True)
    return list(replaced(inputs, [new.to(old.dtype) for new, old in pairs]))


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of one whose elements share memory (`expand`)."""
    return tensor if holds_all(tensor) else tensor.contiguous()


def _leave_open(eager: list[torch.Tensor], exact: list[torch.Tensor], finite: list[torch.Tensor]) -> None:
    """Makes NaN, in place, of what infinities or NaN among the factors of products have changed, or would by
    the formula: it depends on how a product is computed (see `comparison.compare`). `finite`: the answer
    without them. What is left must not change, but may be NaN: PyTorch's own Winograd convolution spreads
    them over a tile."""
    import torch

    for three in zip(eager, exact, finite, strict=True):
        if not three[0].is_floating_point() or not three[0].numel():
            continue
        whole = three if three[0].dim() else tuple(each[None] for each in three)
        rows = max(1, len(whole[0]) * CHUNK // whole[0].numel())  # of what memory there is room for
        for one, true, own in zip(*(torch.split(each, rows) for each in whole), strict=True):
            same = (one - own).abs() <= SAME * own.abs()  # not so of NaN
            changed = ~same | ~true.isfinite()
            one.masked_fill_(changed, math.nan)
            true.masked_fill_(changed, math.nan)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit by bit."""
    import torch

    one, other = as_pairs(one), as_pairs(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.equal(torch.nan_to_num(one, 0.0), torch.nan_to_num(other, 0.0))
