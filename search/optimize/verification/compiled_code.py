"""Which kernels are worth their place in compiled code. There the compiler fuses the operators that a kernel
stands for, so that a kernel has to be faster than the compiler's own code, not than eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from evaluators.base.cause import first_line
from search.optimize.models.source import LoadedModel
from search.optimize.verification.blocks import WayPair, speedup_in_turn
from search.optimize.verification.plans import plan_of, watched


def over_compiled(
    models: Sequence[LoadedModel], turns: int, say: Callable[[str], None]
) -> dict[str, tuple[float, float, float]]:
    """How many times as fast as the operators that it stands for, compiled, each kernel is that is on, with
    its 95 % interval, by its name: both in compiled code, on the inputs of its first call in the forward, the
    mean of all shapes by their weights. `models`: one at each shape, with kernels. A kernel that the compiler
    cannot call, or whose operators it cannot compile, has no figure; the reason is said."""
    import torch

    calls = [_first_calls(each) for each in models]
    found = {}
    for name, kernel in plan_of(models[0]).kernels.items():
        pairs = zip(models, calls, strict=True)
        own = [(each.weight, inputs[name]) for each, inputs in pairs if name in inputs]
        if not kernel.on or not own:
            continue
        torch._dynamo.reset()  # each is compiled anew, however many there are
        try:
            found[name] = _speedup(kernel, own, models[0].device, turns)
        except Exception as error:  # of the compiler, or of what it has made
            say(f"{name}: not compared with compiled code: {type(error).__name__}: {first_line(error)}")
    torch._dynamo.reset()
    return found


def _speedup(
    kernel: Any, cases: Sequence[tuple[float, Sequence[Any]]], device: str, turns: int
) -> tuple[float, float, float]:
    """Over its operators. Raises whatever the compiler raises."""
    import torch

    def operators(*inputs: Any) -> Any:
        return kernel.reference(*inputs)

    def called(*inputs: Any) -> Any:
        return kernel.operator(*inputs)

    dynamic = False if len(cases) > 1 else None
    ours, theirs = (torch.compile(each, dynamic=dynamic) for each in (called, operators))
    with torch.no_grad():
        return speedup_in_turn(
            [
                WayPair(weight=weight, ours=partial(ours, *inputs), theirs=partial(theirs, *inputs))
                for weight, inputs in cases
            ],
            device,
            turns,
        )


def _first_calls(model: LoadedModel) -> dict[str, tuple[Any, ...]]:
    """The inputs of each kernel's first call in a forward, by its name."""
    found: dict[str, tuple[Any, ...]] = {}
    with watched(plan_of(model), lambda name, inputs, _: found.setdefault(name, inputs)):
        model.run()
    return found
