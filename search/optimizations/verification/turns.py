"""How long a forward takes, in each way of running the model: readings in turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from evaluators.cause import first_line
from search.optimizations.installation.graphs import Graph
from search.optimizations.model_source import LoadedModel
from search.optimizations.verification.apart import REDUCED, TUNED, WAYS, Task
from search.optimizations.verification.record import GRAPH, OPTIMIZED, OPTIMIZED_GRAPH, Verification

BLOCK_MS = {"cpu": 30.0, "cuda": 20.0}
"""Of the calls between two readings of the clock, at least."""
WARM = 3
RECOMPILED = 8
"""Times a function may be compiled for each shape, as PyTorch has it for one."""


def timed(package: Any, task: Task, compared: Verification, say: Callable[[str], None]) -> Verification:
    """The verification with a session of the ways at all shapes in turn, and why other ways could not be run.
    Kernels that were left out stay off."""
    plain, fast = task.load(task.seed), task.load(task.seed)
    package.load(fast[0].module, list(compared.left_out))
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    failed = dict(compared.failed)
    for way in (each for each in task.ways if each not in failed):
        say(f"{WAYS[way]}: warming up")
        try:
            own = _warm(way, fast if way.startswith(OPTIMIZED) else plain)
            runs |= {(shape, way): run for shape, run in own.items()}
        except Exception as error:  # of the compiler, or of what it has made
            failed[way] = f"{type(error).__name__}: {first_line(error)}"
    calls = {
        each: max(1, math.ceil(BLOCK_MS[task.device] / _block(run, 1, task.device)))
        for each, run in runs.items()
    }
    ms: dict[str, dict[str, list[float]]] = {}
    for shape, way in runs:
        ms.setdefault(shape, {})[way] = []
    order = list(runs)
    shuffled = random.Random(task.seed)
    for turn in range(task.turns):
        shuffled.shuffle(order)
        for shape, way in order:
            ms[shape][way].append(_block(runs[shape, way], calls[shape, way], task.device))
        if turn in (0, task.turns // 2):
            say(f"turn {turn + 1} of {task.turns}")
    shapes = {each.shape: each.weight for each in plain}
    return replace(compared, sessions=[ms], failed=failed, shapes=shapes)


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
        for _ in range(WARM):
            run()
    return runs


def _as_graph(way: str, model: LoadedModel) -> Callable[[], Any]:
    """What runs the model at its shape as a CUDA graph. Raises NoGraphError."""
    if way == GRAPH:
        graph = Graph(lambda *_: model.run(), model.inputs(), [])
        return lambda: graph(*model.inputs())
    plan: Any = type(model.module).plan  # type: ignore[attr-defined]

    def run() -> Any:
        plan.as_graph = True
        try:
            return model.run()
        finally:
            plan.as_graph = False

    run()
    recorded = plan.shape_of(model.inputs()).graphs[model.module]
    if isinstance(recorded, Exception):
        raise recorded
    return run


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
