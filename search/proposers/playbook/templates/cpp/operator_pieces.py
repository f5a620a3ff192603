"""C++ code that the operator templates share: element types, functions of formulas, the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import names_of
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.vector_functions import vectorised
from search.proposers.playbook.templates.operator_pieces import (
    FLOATING,
    INTEGERS,
    found_signature,
    layout,
    remembered,
    signatures,
)
from search.proposers.playbook.templates.scaffold import BUILD, kernel_file
from search.proposers.playbook.workload import Signature, Workload

TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "bf16",
    "bool": "bool",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
}
"""The C++ types of elements by PyTorch's names."""
KNOWN = (*FLOATING, *INTEGERS)
KINDS = "ABDEFHIJKLNPQRSTUV"
"""The names of operand types in C++ templates; C is the type of the computation."""
INCLUDES = ("algorithm", "cmath", "cstdint", "cstring", "limits", "type_traits", "vector")

ELEMENTS = """
struct bf16 {
    uint16_t bits;
    bf16() = default;
    explicit bf16(float value) {
        uint32_t word;
        memcpy(&word, &value, 4);
        bits = value != value ? 0x7fc0 : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    explicit operator float() const {
        uint32_t word = uint32_t(bits) << 16;
        float value;
        memcpy(&value, &word, 4);
        return value;
    }
};

// Converts an element to the type of the computation, and back.
template <class C, class A>
static inline C load(A element) {
    if constexpr (std::is_same_v<A, bf16>)
        return C(float(element));
    else
        return C(element);
}

template <class O, class C>
static inline O store(C value) {
    if constexpr (std::is_same_v<O, bool>)
        return value != 0;
    else if constexpr (std::is_same_v<O, bf16>)
        return bf16(float(value));
    else
        return O(value);
}
"""

FUNCTIONS: Mapping[str, str] = {
    "where": "#define where(condition, yes, no) ((condition) ? C(yes) : C(no))",
    "greater": """
template <class C, class D>
static inline C greater(C a, D other) {
    const C b = C(other);
    return a != a || a > b ? a : b;
}""",
    "smaller": """
template <class C, class D>
static inline C smaller(C a, D other) {
    const C b = C(other);
    return a != a || a < b ? a : b;
}""",
    "infinite": """
template <class C>
static inline bool infinite(C a) {
    return std::is_floating_point_v<C> && (a == C(INFINITY) || a == -C(INFINITY));
}""",
    "quotient": """
template <class C>
static inline C quotient(C a, C b) {
    if constexpr (std::is_integral_v<C>)
        return b == 0 ? C(0) : a / b;
    else
        return a / b;
}""",
    "fraction": """
template <class C>
static inline C fraction(C a, C b) {
    if constexpr (std::is_integral_v<C>)
        return b == 0 ? C(0) : a % b;
    else
        return std::fmod(a, b);
}""",
    "remainder_of": """
template <class C>
static inline C remainder_of(C a, C b) {
    const C rest = fraction(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
    "floored": """
template <class C>
static inline C floored(C a, C b) {
    if (b == 0)
        return quotient(a, b);
    const C whole = (a - remainder_of(a, b)) / b;
    if constexpr (std::is_integral_v<C>)
        return whole;
    else
        return whole == 0 ? std::copysign(C(0), a / b) : std::floor(whole + C(0.5));
}""",
    "power": """
template <class C>
static inline C power(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
        if (b < 0)
            return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
        C result = 1;
        for (; b; b >>= 1, a *= a)
            if (b & 1)
                result *= a;
        return result;
    } else
        return b == 2 ? a * a : std::pow(a, b);
}""",
}
"""The functions that formulas call, by their C++ names. A function comes after those it calls."""


def compute_types(signature: Signature, knobs: Knobs) -> tuple[str, str]:
    """The types in which a kernel computes with elements and in which it adds up results."""
    if signature.compute == "int64":
        return "int64_t", "int64_t"
    if signature.compute == "float64" or knobs["sums"] == "double":
        return "double", "double"
    return "float", "double"


def functions(texts: Sequence[str]) -> str:
    """The definitions of the functions that these texts call."""
    body, found = " ".join(texts), []
    for name in reversed(list(FUNCTIONS)):
        if f"{name}(" in body:
            found.append(FUNCTIONS[name].strip("\n"))
            body += FUNCTIONS[name]
    return "\n\n".join(reversed(found))


def operator_kernel(
    *,
    summary: str,
    workload: Workload,
    knobs: Knobs,
    source: str,
    chosen: Sequence[Signature],
    plan: str,
    forward: str,
    pointers: int,
    helpers: Sequence[str] = (),
) -> str:
    """A kernel in C++ for all calls of an operator.

    `source` defines for each chosen signature a function `run_<place>(tensors..., layout, scalars, threads)`
    with `pointers` tensors. `plan` is the Python function that computes the layout, and `helpers` are the
    functions it calls. `forward` is the body of the model's method after the line that sets `run` and
    `dtypes`.
    """
    text = "\n".join(f"#include <{name}>" for name in INCLUDES) + "\n\n" + vectorised(source, knobs).strip()
    results = [
        (each, f"(LIBRARY.run_{place}, ({''.join(f'torch.{name}, ' for name in each.outputs)}))")
        for place, each in enumerate(chosen)
    ]
    code = f'''{BUILD}

SOURCE = r"""
{text}
"""
LIBRARY = build(SOURCE, "-std=c++17 {pieces.flags(knobs)}")
for place in range({len(chosen)}):
    getattr(LIBRARY, f"run_{{place}}").argtypes = [ctypes.c_void_p] * {pointers + 2} + [ctypes.c_int]
{signatures(workload, results)}


{layout(knobs, *helpers)}

{remembered(knobs)}{plan.strip()}


{remembered(knobs)}def doubles(*values):
    """Numbers as an array of C++."""
    return (ctypes.c_double * len(values))(*values)
'''
    imports = ["ctypes", "functools", "hashlib", "math", "os", "subprocess", "tempfile"]
    return kernel_file(
        summary=summary,
        language="cpp",
        workload=workload,
        knobs=knobs,
        imports=[f"import {name}" for name in imports if f"{name}." in code],
        code=code,
        inputs=names_of(workload),
        forward=found_signature(workload, "run, dtypes") + "\n" + forward.strip("\n"),
    )
