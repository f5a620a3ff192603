"""Holds a model with kernels against the model, and times both; in a process of its own, because kernels are
code that may do anything to theirs:

    python -m search.optimizations.verification.process FOLDER

FOLDER is that of a run of `search.optimize`; it has `optimized/` and what is to be done in
`verification_task.json`. What is found is written to `verification.json`.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import importlib.util
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.cause import first_line
from evaluators.reference.containers import tensors_in
from search.optimizations.extraction.record import EXTRACTION, Extraction
from search.optimizations.installation.package import PACKAGE
from search.optimizations.model_source import LoadedModel
from search.optimizations.verification.apart import TASK, TUNED, WAYS, Task
from search.optimizations.verification.record import (
    FILE,
    OPTIMIZED,
    Check,
    Step,
    Verification,
    allowed,
    error_of,
    guilty,
)

if TYPE_CHECKING:
    import torch

BLOCK_MS = {"cpu": 30.0, "cuda": 20.0}
"""Of the calls between two readings of the clock, at least."""
WARM = 3


def verify(folder: Path, task: Task, say: Callable[[str], None]) -> Verification:
    """The verification, in this process. Raises what the model raises, and ValueError for a package that is
    not this model's."""
    package = load_package(folder)
    result = Verification(checks=(), calls={}, left_out=task.without)
    if task.seeds:
        result = _compared(folder, package, task, say)
        gc.collect()
    if not task.ways or (task.seeds and not result.passes):
        return result
    sessions, failed = _timed(package, replace(task, without=result.left_out), say)
    return replace(result, sessions=sessions, failed=failed)


def _compared(folder: Path, package: Any, task: Task, say: Callable[[str], None]) -> Verification:
    """One model at a time is in memory. Where a kernel is taken out, the seeds before are compared again."""
    result = Verification(checks=(), calls={}, left_out=task.without)
    while True:
        checks = []
        before = result.left_out
        for seed in range(task.seed, task.seed + task.seeds):
            case = _Case(package, task, seed)
            left = [each for each in case.kernels if each not in result.left_out]
            if found := guilty(left, lambda some, case=case: not case.check(some).passes):  # type: ignore[misc]
                growth = result.growth or case.growth(left, folder)
                why = {name: f"the model is another with it: {case.why(left, name)}" for name in found}
                result = replace(result, growth=growth, left_out={**result.left_out, **why})
                say(f"seed {seed}: taken out: {', '.join(found)}")
                left = [each for each in left if each not in found]
            checks.append(case.check(left))
            if seed == task.seed:
                result = replace(result, calls=case.calls(left), other_sizes=case.other_sizes())
        if result.left_out == before:
            say(f"compared on {len(checks)} sets of weights and inputs")
            return replace(result, checks=checks)


def load_package(folder: Path) -> Any:
    """The folder's `optimized/` as a module of its own: there may be several in a process."""
    file = folder / PACKAGE / "__init__.py"
    name = f"{PACKAGE}_{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Case:
    """A model of one seed: what it gives, and what it gives with kernels."""

    def __init__(self, package: Any, task: Task, seed: int) -> None:
        self.seed, self._package, self._task = seed, package, task
        model = task.load(seed)
        self._eager = [each.detach().clone() for each in model.run()]
        self._exact = _in_float64(model)
        self._model = model
        package.load(model.module)
        self.kernels = list(_plan_of(model).kernels)

    def check(self, some: Sequence[str]) -> Check:
        """With these kernels on; one that raises has an infinite error."""
        import torch

        for name, kernel in self._plan.kernels.items():
            kernel.on = name in some
        self._raised = ""
        try:
            found = self._model.run()
        except Exception as error:  # a kernel may raise anything
            self._raised = f"{type(error).__name__}: {first_line(error)}"
            found = []
        if self._plan.fallbacks:
            raise ValueError(f"the kernels do not run: {next(iter(self._plan.fallbacks))}")
        wanted = self._exact or self._eager
        eager_error = error_of(self._eager, self._exact) if self._exact else None
        epsilon = max(
            (torch.finfo(each.dtype).eps for each in self._eager if each.is_floating_point()), default=0.0
        )
        if eager_error is not None and not math.isfinite(eager_error):
            wanted, eager_error = self._eager, None
        return Check(
            seed=self.seed,
            error=error_of(found, wanted),
            eager_error=eager_error,
            allowed=allowed(eager_error, epsilon),
            tokens=self._tokens(found),
        )

    def why(self, names: Sequence[str], name: str) -> str:
        """What is wrong with one kernel: alone, or with the others."""
        alone = self.check([name])
        if self._raised:
            return self._raised
        found = alone if not alone.passes else self.check(names)
        return f"error {found.error:.1e}, {found.allowed:.1e} allowed"

    def growth(self, some: Sequence[str], folder: Path) -> list[Step]:
        """The errors of these kernels' results, call by call, against the same forward without them."""
        sites = Extraction.read(folder / EXTRACTION).sites(self.kernels)
        seen: dict[bool, list[tuple[str, Any]]] = {False: [], True: []}
        plan, own = self._plan, self._plan.kernels
        for on in seen:

            def spy(name: str, on: bool = on) -> Callable[..., Any]:
                def call(*inputs: torch.Tensor) -> Any:
                    found = own[name](*inputs)
                    seen[on].append((name, found))
                    return found

                return call

            for name, kernel in own.items():
                kernel.on = on and name in some
            plan.kernels = {name: spy(name) for name in own}
            with contextlib.suppress(Exception):  # a kernel may raise anything; what came before is told
                self._model.run()
            plan.kernels = own
        return [
            Step(kernel=name, site=site, error=error_of(tensors_in(found), tensors_in(wanted)))
            for (name, found), (_, wanted), site in zip(seen[True], seen[False], sites, strict=False)
        ]

    def calls(self, some: Sequence[str]) -> dict[str, int]:
        """Of each kernel in a forward."""
        before = {name: each.calls for name, each in self._plan.kernels.items()}
        self.check(some)
        return {name: self._plan.kernels[name].calls - before[name] for name in some}

    def other_sizes(self) -> str:
        """Whether inputs of twice the first size are the model's own forward's; "" where the model does not
        take them."""
        import torch
        from torch.utils._pytree import tree_map

        def twice(leaf: Any) -> Any:
            return torch.cat([leaf, leaf]) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf

        doubled = replace(
            self._model,
            args=tree_map(twice, list(self._model.args)),
            kwargs=tree_map(twice, dict(self._model.kwargs)),
        )
        self._package.unload(self._model.module)
        try:
            wanted = [each.clone() for each in doubled.run()]
        except Exception:  # the model's own business
            return ""
        finally:
            self._package.load(self._model.module)
        found = doubled.run()
        same = all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
        self._plan.fallbacks.clear()
        return "inputs of another size: " + ("the model's own forward runs" if same else "NOT the same")

    def _tokens(self, found: Sequence[torch.Tensor]) -> float | None:
        if not hasattr(self._model.module, "generate"):
            return None
        for ours, logits in zip(found, self._eager, strict=False):
            if logits.is_floating_point() and logits.dim() == 3:
                return float((ours.argmax(-1) == logits.argmax(-1)).double().mean())
        return None

    @property
    def _plan(self) -> Any:
        return _plan_of(self._model)


def _in_float64(model: LoadedModel) -> list[torch.Tensor]:
    """What the model gives in float64; empty where it does not run, or does not fit."""
    import torch
    from torch.utils._pytree import tree_map

    def wider(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    try:
        wide = replace(
            model,
            module=copy.deepcopy(model.module).double(),
            args=tree_map(wider, list(model.args)),
            kwargs=tree_map(wider, dict(model.kwargs)),
        )
        return [each.detach() for each in wide.run()]
    except (RuntimeError, TypeError, ValueError, NotImplementedError, MemoryError):
        return []


def _timed(
    package: Any, task: Task, say: Callable[[str], None]
) -> tuple[list[dict[str, list[float]]], dict[str, str]]:
    """A session of the ways in turn, in ms, and why others could not be run."""
    plain, fast = task.load(task.seed), task.load(task.seed)
    package.load(fast.module, list(task.without))
    runs: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for way in task.ways:
        say(f"{WAYS[way]}: warming up")
        try:
            runs[way] = _warm(way, fast if way.startswith(OPTIMIZED) else plain)
        except Exception as error:  # of the compiler, or of what it has made
            failed[way] = f"{type(error).__name__}: {first_line(error)}"
    calls = {
        way: max(1, math.ceil(BLOCK_MS[task.device] / _block(run, 1, task.device)))
        for way, run in runs.items()
    }
    ms: dict[str, list[float]] = {way: [] for way in runs}
    order = list(runs)
    shuffled = random.Random(task.seed)
    for turn in range(task.turns):
        shuffled.shuffle(order)
        for way in order:
            ms[way].append(_block(runs[way], calls[way], task.device))
        if turn in (0, task.turns // 2):
            say(f"turn {turn + 1} of {task.turns}")
    return [ms], failed


def _warm(way: str, model: LoadedModel) -> Callable[[], Any]:
    """What runs the model in this way, after it has been run. Raises whatever that raises."""
    import torch

    module: Any = model.module
    if "compile" in way:
        module = torch.compile(module)
    elif way == TUNED:
        module = torch.compile(module, mode="max-autotune")
    one = replace(model, module=module)
    for _ in range(WARM):
        one.run()
    return one.run


def _plan_of(model: LoadedModel) -> Any:
    """Of a model with kernels."""
    return type(model.module).plan  # type: ignore[attr-defined]


def _block(run: Callable[[], Any], calls: int, device: str) -> float:
    """Of one call, in ms, of so many back to back."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / calls


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """The process."""
    folder = Path(arguments[0])
    task = Task(**json.loads((folder / TASK).read_text()))
    verify(folder, task, _say).write(folder / FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
