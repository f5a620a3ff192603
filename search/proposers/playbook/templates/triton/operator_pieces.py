"""Triton code that the operator templates share: functions of formulas, places, the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search.proposers.playbook.formulas import INTEGER_FUNCTIONS
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.operator_pieces import (
    found_signature,
    kept,
    layout,
    remembered,
    signatures,
)
from search.proposers.playbook.templates.scaffold import kernel_file
from search.proposers.playbook.templates.triton.pieces import IMPORTS, module
from search.proposers.playbook.workload import Signature, Workload

KNOWN = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""PyTorch's names of the supported types. Triton passes an operator's numbers as float32, so float64 kernels
would not be exact."""
COMPUTE: Mapping[str, str] = {"float32": "tl.float32", "int64": "tl.int64"}

HELPERS: Mapping[str, str] = {
    "greater": """
@triton.jit
def greater(a, b):
    return tl.where((a != a) | (a > b), a, b)
""",
    "smaller": """
@triton.jit
def smaller(a, b):
    return tl.where((a != a) | (a < b), a, b)
""",
    "infinite": """
@triton.jit
def infinite(a):
    return tl.abs(a) == float("inf")
""",
    "quotient": """
@triton.jit
def quotient(a, b):
    return tl.div_rn(a, b)
""",
    "remainder_of": """
@triton.jit
def remainder_of(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "floored": """
@triton.jit
def floored(a, b):
    ratio = tl.div_rn(a, b)
    whole = tl.floor((a - remainder_of(a, b)) / b + 0.5)
    return tl.where(b == 0, ratio, tl.where(whole == 0, libdevice.copysign(0.0 * a, ratio), whole))
""",
}
"""The functions of formulas that Triton lacks. A function comes after those it calls."""
PLACES = '''
@triton.jit
def places(index, sizes, strides, DIMS: tl.constexpr):
    """The positions of the elements with these indices."""
    at = index * 0
    for d in tl.static_range(DIMS - 1):
        at += index % sizes[DIMS - 1 - d] * strides[DIMS - 1 - d]
        index = index // sizes[DIMS - 1 - d]
    return at + index * strides[0]
'''
EXTENT = '''
def is_wide(dims):
    """Whether positions exceed 32 bits."""
    return any(sum((each[0] - 1) * each[n] for each in dims) >= 2**31 for n in range(1, len(dims[0])))
'''


def triton_helpers(texts: Sequence[str]) -> str:
    """The definitions of the functions that these texts call."""
    body, found = " ".join(texts), []
    for name in reversed(list(HELPERS)):
        if f"{name}(" in body:
            found.append(HELPERS[name].strip("\n"))
            body += HELPERS[name]
    return module(*reversed(found))


def can_compute(signature: Signature, calls: set[str]) -> bool:
    """Whether Triton has these functions for the type of the computation."""
    return signature.compute == "float32" or calls <= set(INTEGER_FUNCTIONS)


def known_signatures(workload: Workload, calls: set[str]) -> list[Signature]:
    """The workload's signatures for which Triton has these functions of formulas."""
    return [each for each in kept(workload, KNOWN) if can_compute(each, calls)]


def operator_kernel(
    *,
    summary: str,
    workload: Workload,
    knobs: Knobs,
    chosen: Sequence[Signature],
    functions: Sequence[str],
    helpers: Sequence[str],
    plan: str,
    forward: str,
    inputs: Sequence[str],
) -> str:
    """A kernel in Triton for all calls of an operator.

    `functions` are the template's Triton functions. `plan` is the Python function that computes the layout,
    and `helpers` are the functions it calls. `forward` is the body of the model's method after the line that
    sets `compute` and `dtypes`.
    """
    results = [
        (each, f"({COMPUTE[each.compute]}, ({''.join(f'torch.{name}, ' for name in each.outputs)}))")
        for each in chosen
    ]
    code = module(
        PLACES,
        triton_helpers(functions),
        *functions,
        layout(knobs, *helpers),
        EXTENT if knobs["narrow"] else "",
        signatures(workload, results),
        remembered(knobs) + plan.strip(),
    )
    imports = [*IMPORTS, *(f"import {name}" for name in ("functools", "math") if f"{name}." in code)]
    if "libdevice." in code:
        imports.append("from triton.language.extra import libdevice")
    return kernel_file(
        summary=summary,
        language="triton",
        workload=workload,
        knobs=knobs,
        imports=imports,
        code=code,
        inputs=inputs,
        forward=found_signature(workload, "compute, dtypes") + "\n" + forward.strip("\n"),
    )
