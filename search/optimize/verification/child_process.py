"""Compares a model with kernels to the original and times both. `launcher` starts it as a child process:

    python -m search.optimize.verification.child_process FOLDER

FOLDER is the folder of an `ideatree optimize` run, with `optimized/` and the task in
`verification_task.json`. The result goes to `verification_found.json`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.base.cause import first_line
from evaluators.reference.containers import tensors_in
from search.optimize.extraction.record import EXTRACTION, Extraction
from search.optimize.installation.package import load_package
from search.optimize.models.source import LoadedModel
from search.optimize.verification.errors import error_of, find_guilty
from search.optimize.verification.forward_plan import plan_of, watch_kernels
from search.optimize.verification.launcher import RESULT, TASK, TrainingPlan, VerificationTask
from search.optimize.verification.loss_curves import OriginalCurve
from search.optimize.verification.model_timing import time_model
from search.optimize.verification.record import (
    OPTIMIZED_GRAPH,
    GrowthStep,
    LossCurves,
    ModelCheck,
    Verification,
)
from search.optimize.verification.yardstick import Results, Yardstick, results_of

if TYPE_CHECKING:
    import torch


def verify(
    folder: Path,
    task: VerificationTask,
    say: Callable[[str], None],
    on_compared: Callable[[Verification], None] = lambda found: None,
) -> Verification:
    """Verifies in this process; `on_compared` gets the result of the comparison before anything is timed.
    Raises what the model raises, and ValueError for another model's package."""
    package = load_package(folder)
    result = Verification(checks=(), calls={}, left_out=task.without, backward=task.training is not None)
    if task.seeds:
        result = _compare(folder, package, task, say)
        gc.collect()
    if not task.ways or (task.seeds and not result.passes):
        return result
    if task.seeds:
        on_compared(result)
    return time_model(package, task, result, say)


def _compare(folder: Path, package: Any, task: VerificationTask, say: Callable[[str], None]) -> Verification:
    """Compares the outputs, in training also the gradients and the losses, one model in memory at a time;
    starts again after removing a kernel."""
    result = Verification(checks=(), calls={}, left_out=task.without, backward=task.training is not None)
    while True:
        checks = []
        before = result.left_out
        for number, seed in enumerate(range(task.seed, task.seed + task.seeds), 1):
            say(f"comparing: set {number} of {task.seeds}")
            cases = _cases(package, task, seed)
            left = [each for each in cases[0].kernels if each not in result.left_out]
            if found := find_guilty(left, lambda some, cases=cases: any(each.wrong(some) for each in cases)):  # type: ignore[misc]
                growth = result.growth or _growth(cases, left, folder)
                what = "the outputs or gradients" if result.backward else "the outputs"
                why = {name: f"{what} differ with it: {_failure(cases, left, name)}" for name in found}
                result = replace(result, growth=growth, left_out={**result.left_out, **why})
                say(f"seed {seed}: removed: {', '.join(found)}")
                left = [each for each in left if each not in found]
            checks += [each.check(left) for each in cases]
            as_graph = cases if OPTIMIZED_GRAPH in task.ways else ()
            if off := next(filter(None, (each.wrong_as_graph(left) for each in as_graph)), ""):
                result = replace(result, failed={OPTIMIZED_GRAPH: off})
            if seed == task.seed:
                calls = [each.calls(left) for each in cases]
                result = replace(
                    result,
                    calls={name: sum(each[name] for each in calls) for name in left},
                    other_sizes=_other_sizes(cases),
                    shapes={each.model.shape: each.model.weight for each in cases},
                )
                if task.training is not None and all(each.passes for each in checks):
                    say(f"training {task.training.steps} steps with {task.training.optimizer}")
                    result = _train(cases, task.training, left, result)
        if result.left_out == before:
            return replace(result, checks=checks)


def _train(
    cases: Sequence[_Case], plan: TrainingPlan, names: Sequence[str], result: Verification
) -> Verification:
    """Compares the losses of a training with these kernels to the original's; leaves out the kernels with
    which they differ."""
    first = cases[0]
    with first.without_package():
        original = OriginalCurve([each.model for each in cases], plan, first.yardstick.rounding)

    def curves(some: Sequence[str]) -> LossCurves:
        first.switch_on(some)
        return original.compare()

    def differ(some: Sequence[str]) -> bool:
        try:
            return not curves(some).passes
        except Exception:  # a kernel may raise anything
            return True

    if found := find_guilty(names, differ):
        why = dict.fromkeys(found, "the loss curve of the training differs with it")
        return replace(result, left_out={**result.left_out, **why})
    return replace(result, curves=curves(names))


def _cases(package: Any, task: VerificationTask, seed: int) -> list[_Case]:
    """The model of a seed at each of its shapes, with the kernels loaded."""
    cases = [_Case(package, seed, number, model) for number, model in enumerate(task.load(seed))]
    package.load(cases[0].model.module)
    return cases


def _failure(cases: Sequence[_Case], names: Sequence[str], name: str) -> str:
    """What is wrong with a kernel, alone or together with the others."""
    found = (each.wrong(some) for some in ([name], names) for each in cases)
    return next(filter(None, found), "in some runs only")


def _growth(cases: Sequence[_Case], some: Sequence[str], folder: Path) -> list[GrowthStep]:
    """The error growth at the first shape where these kernels change the outputs."""
    return next((each.growth(some, folder) for each in cases if each.wrong(some)), [])


def _other_sizes(cases: Sequence[_Case]) -> str:
    """The finding for inputs of another size, from the first shape that has one."""
    known = [each.sizes for each in cases]
    return next(filter(None, (each.other_sizes(known) for each in cases)), "")


class _Case:
    """The model of one seed at the shape with index `number`: compares outputs with and without kernels."""

    def __init__(self, package: Any, seed: int, number: int, model: LoadedModel) -> None:
        self.model, self._package, self._number = model, package, number
        self.yardstick = Yardstick(model, seed)

    @property
    def kernels(self) -> list[str]:
        """The names of all kernels."""
        return list(self._plan.kernels)

    @property
    def sizes(self) -> list[torch.Size]:
        """The sizes of the inputs."""
        return [each.shape for each in self.model.inputs()]

    def check(self, some: Sequence[str]) -> ModelCheck:
        """Runs the model with these kernels on, in training twice, because a kernel may keep something in its
        backward pass; the worse run counts. A kernel that raises has an infinite error."""
        self.switch_on(some)
        self._raised = ""
        runs = [self._run() for _ in range(2 if self.model.backward else 1)]
        if self._plan.fallbacks:
            raise ValueError(f"the kernels do not run: {next(iter(self._plan.fallbacks))}")
        checks = [self.yardstick.check(found, self._tokens(found)) for found in runs]
        return max(checks, key=lambda each: (not each.passes, each.error))

    def _run(self) -> Results:
        try:
            return results_of(self.model)
        except Exception as error:  # a kernel may raise anything
            self._raised = f"{type(error).__name__}: {first_line(error)}"
            return {}

    def switch_on(self, some: Sequence[str]) -> None:
        """Switches these kernels on and all others off."""
        for name, kernel in self._plan.kernels.items():
            kernel.on = name in some

    @contextlib.contextmanager
    def without_package(self) -> Iterator[None]:
        """Within the block the model is the original; afterwards all kernels are on."""
        self._package.unload(self.model.module)
        try:
            yield
        finally:
            self._package.load(self.model.module)

    def wrong(self, some: Sequence[str]) -> str:
        """What is wrong with these kernels; "" for nothing."""
        found = self.check(some)
        if found.passes:
            return ""
        at = f"at {self.model.shape}: " if self.model.shape else ""
        what = f" of {found.where}" if found.where else ""
        return at + (self._raised or f"error {found.error:.1e}{what}, {found.allowed:.1e} allowed")

    def wrong_as_graph(self, some: Sequence[str]) -> str:
        """What is wrong with these kernels in a CUDA graph."""
        self._plan.as_graph = True
        try:
            return self.wrong(some)
        finally:
            self._plan.as_graph = False

    def growth(self, some: Sequence[str], folder: Path) -> list[GrowthStep]:
        """The errors of these kernels' results, call by call, compared with the forward without them."""
        sites = Extraction.read(folder / EXTRACTION).sites(self.kernels, self._number)
        with_kernels, without = self._results(some), self._results(())
        return [
            GrowthStep(kernel=name, site=site, error=error_of(tensors_in(found), tensors_in(wanted)))
            for (name, found), (_, wanted), site in zip(with_kernels, without, sites, strict=False)
        ]

    def _results(self, some: Sequence[str]) -> list[tuple[str, Any]]:
        """The name and result of each kernel call in a forward with these kernels on."""
        results: list[tuple[str, Any]] = []
        self.switch_on(some)
        with (
            watch_kernels(self._plan, lambda name, _, found: results.append((name, found))),
            contextlib.suppress(Exception),  # a kernel may raise anything; report the calls before it
        ):
            results_of(self.model)
        return results

    def calls(self, some: Sequence[str]) -> dict[str, int]:
        """Calls of each of these kernels in a forward."""
        before = {name: each.calls for name, each in self._plan.kernels.items()}
        self.switch_on(some)
        self._run()
        return {name: self._plan.kernels[name].calls - before[name] for name in some}

    def other_sizes(self, known: Sequence[Sequence[torch.Size]]) -> str:
        """Whether inputs of twice the batch size fall back to the original forward; "" where the model does
        not take them, or where they have a `known` shape."""
        import torch
        from torch.utils._pytree import tree_map

        def twice(leaf: Any) -> Any:
            if not (isinstance(leaf, torch.Tensor) and leaf.dim()):
                return leaf
            return torch.cat([leaf, leaf]).detach().requires_grad_(leaf.requires_grad)

        doubled = replace(
            self.model,
            args=tree_map(twice, list(self.model.args)),
            kwargs=tree_map(twice, dict(self.model.kwargs)),
        )
        if [each.shape for each in doubled.inputs()] in known:
            return ""
        try:
            with self.without_package():
                wanted = results_of(doubled)
        except Exception:  # the original model does not take such inputs
            return ""
        found = results_of(doubled)
        same = all(
            torch.equal(found[name], each) for name, each in wanted.items() if name.startswith("output")
        )
        self._plan.fallbacks.clear()
        return "inputs of another size: " + ("the original forward runs" if same else "DIFFERENT outputs")

    def _tokens(self, found: Results) -> float | None:
        """The share of most likely tokens that equal the original's; None for a model without logits."""
        if not hasattr(self.model.module, "generate"):
            return None
        for ours, logits in zip(found.values(), self.yardstick.eager.values(), strict=False):
            if logits.is_floating_point() and logits.dim() == 3:
                return float((ours.argmax(-1) == logits.argmax(-1)).double().mean())
        return None

    @property
    def _plan(self) -> Any:
        return plan_of(self.model)


def progress(expected_s: float) -> Callable[[str], None]:
    """A function that prints lines with the time since now, next to the expected one."""
    start = time.monotonic()
    expected = f" of about {expected_s:.0f}" if expected_s else ""

    def say(line: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - start:.0f}{expected} s] {line}\n")
        sys.stdout.flush()

    return say


def main(arguments: Sequence[str]) -> int:
    """The child process; returns its exit status."""
    folder = Path(arguments[0])
    task = VerificationTask.from_json(json.loads((folder / TASK).read_text()))
    say = progress(task.expected_s)
    verify(folder, task, say, lambda compared: compared.write(folder / RESULT)).write(folder / RESULT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
