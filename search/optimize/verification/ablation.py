"""Which kernels are worth their place in the model. There a kernel finds other things in the caches than when
it is measured alone, and where the model waits for launches, what it does on the CPU counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.models.source import LoadedModel
from search.optimize.verification.blocks import WayPair, speedup_in_turn
from search.optimize.verification.plans import plan_of, recorded


def over_operators(
    models: Sequence[LoadedModel], turns: int, say: Callable[[str], None], *, as_graph: bool
) -> dict[str, tuple[float, float, float]]:
    """How many times as fast the forward is with each kernel that is on as with the operators that it stands
    for in its place, with its 95 % interval, by the kernel's name; all other kernels stay. `models`: one at
    each shape, with kernels, whose mean time counts, by their weights; `as_graph`: both as CUDA graphs. A
    kernel with which no graph can be recorded has no figure; the reason is said."""
    found = {}
    for name, kernel in plan_of(models[0]).kernels.items():
        if not kernel.on:
            continue
        try:
            cases = [_case(each, kernel, as_graph) for each in models]
            found[name] = speedup_in_turn(cases, models[0].device, turns)
        except Exception as error:  # of the recording, or of a kernel in it
            say(f"{name}: not compared in its place: {type(error).__name__}: {first_line(error)}")
        finally:
            kernel.on = True
    return found


def _case(model: LoadedModel, kernel: Any, as_graph: bool) -> WayPair:
    """The model at its shape with the kernel and without. Raises NoGraphError."""

    def way(on: bool) -> Callable[[], Any]:
        def run() -> Any:
            kernel.on = on
            return model.run()

        if not as_graph:
            return run
        kernel.on = on
        graph = recorded(model)
        return lambda: graph(*model.inputs())

    return WayPair(weight=model.weight, ours=way(True), theirs=way(False))
