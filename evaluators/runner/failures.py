"""What a runner reports about a candidate that failed."""

from __future__ import annotations

import traceback
import types
from typing import Any

from evaluators.base.compiler_messages import compiler_messages, without_folders
from evaluators.reference.gradients import NotDifferentiable
from evaluators.runner.messages import Failed, Import, Order, Phase, RunCalls

ERROR_CHARACTERS = 6000
BUILD_FAILED = "Error building extension"
COMPILERS = ("triton.", "helion.", "cutlass.", "cuda.tile.", "tilelang.")
"""The packages of languages whose errors are those of a compiler."""
COMPILER = "torch._inductor"
"""The package of torch's compiler."""


class WrongOutput(Exception):
    """The output's form differs from the reference's."""


class Declined(Exception):
    """The candidate's `supports` rejects this case."""


def declines(candidate: types.ModuleType, arguments: list[Any]) -> bool:
    """Whether the candidate has a function `supports` that rejects these arguments."""
    supports = getattr(candidate, "supports", None)
    return supports is not None and not supports(*arguments)


def failure(order: Order, error: BaseException) -> Failed:
    """The report on an order that raised this error."""
    phase = Phase.IMPORT if isinstance(order, Import) else Phase.RUN
    if type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error):
        phase = Phase.DEVICE
    if phase is Phase.RUN and isinstance(order, RunCalls) and type(error).__module__.startswith(COMPILERS):
        phase = Phase.IMPORT  # they compile at the first call
    text = build_failure(error) or without_folders("".join(traceback.format_exception(error)))
    if isinstance(error, WrongOutput | NotDifferentiable):
        phase, text = Phase.OUTPUT, str(error)
    elif isinstance(error, Declined):
        phase, text = Phase.DECLINED, str(error)
    elif len(text) > ERROR_CHARACTERS:
        text = text[: ERROR_CHARACTERS // 3] + "\n[…]\n" + text[-2 * ERROR_CHARACTERS // 3 :]
    return Failed(phase=phase, error=text, compiler=_lacks_compiler(error))


def build_failure(error: BaseException) -> str:
    """What the compilers say about an extension that does not build; "" for another error."""
    messages = (str(each) for each in _chain(error))
    output = next((each for each in messages if each.startswith(BUILD_FAILED)), "")
    found = compiler_messages(output, ERROR_CHARACTERS)
    return f"{output.partition(': [')[0]}:\n{found}" if found else ""


def _lacks_compiler(error: BaseException) -> bool:
    """Whether the error, or one that caused it, names a module of torch's compiler."""
    for each in _chain(error):
        module = each.name if isinstance(each, ImportError) else type(each).__module__
        if isinstance(each, AttributeError):
            module = getattr(each.obj, "__name__", "")
        if str(module).startswith(COMPILER):
            return True
    return False


def _chain(error: BaseException) -> list[BaseException]:
    """The error and those that caused it."""
    chain: list[BaseException] = [error]
    for each in chain:
        chain += [
            it
            for it in (each.__cause__, each.__context__)
            if it is not None and all(it is not known for known in chain)
        ]
    return chain
