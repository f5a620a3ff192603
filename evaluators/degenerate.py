"""References that cannot judge: an answer that needs no computing would pass for theirs.

Examined when a problem is opened, on the reference alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.correctness import Comparison, compare

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SAMPLE = 2**16
"""Elements of an output that are looked at first: most wrong answers are wrong everywhere."""

Answers = Callable[[list[Any]], tuple[list["torch.Tensor"], list["torch.Tensor"]]]
"""The reference's outputs for a set of inputs: at the task's dtype, and in float64."""


def examine(
    draw: Callable[[int], list[Any]], answers: Answers, tolerance: str, *, seeds: tuple[int, int]
) -> list[str]:
    """What makes a reference useless under the tolerance profile, one line each; empty for a sound one.

    `draw` gives the same inputs for the same seed. Tried are, for each output: eager PyTorch itself, zeros,
    and answers that do not depend on the inputs, namely the output for other inputs and its means (one for
    all, per channel, per place in the last dimension). If none of these passes, then for each input: to draw
    it anew, the others staying as they are. Inputs that are no tensors, or come out equal in both draws, are
    exempt, and so are those that only make sense together. Raises what the reference raises.
    """
    import torch

    first, second = seeds
    with torch.no_grad():
        eager, exact = answers(draw(first))
        benches = [
            _Bench(ref=ref, eager=own, tolerance=tolerance) for own, ref in zip(eager, exact, strict=True)
        ]
        other, _ = answers(draw(second))
        found = []
        for number, (bench, elsewhere) in enumerate(zip(benches, other, strict=True)):
            if finding := bench.try_fakes(elsewhere):
                found.append(finding if len(benches) == 1 else f"output {number}: {finding}")
        if found:
            return found
        del other
        for index in _redrawn(draw(first), draw(second)):
            inputs = draw(first)
            inputs[index] = draw(second)[index]
            try:
                changed, _ = answers(inputs)
            except (RuntimeError, ValueError, IndexError) as error:
                logger.info("input %d cannot be drawn anew by itself: %s", index, error)
                continue
            if why := _all_pass(benches, changed):
                found.append(f"the outputs hardly depend on input {index}: drawn anew, {why}")
    return found


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """One output of the reference, in float64 and from eager PyTorch, and the rule to judge others by."""

    ref: torch.Tensor
    eager: torch.Tensor
    tolerance: str

    def try_fakes(self, elsewhere: torch.Tensor) -> str:
        """The simplest answer that passes, or why none can; "" if the output is a sound one. `elsewhere` is
        the output for other inputs."""
        if self.eager.numel() == 0:
            return "there are no elements to judge"
        if (own := compare(self.eager, self.ref, self.eager, self.tolerance)).problem:
            return f"eager PyTorch itself fails under {self.tolerance}: {own.problem}"
        for name, make in _fakes(elsewhere).items():
            fake = make()
            if fake.shape == self.eager.shape and not (found := self.judge(fake)).problem:
                return f"{name} pass {self.explain(fake, found)}"
        return ""

    def judge(self, out: torch.Tensor) -> Comparison:
        """Judges `out` as if a candidate had given it; by a part of it, where that is enough to fail it."""
        step = out.numel() // SAMPLE + 1
        some, ref, eager = (each.flatten()[::step] for each in (out, self.ref, self.eager))
        if (found := compare(some, ref, eager, self.tolerance)).problem:
            return found
        return compare(out, self.ref, self.eager, self.tolerance)

    def explain(self, fake: torch.Tensor, found: Comparison) -> str:
        """The figures that say why it passes, and whether the strict profile would tell the two apart."""
        values = self.ref.double()
        strict = self.tolerance != "strict" and compare(fake, self.ref, self.eager, "strict").problem
        return (
            f"under {self.tolerance}: the largest output is {values.abs().max().item():.3g}, the mean "
            f"{values.mean().item():.3g}, the rms {values.square().mean().sqrt().item():.3g}, the normwise "
            f"difference {found.error:.3g}, eager's own {found.eager_error:.3g}"
            + (" (use problem.tolerance=strict)" if strict else "")
        )


def _fakes(elsewhere: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Answers that need no inputs, made one at a time, since each is as large as the output."""

    def mean_over(*kept: int) -> Callable[[], torch.Tensor]:
        over = [d for d in range(elsewhere.dim()) if d not in {k % elsewhere.dim() for k in kept}]
        return lambda: elsewhere.double().mean(over, keepdim=True).to(elsewhere.dtype).expand_as(elsewhere)

    fakes: dict[str, Callable[[], torch.Tensor]] = {"zeros": lambda: elsewhere.new_zeros(elsewhere.shape)}
    if elsewhere.is_floating_point():
        fakes["constants (the mean for other inputs)"] = mean_over()
        if elsewhere.dim() > 2:
            fakes["constants (one a channel, from other inputs)"] = mean_over(1)
        if elsewhere.dim() > 1:
            fakes["constants (one a place in the last dimension, from other inputs)"] = mean_over(-1)
    fakes["the outputs for other inputs"] = lambda: elsewhere
    return fakes


def _redrawn(inputs: list[Any], others: list[Any]) -> list[int]:
    """The tensors that differ between two draws; none where there is but one, since the outputs for other
    inputs have shown it already."""
    import torch

    found = [
        index
        for index, (one, other) in enumerate(zip(inputs, others, strict=True))
        if isinstance(one, torch.Tensor) and one.shape == other.shape and not torch.equal(one, other)
    ]
    return found if len(found) > 1 else []


def _all_pass(benches: list[_Bench], outputs: list[torch.Tensor]) -> str:
    """Why all of these outputs pass, by the one that differs most; "" if one does not."""
    found = [bench.judge(out) for bench, out in zip(benches, outputs, strict=True)]
    if any(each.problem for each in found):
        return ""
    worst = max(range(len(found)), key=lambda number: found[number].error)
    return f"they pass {benches[worst].explain(outputs[worst], found[worst])}"
