"""Element functions in C++ without calls and branches, which compilers turn into vectors."""

from __future__ import annotations

import re

from search.proposers.playbook.formulas import called_in
from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import texts_of
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

KNOWN = ("exp", "tanh", "erf")
SOURCE = """
static inline int32_t bits_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// 2^n * exp(r) with |r| <= ln(2) / 2, exp(r) by its series; 0 below 2^-125. The limits are applied to
// integers, because GCC 12 turns a conditional on x into masked vectors. 2^128 overflows: p has a factor 2.
static inline float vector_exp(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: rounds to integers
    const int32_t bits = bits_of(x * 1.44269504f + magic), most = 0x4b400080;
    const int32_t power = bits < most ? bits : most;
    const float n = float_of(power) - magic, r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 720 + r * (1.0f / 5040);
    p = 1.0f / 120 + r * p;
    p = 1.0f / 24 + r * p;
    p = 1.0f / 6 + r * p;
    p = 0.5f + r * p;
    p = 2.0f + (r + r * r * p) * 2;
    const float value = p * float_of((power + (126 - 0x4b400000)) << 23);
    return float_of(bits_of(value) & -int32_t(!(x < -87.33f)));
}

// The polynomials are those of the Cephes library.
static inline float vector_tanh(float x) {
    const float z = x * x, e = vector_exp(2 * std::abs(x));
    float p = 2.06390887954e-2f - 5.70498872745e-3f * z;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float small = x + x * z * p, large = std::copysign(1 - 2 / (e + 1), x);
    return std::abs(x) < 0.625f ? small : large;
}

// Beyond 1 by formula 7.1.26 of Abramowitz and Stegun, to 1.5e-7.
static inline float vector_erf(float x) {
    const float z = x * x, a = std::abs(x), t = 1 / (1 + 0.3275911f * a), e = vector_exp(-z);
    float p = 7.853861353153693e-5f * z - 8.010193625184903e-4f;
    p = p * z + 5.188327685732524e-3f;
    p = p * z - 2.685381193529856e-2f;
    p = p * z + 1.128358514861418e-1f;
    p = p * z - 3.761262582423300e-1f;
    p = p * z + 1.128379165726710f;
    float q = 1.061405429f * t - 1.453152027f;
    q = q * t + 1.421413741f;
    q = q * t - 0.284496736f;
    q = (q * t + 0.254829592f) * t;
    const float large = std::copysign(1 - q * e, x);
    return a < 1 ? x * p : large;
}
"""
"""For float; double keeps the functions of the C library."""
FORWARDED = "\n".join(
    f"static inline double vector_{name}(double x) {{ return std::{name}(x); }}" for name in KNOWN
)


def _calls(workload: Workload, knobs: Knobs) -> bool:
    """Whether the workload calls one of these functions."""
    return not called_in(" ".join(texts_of(workload))).isdisjoint(KNOWN)


MOVE = Move(
    name="vector functions",
    text="Compute exponentials, tanh and erf by polynomials without branches: the loop over elements becomes "
    "vectors, instead of a call of the C library for each element.",
    category=Category.COMPUTE,
    gain=2.5,
    needs={"functions": ("library",), "flags": (pieces.FAST,)},
    applies=_calls,
    sets={"functions": "vectors"},
)


def vectorised(source: str, knobs: Knobs) -> str:
    """A source with these functions instead of the C library's, if the knob selects them."""
    if knobs.get("functions") != "vectors":
        return source
    changed = re.sub(rf"\bstd::({'|'.join(KNOWN)})\(", r"vector_\1(", source)
    return source if changed == source else f"{SOURCE}\n{FORWARDED}\n\n{changed}"
