"""Checks on the compiled code, before anything runs."""

from __future__ import annotations

from collections.abc import Callable

from evaluators.profiling import occupancy
from evaluators.profiling.evidence import (
    LOW_OCCUPANCY,
    STATIC_SHARE,
    TENSOR_TO_SCALAR,
    Check,
    CheckEvidence,
    worst,
)
from evaluators.profiling.facts import HALF, CompiledFunction, ProfileFacts

SPILL_INSTRUCTIONS = 8
SCALAR_INSTRUCTIONS = 8
SHOWN_LOOPS = 3


def compiled(check: Callable[[CompiledFunction, ProfileFacts], CheckEvidence | None]) -> Check:
    """The check on each function of the binary."""

    def on_all(facts: ProfileFacts) -> CheckEvidence | None:
        assert facts.static is not None
        found = [
            CheckEvidence(text=evidence.text, share=evidence.share, kernel=each.name)
            for each in facts.static.functions
            if (evidence := check(each, facts)) is not None
        ]
        return worst(found)

    return on_all


def spills(function: CompiledFunction, _: ProfileFacts) -> CheckEvidence | None:
    """Many loads and stores of local memory."""
    spilled = function.spill_loads + function.spill_stores
    if spilled < SPILL_INSTRUCTIONS:
        return None
    text = (
        f"{function.spill_loads} loads and {function.spill_stores} stores of local memory in the code; "
        f"{function.registers} registers and a stack of {function.stack_bytes} bytes per thread"
    )
    return CheckEvidence(text=text, share=STATIC_SHARE)


def no_tensor_code(facts: ProfileFacts) -> CheckEvidence | None:
    """Products in half precision without a tensor-core instruction."""
    if not (facts.task.operations and facts.task.dtype in HALF):
        return None
    return _only_scalar_code(facts, f"products in {facts.task.dtype}")


def no_tf32_code(facts: ProfileFacts) -> CheckEvidence | None:
    """Products whose factors may be rounded, without a tensor-core instruction."""
    if not (facts.task.operations and facts.task.lower):
        return None
    return _only_scalar_code(facts, f"factors may be rounded to {', '.join(facts.task.lower)}")


def _only_scalar_code(facts: ProfileFacts, why: str) -> CheckEvidence | None:
    """That no function has a tensor-core instruction, though one multiplies."""
    assert facts.static is not None
    if any(each.tensor for each in facts.static.functions):
        return None
    most = max(facts.static.functions, key=lambda each: each.scalar_math, default=None)
    if most is None or most.scalar_math < SCALAR_INSTRUCTIONS:
        return None
    text = (
        f"{why}, but the code has no tensor-core instruction "
        f"and {most.scalar_math} scalar multiplications and additions"
    )
    return CheckEvidence(text=text, share=1 - 1 / TENSOR_TO_SCALAR, kernel=most.name)


def lone_atomics(function: CompiledFunction, _: ProfileFacts) -> CheckEvidence | None:
    """Atomic operations by threads that do not combine their values first."""
    if not function.atomics or function.combines:
        return None
    text = (
        f"{function.atomics} atomic operation{'' if function.atomics == 1 else 's'} on global memory "
        "in the code, and no shuffle or barrier by which threads would combine their values first"
    )
    return CheckEvidence(text=text, share=STATIC_SHARE)


def many_registers(function: CompiledFunction, facts: ProfileFacts) -> CheckEvidence | None:
    """Few warps fit because of their registers, in code without tensor cores."""
    share = occupancy.register_share(facts.capability, function.registers)
    if share > LOW_OCCUPANCY or function.tensor:
        return None
    text = f"{function.registers} registers per thread limit the occupancy to {share:.1%}"
    return CheckEvidence(text=text, share=STATIC_SHARE)


def has_tensor_code(facts: ProfileFacts) -> bool:
    """Kernels for tensor cores use many registers on purpose."""
    return facts.static is not None and any(each.tensor for each in facts.static.functions)


def scalar_loops(facts: ProfileFacts) -> CheckEvidence | None:
    """Loops of a C++ kernel that were not vectorised."""
    assert facts.static is not None
    loops = facts.static.scalar_loops
    if not loops:
        return None
    shown = "; ".join(f"line {each.line}: {each.reason}" for each in loops[:SHOWN_LOOPS])
    more = f"; and {len(loops) - SHOWN_LOOPS} more" if len(loops) > SHOWN_LOOPS else ""
    vectorised = len(facts.static.vector_loops)
    total = len(loops) + vectorised
    return CheckEvidence(
        text=f"{len(loops)} of {total} loops are not vectorised ({shown}{more})",
        share=STATIC_SHARE * len(loops) / total,
    )
