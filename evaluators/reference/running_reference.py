"""A reference that runs: draws inputs, and answers in the problem's dtype and in float64."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evaluators.records.opening import OpeningStep, Steps
from evaluators.records.problem import ORIGINAL, Problem
from evaluators.reference.accuracy.differences import about_equal, as_pairs
from evaluators.reference.accuracy.float64 import FAILURES, DoubleReference
from evaluators.reference.accuracy.row_slices import RowSlices
from evaluators.reference.accuracy.sampled_elements import Places, pick_all
from evaluators.reference.answer import SAME, Rule
from evaluators.reference.containers import (
    WrongForm,
    form_of,
    map_tensors,
    plain_values,
    template_of,
    tensors_in,
    tensors_of,
)
from evaluators.reference.cost.operation_count import Work, count
from evaluators.reference.gradients import NotDifferentiable, gradient_names, terms_of_gradients
from evaluators.reference.inputs import weight_changes
from evaluators.reference.inputs.input_distributions import Distribution
from evaluators.reference.inputs.strided_layouts import clone, compact, is_same, without_memory
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.reference.loading import (
    KEEPS_INTEGERS,
    LEAVES_UNREAD,
    init_inputs,
    load_module,
    make_inputs,
    make_model,
    seed_all,
)
from evaluators.reference.random_outputs import HOOK, Hook

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

REJECTIONS = (RuntimeError, ValueError, IndexError, AssertionError)
"""Errors with which a reference rejects inputs."""


class UnfitReference(Exception):
    """The reference cannot judge kernels; the message has the findings."""


def raise_if_gpu_lost(error: Exception) -> None:
    """Raises the error again if it is a CUDA error, after which nothing runs in this process."""
    if "CUDA error" in str(error):
        raise error


class RunningReference:
    """Draws inputs, runs the reference and changes its weights."""

    def __init__(
        self,
        problem: Problem,
        *,
        keep_range: bool = False,
        steps: Steps | None = None,
        seed: int | None = None,
    ) -> None:
        """`keep_range` keeps all distributions within the range of the problem's own inputs, because the
        reference has ended its process outside of it. `steps` times the opening. `seed` determines the
        constructor's arguments and the weights (default: a secret one). Raises UnfitReference, and what the
        reference raises."""
        import torch

        self.steps = steps or Steps()
        self._torch, self.problem, self.rule = torch, problem, Rule.of(problem)
        self.device = problem.device
        self.keep_range = keep_range
        self.seed = secrets.randbits(62) if seed is None else seed
        """The seed of the constructor's arguments and weights."""
        self._secret = secrets.randbits(62)
        with self.steps.step(OpeningStep.LOADING):
            self._module = load_module(problem.source, problem.overrides)
            self.random_checks: Hook | None = getattr(self._module, HOOK, None)
            """Set if statistical tests compare the outputs (see `random_outputs`)."""
            # A weight that is not used has the gradient zero.
            self.leaves_unread = problem.backward or bool(getattr(self._module, LEAVES_UNREAD, False))
            self.keeps_integers = bool(getattr(self._module, KEEPS_INTEGERS, False))
            self.eager = self._make(self.seed)
            self.double: DoubleReference | None = DoubleReference(self.eager, source=problem.source)
        self._before: list[torch.Tensor] = []
        self.weights_state = ""
        """Identifies the current weights; "" for the constructor's."""
        try:
            sample = self.draw(secrets.randbits(62))
        except NotDifferentiable as error:
            raise UnfitReference(str(error)) from error
        self.sample = sample
        self.changed_inputs: list[int] = []
        """The numbers of the input tensors that the reference writes to."""
        self.returned_inputs: list[list[int]] = []
        """Outputs that are a changed input itself: pairs of output and input numbers."""
        self.shared_outputs: list[int] = []
        """The numbers of outputs in the memory of an input or a weight, which a caller may find changed."""
        self._output_count = 0
        self._terms: list[int] = []
        self._gradients = gradient_names(self.eager, sample) if problem.backward else []
        self.form: Any = None
        """The structure of the output (see `containers.form_of`)."""
        self.slices: RowSlices | None = None
        """Set if large answers in float64 are computed a few rows at a time."""
        self.draws_numbers = False
        """Whether the answer also depends on torch's random generator."""
        self.has_products = False
        """Whether it has matmuls, convolutions or attention (see `comparison.compare`); set by
        `count_work`."""
        self.has_softmax = False
        """Whether exponentials follow these; set by `count_work`."""
        self.has_convolutions = False
        """Whether some of these are convolutions; set by `count_work`."""
        self.has_choices = False
        """Whether it chooses among elements that may be equal (see `accuracy.choices`); set likewise."""
        with self.steps.step(OpeningStep.LOOKING):
            try:
                self.template = template_of(sample)
                self._require_equal_values()
                self.outputs = self._examine(sample)
            except WrongForm as error:
                raise UnfitReference(str(error)) from error
        self.weight_forms = weight_changes.forms_of(self.eager)
        names = weight_changes.plain_buffers(self.eager, lambda: self._make(self.seed + 1))
        buffers = dict(self.eager.named_buffers())
        self.buffer_forms: list[list[object]] = [
            [name, list(buffers[name].shape), str(buffers[name].dtype)] for name in names
        ]
        self._change_seed = secrets.randbits(62)
        self.signed_weights = True
        self.distributions: dict[str, Distribution] = {}

    def count_work(self) -> Work:
        """Counts the bytes and operations of a call, and sets `has_products`, `has_softmax`,
        `has_convolutions` and `has_choices`. Afterwards `outputs` have shapes but no memory."""
        work = count(self.eager, self.sample, self.outputs)
        self.outputs = [without_memory(each) for each in self.outputs]
        self.has_products, self.has_softmax = work.operations > 0, work.softmax
        self.has_convolutions, self.has_choices = work.convolutions, work.choices
        return work

    def _make(self, seed: int) -> nn.Module:
        values = init_inputs(self._module, self.seed)
        return make_model(
            self._module,
            "Model",
            values,
            seed=seed,
            device=self.device,
            dtype=self.problem.dtype,
            backward=self.problem.backward,
        )

    def draw(self, seed: int | None, name: str = "") -> list[Any]:
        """A set of inputs, the same for the same seed and distribution. Without a seed they come from the
        generators' current state."""
        where = "cpu" if self.problem.inputs == ORIGINAL else self.device
        values = make_inputs(
            self._module,
            seed=seed,
            device=self.device,
            dtype=self.problem.dtype,
            drawn_on=where,
            layout=self.problem.layout,
            backward=self.problem.backward,
        )
        return values if not name else list(self.distributions[name].applied(values))

    def call_seed(self, seed: int) -> int:
        """The seed of torch's generator for a call on the inputs of this seed, from which nobody can guess
        it. With statistical tests each call gets a new one."""
        if self.random_checks is not None:
            return secrets.randbits(62)
        return hash((self._secret, seed)) & (2**62 - 1)

    def run(self, inputs: list[Any], seed: int = 0) -> list[torch.Tensor]:
        """Eager PyTorch's outputs, followed by the inputs that it has changed."""
        given = map_tensors(clone, inputs) if self.changed_inputs else inputs
        if self.draws_numbers:
            seed_all(self.call_seed(seed))
        with self._torch.no_grad():
            return self._with_changed(tensors_of(self.eager(*given)), given)

    def run_if_valid(self, inputs: list[Any], seed: int) -> list[torch.Tensor] | None:
        """Like `run`; None if the reference rejects the inputs."""
        try:
            return self.run(inputs, seed)
        except REJECTIONS as error:
            raise_if_gpu_lost(error)
            if isinstance(error, self._torch.OutOfMemoryError):
                raise
            return None

    def run_exact(
        self,
        inputs: list[Any],
        places: Sequence[Places | None] | None = None,
        change: Callable[[list[Any]], list[Any]] = lambda inputs: inputs,
    ) -> list[torch.Tensor] | None:
        """The outputs in float64, or their elements at these places; None if the reference does not run in
        float64 on such inputs. `change` is applied to the inputs, or to each slice of them, first."""
        if self.double is None:
            return None
        try:
            return self._in_double(self.double, inputs, places, change)
        except FAILURES as error:
            raise_if_gpu_lost(error)
            if isinstance(error, self._torch.OutOfMemoryError):
                raise  # eager's answer must not stand in for one that only lacks memory
            return None

    def _in_double(
        self,
        double: DoubleReference,
        inputs: list[Any],
        places: Sequence[Places | None] | None,
        change: Callable[[list[Any]], list[Any]],
    ) -> list[torch.Tensor]:
        def run(some: list[Any]) -> tuple[list[torch.Tensor], list[Any]]:
            return double.run(change(some), changes_inputs=bool(self.changed_inputs))

        if self.slices is not None:
            return self.slices.run(inputs, lambda some: run(some)[0], places)
        outputs = self._with_changed(*run(inputs))
        return outputs if places is None else pick_all(outputs, places)

    @property
    def is_exact(self) -> bool:
        """Whether there are answers in float64."""
        return self.double is not None

    def output_name(self, number: int) -> str:
        """An output in words; in training, the gradients have the names of their inputs and weights."""
        names = [f"output {each}" for each in range(self._output_count - len(self._gradients))]
        names += [f"the gradient of {each}" for each in self._gradients]
        return names[number] if number < len(names) else f"output {number}"

    def terms_of(self, number: int) -> int:
        """How many numbers each element of an output is the sum of, as far as is known: in training, the
        gradient of a weight is a sum over all rows of the model's output."""
        return self._terms[number] if number < len(self._terms) else 1

    def forget_sample(self) -> None:
        """Frees the memory of `sample` and `outputs`, which can be several gigabytes."""
        self.sample, self.outputs = [], []

    def full_change(self, *, padded: bool = False) -> WeightChange:
        """The change of all weights that is made for the checks on the distributions."""
        names = tuple(str(form[0]) for form in self.buffer_forms)
        return WeightChange(seed=self._change_seed, signed=self.signed_weights, padded=padded, buffers=names)

    @property
    def has_weights(self) -> bool:
        """Whether there are any to change."""
        return bool(self.weight_forms or self.buffer_forms)

    def change_weights(self, how: WeightChange, *, alike: bool) -> None:
        """Changes the reference's weights, in both precisions (see `weight_changes.change`)."""
        if not self.has_weights:
            return
        self._buffers = how.buffers
        self._before = weight_changes.change(self.eager, how, alike=alike)
        self.weights_state = f"{how.turn}/{alike}/{how.padded}/{how.signed}/{how.buffers}"
        self._copy_weights()

    def restore_weights(self) -> None:
        """Restores the constructor's weights, if they were changed."""
        if self.weights_state:
            weight_changes.restore(self.eager, self._before, self._buffers)
            self._before, self.weights_state = [], ""
            self._copy_weights()

    def _copy_weights(self) -> None:
        if self.double is not None:
            self.double.copy_weights(self.eager)

    def _require_equal_values(self) -> None:
        """Raises UnfitReference for numbers or strings that differ from draw to draw: runners get them
        once."""
        if values := plain_values(self.template):
            others = plain_values(template_of(self.draw(secrets.randbits(62))))
            if repr(values) != repr(others):
                raise UnfitReference(
                    f"numbers or strings among its inputs differ from draw to draw ({values} and {others}); "
                    "make them constant, or tensors"
                )

    def _examine(self, sample: list[Any]) -> list[torch.Tensor]:
        """Its outputs. Also finds out which inputs it changes, whether it draws random numbers, and whether
        it runs in float64. Raises UnfitReference."""
        seed = secrets.randbits(62)
        with self._torch.no_grad():

            def outputs(seed: int) -> tuple[list[torch.Tensor], list[Any]]:
                seed_all(seed)
                given = map_tensors(clone, sample)
                output = self.eager(*given)
                found, self.form = tensors_of(output), form_of(output)
                self._output_count = len(found)
                self._terms = terms_of_gradients(found, len(self._gradients))
                if any(each.layout != self._torch.strided for each in found):
                    raise UnfitReference("an output is a sparse tensor")
                return found, given

            first, given = outputs(seed)
            kept = [clone(each) for each in first]
            before, after = tensors_in(sample), tensors_in(given)
            self.changed_inputs = [
                number for number, pair in enumerate(zip(before, after, strict=True)) if not _equal(*pair)
            ]
            self.returned_inputs = [
                [number, changed]
                for number, output in enumerate(first)
                for changed in self.changed_inputs
                if is_same(output, after[changed])
            ]
            lent = {*map(_memory_of, (*after, *self.eager.parameters(), *self.eager.buffers()))}
            self.shared_outputs = [n for n, each in enumerate(first) if _memory_of(each) in lent]
            del first, given, after

            def repeated(seed: int) -> bool:
                pairs = zip(outputs(seed)[0], kept, strict=True)
                return all(about_equal(*pair, SAME) for pair in pairs)

            self.draws_numbers = not repeated(seed + 1)
            # Twice: state that alternates would look like the numbers of another seed.
            if self.draws_numbers and not (repeated(seed) and repeated(seed)):
                raise UnfitReference("it keeps state: two calls on the same inputs gave different answers")
        self.draws_numbers |= self.random_checks is not None
        if self.draws_numbers:
            self.double = None  # other types draw other numbers
        if self.double is not None:
            if not self.changed_inputs:
                self.slices = RowSlices.of(sample, kept, self.run)
            try:
                self._in_double(self.double, sample, None, lambda inputs: inputs)
            except FAILURES as error:
                raise_if_gpu_lost(error)
                cause = str(error).partition("\n")[0]
                logger.warning(
                    "the reference does not run in float64; using its own dtype instead: %s", cause
                )
                self.double = None
        return kept

    def _with_changed(self, outputs: list[torch.Tensor], given: list[Any]) -> list[torch.Tensor]:
        tensors = tensors_in(given) if self.changed_inputs else []
        return [*map(compact, outputs), *(tensors[number] for number in self.changed_inputs)]


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same bits; NaN equals NaN."""
    import torch

    one, other = as_pairs(one), as_pairs(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    if one.element_size() == 1:  # 8-bit floats have no arithmetic
        one, other = one.float(), other.float()
    return torch.equal(torch.nan_to_num(one, 0.0), torch.nan_to_num(other, 0.0))
