"""How long a forward takes, in each way of running the model: readings in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.installation.graphs import ForwardGraph
from search.optimize.models.source import LoadedModel
from search.optimize.verification.apart import TUNED, WAYS, VerificationTask
from search.optimize.verification.blocks import in_turn, warm
from search.optimize.verification.compiler import over_compiled
from search.optimize.verification.in_place import over_operators
from search.optimize.verification.plans import plan_of, recorded
from search.optimize.verification.record import (
    COMPILED_PAIRS,
    GRAPH,
    OPTIMIZED,
    OPTIMIZED_GRAPH,
    REDUCED,
    Verification,
)

RECOMPILED = 8
"""Times a function may be compiled for each shape, as PyTorch has it for one."""


def timed(
    package: Any, task: VerificationTask, compared: Verification, say: Callable[[str], None]
) -> Verification:
    """The verification with a session of the ways at all shapes in turn, and why other ways could not be run.
    Kernels that were left out stay off, and in each way those that are slower there than what they stand for;
    in compiled code those that are no faster."""
    plain, fast = task.load(task.seed), task.load(task.seed)
    package.load(fast[0].module, list(compared.left_out))
    compared, plan = _in_place(fast, task, compared, say), plan_of(fast[0])
    plan.slower = compared.slower_in
    for name in compared.left_out:
        plan.kernels[name].on = False
    if _compiles(task):
        plan.compiles(compared.faster_compiled)
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    failed = dict(compared.failed)
    for way in (each for each in task.ways if each not in failed):
        say(f"{WAYS[way]}: warming up")
        try:
            own = _warm(way, fast if way.startswith(OPTIMIZED) else plain)
            runs |= {(shape, way): run for shape, run in own.items()}
        except Exception as error:  # of the compiler, or of what it has made
            failed[way] = f"{type(error).__name__}: {first_line(error)}"
    ms: dict[str, dict[str, list[float]]] = {}
    for (shape, way), read in in_turn(runs, task.turns, task.device, seed=task.seed, say=say).items():
        ms.setdefault(shape, {})[way] = read
    shapes = {each.shape: each.weight for each in plain}
    return replace(compared, sessions=[ms], failed=failed, shapes=shapes)


def _compiles(task: VerificationTask) -> bool:
    """Whether kernels are timed in compiled code."""
    return any(with_kernels in task.ways for _, with_kernels in COMPILED_PAIRS)


def _in_place(
    models: Sequence[LoadedModel], task: VerificationTask, compared: Verification, say: Callable[[str], None]
) -> Verification:
    """With what each kernel is worth in the ways that are timed, unless the task says that."""
    found = {way: own for way, own in task.in_place.items() if way in task.ways}
    for way in (OPTIMIZED, OPTIMIZED_GRAPH):
        if way in task.ways and way not in found and way not in compared.failed:
            say(f"kernels in their places, {WAYS[way]}")
            found[way] = over_operators(models, task.turns, say, as_graph=way == OPTIMIZED_GRAPH)
    compared = replace(compared, in_place=found)
    if _compiles(task):
        say("kernels in compiled code")
        compared = replace(compared, over_compiled=over_compiled(models, task.turns, say))
    return compared.without_useless


def _warm(way: str, models: Sequence[LoadedModel]) -> dict[str, Callable[[], Any]]:
    """What runs the model in this way, by the shape, after it has been run. Each shape has compiled code of
    its own. Raises whatever that raises."""
    import torch

    if way in (GRAPH, OPTIMIZED_GRAPH):
        return {each.shape: _as_graph(way, each) for each in models}
    module: Any = models[0].module
    dynamic = None
    if len(models) > 1:
        dynamic = False
        torch._dynamo.config.recompile_limit = RECOMPILED * len(models)
    if "compile" in way:
        module = torch.compile(module, dynamic=dynamic)
    elif REDUCED in way or way == TUNED:
        module = torch.compile(module, mode=REDUCED if REDUCED in way else TUNED, dynamic=dynamic)
    runs = {each.shape: replace(each, module=module).run for each in models}
    for run in runs.values():
        warm(run)
    return runs


def _as_graph(way: str, model: LoadedModel) -> Callable[[], Any]:
    """What runs the model at its shape as a CUDA graph. Raises NoGraphError."""
    if way == GRAPH:
        graph = ForwardGraph(lambda *_: model.run(), model.inputs(), [])
        return lambda: graph(*model.inputs())
    plan = plan_of(model)
    recorded(model)

    def run() -> Any:
        plan.as_graph = True
        try:
            return model.run()
        finally:
            plan.as_graph = False

    return run
