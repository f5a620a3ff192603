"""Measures what each kernel is worth inside the model, by switching it off.

In the model a kernel finds other data in the caches than when it is timed alone. Where the model waits for
launches, the kernel's work on the CPU counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.models.source import LoadedModel
from search.optimize.verification.forward_plan import plan_of, record_graph
from search.optimize.verification.interleaved import TimedPair, interleaved_speedup


def ablation_speedups(
    models: Sequence[LoadedModel], turns: int, say: Callable[[str], None], *, as_graph: bool
) -> dict[str, tuple[float, float, float]]:
    """For each kernel that is on: the speedup of the forward with the kernel over the forward with the
    operators it replaces, with its 95 % interval. All other kernels stay as they are.

    `models`: the model with kernels, once per input shape; their weighted mean time counts. `as_graph`: time
    both as CUDA graphs. A kernel with which no graph can be recorded is left out, and `say` gets the reason.
    """
    found = {}
    kernels = {name: kernel for name, kernel in plan_of(models[0]).kernels.items() if kernel.on}
    for number, (name, kernel) in enumerate(kernels.items(), 1):
        say(f"kernel {number} of {len(kernels)} in its place: {name}")
        try:
            cases = [_case(each, kernel, as_graph) for each in models]
            found[name] = interleaved_speedup(cases, models[0].device, turns)
        except Exception as error:  # from the graph capture, or from a kernel in it
            say(f"{name}: not compared in its place: {type(error).__name__}: {first_line(error)}")
        finally:
            kernel.on = True
    return found


def _case(model: LoadedModel, kernel: Any, as_graph: bool) -> TimedPair:
    """The model at its shape with and without the kernel. Raises NoGraphError."""

    def way(on: bool) -> Callable[[], Any]:
        def run() -> Any:
            kernel.on = on
            return model.run()

        if not as_graph:
            return run
        kernel.on = on
        return record_graph(model)

    return TimedPair(weight=model.weight, ours=way(True), theirs=way(False))
