"""Times a forward, or a step of training, in each way of running the model, with interleaved readings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.installation.graphs import ForwardGraph
from search.optimize.models.source import LoadedModel
from search.optimize.verification.ablation import ablation_speedups
from search.optimize.verification.compiled_code import compiled_speedups
from search.optimize.verification.forward_plan import plan_of, record_graph
from search.optimize.verification.interleaved import time_interleaved, warm
from search.optimize.verification.launcher import TUNED, WAYS, VerificationTask, way_title
from search.optimize.verification.loss_curves import memory_of, optimizer_of
from search.optimize.verification.record import (
    COMPILED_PAIRS,
    EAGER,
    GRAPH,
    OPTIMIZED,
    OPTIMIZED_GRAPH,
    REDUCED,
    REWRITTEN,
    Verification,
)
from search.optimize.verification.yardstick import Yardstick, results_of

RECOMPILED = 8
"""PyTorch's default limit of recompilations; it is applied per shape."""


def time_model(
    package: Any, task: VerificationTask, compared: Verification, say: Callable[[str], None]
) -> Verification:
    """Returns `compared` with a timing session over all ways and shapes, and the ways that failed.

    Kernels that were left out stay off. In each way, the kernels that are slower there than their operators
    are off as well; in compiled code, the kernels that are not faster.
    """
    plain, fast = _load(task), _load(task)
    for model in fast:
        model.run()  # fills what the model makes in its first call
    package.load(fast[0].module, list(compared.left_out))
    compared, plan = _kernel_speedups(fast, task, compared, say), plan_of(fast[0])
    plan.slower = compared.slower_in
    for name in compared.left_out:
        plan.kernels[name].on = False
    if _compiles_kernels(task):
        plan.compiles(compared.faster_compiled)
    memory: dict[str, dict[str, int]] = {}
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    failed = dict(compared.failed)
    for way in (each for each in task.ways if each not in failed):
        if way.startswith(REWRITTEN) and not compared.runs_kernels(way.replace(REWRITTEN, OPTIMIZED)):
            continue  # it is the same as the way with the kernels
        say(f"{way_title(compared, way)}: warming up")
        try:
            models = _models(way, fast if way.startswith((OPTIMIZED, REWRITTEN)) else plain)
            own = _warmed_runs(way, models)
            if task.training is not None and way != REWRITTEN:
                memory |= _memory(way, models[0])
            if task.training is not None and way in dict(COMPILED_PAIRS).values():
                _check_compiled(models, plain, fast, task.seed)
            runs |= {(shape, way): run for shape, run in own.items()}
        except Exception as error:  # from the compiler, or from the code it made
            failed[way] = f"{type(error).__name__}: {first_line(error)}"
    ms: dict[str, dict[str, list[float]]] = {}
    for (shape, way), read in time_interleaved(
        runs, task.turns, task.device, seed=task.seed, say=say
    ).items():
        ms.setdefault(shape, {})[way] = read
    shapes = {each.shape: each.weight for each in plain}
    return replace(compared, sessions=[ms], failed=failed, shapes=shapes, memory=memory)


def _load(task: VerificationTask) -> list[LoadedModel]:
    """The model at each of its shapes; in training its calls are steps."""
    models = task.load(task.seed)
    if task.training is None:
        return models
    optimizer = optimizer_of(models[0].module, task.training)
    return [replace(each, optimizer=optimizer) for each in models]


def _memory(way: str, model: LoadedModel) -> dict[str, dict[str, int]]:
    """The memory of a step; on a CPU what compiled code saves is not known."""
    return {} if model.device == "cpu" and way not in (EAGER, OPTIMIZED) else {way: memory_of(model)}


def _check_compiled(
    compiled: Sequence[LoadedModel], plain: Sequence[LoadedModel], fast: Sequence[LoadedModel], seed: int
) -> None:
    """Raises ValueError if the gradients of compiled code with kernels differ from the original's."""
    plain[0].module.load_state_dict(fast[0].module.state_dict())
    for each, original in zip(compiled, plain, strict=True):
        found = Yardstick(replace(original, optimizer=None), seed).check(
            results_of(replace(each, optimizer=None))
        )
        if not found.passes:
            raise ValueError(
                f"the error of {found.where} is {found.error:.1e}; {found.allowed:.1e} is allowed"
            )


def _compiles_kernels(task: VerificationTask) -> bool:
    """Whether each kernel is timed in compiled code, as an operator; in training the compiler follows its
    code."""
    return task.training is None and any(ours in task.ways for _, ours in COMPILED_PAIRS)


def _kernel_speedups(
    models: Sequence[LoadedModel], task: VerificationTask, compared: Verification, say: Callable[[str], None]
) -> Verification:
    """Returns `compared` with each kernel's speedup in the timed ways, measured unless the task has it."""
    found = {way: own for way, own in task.in_place.items() if way in task.ways}
    for way in (OPTIMIZED, OPTIMIZED_GRAPH):
        if way in task.ways and way not in found and way not in compared.failed:
            say(f"timing each kernel in its place: {WAYS[way]}")
            found[way] = ablation_speedups(models, task.turns, say, as_graph=way == OPTIMIZED_GRAPH)
    compared = replace(compared, in_place=found)
    if _compiles_kernels(task):
        say("timing each kernel in compiled code")
        compared = replace(compared, over_compiled=compiled_speedups(models, task.turns, say))
    return compared.without_useless


def _models(way: str, models: Sequence[LoadedModel]) -> list[LoadedModel]:
    """The model as its calls run in this way, compiled or not. Each shape is compiled separately."""
    import torch

    module: Any = models[0].module
    dynamic = None
    if len(models) > 1:
        dynamic = False
        torch._dynamo.config.recompile_limit = RECOMPILED * len(models)
    if "compile" in way:
        module = torch.compile(module, dynamic=dynamic)
    elif REDUCED in way or way == TUNED:
        module = torch.compile(module, mode=REDUCED if REDUCED in way else TUNED, dynamic=dynamic)
    return [replace(each, module=module) for each in models]


def _warmed_runs(way: str, models: Sequence[LoadedModel]) -> dict[str, Callable[[], Any]]:
    """A function per shape that runs the model in this way, warmed up. Raises what the model or the compiler
    raises."""
    if way in (GRAPH, OPTIMIZED_GRAPH):
        return {each.shape: _as_graph(way, each) for each in models}
    runs: dict[str, Callable[[], Any]] = {each.shape: each.run for each in models}
    if way.startswith(REWRITTEN):
        plan = plan_of(models[0])
        runs = {shape: _without_kernels(plan, run) for shape, run in runs.items()}
    for run in runs.values():
        warm(run)
    return runs


def _without_kernels(plan: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """The same function with the operators in place of all kernels."""
    off = {key: [*plan.kernels] for key in ("eager", "compiled")}

    def operators() -> Any:
        before, plan.slower = plan.slower, off
        try:
            return run()
        finally:
            plan.slower = before

    return operators


def _as_graph(way: str, model: LoadedModel) -> Callable[[], Any]:
    """A function that runs the model at its shape as a CUDA graph. Raises NoGraphError."""
    if way == GRAPH:
        graph = ForwardGraph(lambda *_: model.run(), model.inputs(), [])
        return lambda: graph(*model.inputs())
    plan = plan_of(model)
    record_graph(model)

    def run() -> Any:
        plan.as_graph = True
        try:
            return model.run()
        finally:
            plan.as_graph = False

    return run
