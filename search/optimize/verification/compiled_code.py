"""Measures what each kernel is worth in compiled code. There the compiler fuses the operators that a kernel
replaces, so a kernel has to beat the compiler's code, not eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.models.source import LoadedModel
from search.optimize.verification.forward_plan import plan_of, watch_kernels
from search.optimize.verification.interleaved import TimedPair, interleaved_speedup


def compiled_speedups(
    models: Sequence[LoadedModel], turns: int, say: Callable[[str], None]
) -> dict[str, tuple[float, float, float]]:
    """For each kernel that is on: its speedup over the operators it replaces, both in compiled code, with its
    95 % interval, from the weighted mean time of all shapes.

    `models`: the model with kernels, once per input shape. The inputs are those of the kernel's first call in
    the forward. A kernel that the compiler cannot call, or whose operators it cannot compile, is left out,
    and `say` gets the reason.
    """
    import torch

    calls = [_first_calls(each) for each in models]
    found = {}
    for name, kernel in plan_of(models[0]).kernels.items():
        pairs = zip(models, calls, strict=True)
        own = [(each.weight, inputs[name]) for each, inputs in pairs if name in inputs]
        if not kernel.on or not own:
            continue
        say(f"kernel in compiled code: {name}")
        torch._dynamo.reset()  # compile each kernel anew, however many there are
        try:
            found[name] = _speedup(kernel, own, models[0].device, turns)
        except Exception as error:  # from the compiler, or from the code it made
            say(f"{name}: not compared with compiled code: {type(error).__name__}: {first_line(error)}")
    torch._dynamo.reset()
    return found


def _speedup(
    kernel: Any, cases: Sequence[tuple[float, Sequence[Any]]], device: str, turns: int
) -> tuple[float, float, float]:
    """The kernel's speedup over its operators. Raises what the compiler raises."""
    import torch

    def operators(*inputs: Any) -> Any:
        return kernel.reference(*inputs)

    def called(*inputs: Any) -> Any:
        return kernel.operator(*inputs)

    dynamic = False if len(cases) > 1 else None
    ours, theirs = (torch.compile(each, dynamic=dynamic) for each in (called, operators))
    pairs = [
        TimedPair(weight=weight, ours=partial(ours, *inputs), theirs=partial(theirs, *inputs))
        for weight, inputs in cases
    ]
    with torch.no_grad():
        return interleaved_speedup(pairs, device, turns)


def _first_calls(model: LoadedModel) -> dict[str, tuple[Any, ...]]:
    """The inputs of each kernel's first call in a forward, by the kernel's name."""
    found: dict[str, tuple[Any, ...]] = {}
    with watch_kernels(plan_of(model), lambda name, inputs, _: found.setdefault(name, inputs)):
        model.run()
    return found
