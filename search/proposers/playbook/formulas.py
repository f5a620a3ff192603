"""The formulas of element-wise operators: one text for C++ and Triton.

A formula's operands are `a`, `b`, `c`: the operator's tensors in the order of its schema, converted to the
type of the computation. A formula may call the functions in FUNCTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "where": ("where", "tl.where"),
    "greater": ("greater", "greater"),
    "smaller": ("smaller", "smaller"),
    "quotient": ("quotient", "quotient"),
    "floored": ("floored", "floored"),
    "remainder": ("remainder_of", "remainder_of"),
    "infinite": ("infinite", "infinite"),
    "fmod": ("fraction", "libdevice.fmod"),
    "power": ("power", "libdevice.pow"),
    "round": ("std::rint", "libdevice.rint"),
    "abs": ("std::abs", "tl.abs"),
    **{
        name: (f"std::{name}", f"tl.{name}")
        for name in ("exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "erf", "floor", "ceil")
    },
    **{
        name: (f"std::{name}", f"libdevice.{name}")
        for name in (
            *("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2"),
            *("expm1", "log10", "log1p", "erfc", "trunc", "copysign", "hypot"),
        )
    },
}
"""By name in formulas the names in C++ and in Triton. `greater` and `smaller` propagate NaN; `quotient`,
`floored` and `remainder` are PyTorch's divisions."""
INTEGER_FUNCTIONS = ("where", "greater", "smaller", "abs", "infinite")
"""The functions that Triton also has for integers; C++ has all of them."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A text with what its names stand for.

    Attributes:
        text: An expression over operands, scalars and steps.
        scalars: By name a Python expression over the reference's attributes and the arguments of `forward`.
        steps: By name a text over earlier steps, operands and scalars.
    """

    text: str
    scalars: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """All texts."""
        return [*self.steps.values(), self.text]


def in_language(text: str, language: int) -> str:
    """A text in C++ (0) or Triton (1)."""
    named = re.sub(r"[a-z]\w*(?=\()", lambda found: FUNCTIONS[found[0]][language], text)
    return re.sub(r"\bINF\b", INFINITY[language], named)


INFINITY = ("INFINITY", 'float("inf")')
"""A formula's `INF` in each language."""
OPERANDS = "abcdefghklopqvwxyz"
"""The names of tensors in a formula, in order."""


def called_in(text: str) -> set[str]:
    """The functions that a text calls."""
    return set(re.findall(r"[a-z]\w*(?=\()", text))


def _of(text: str, **scalars: str) -> Formula:
    return Formula(text=text, scalars=scalars)


def _given(argument: str) -> str:
    """An expression for whether an optional argument is given."""
    return f"{argument} is not None"


_ABOVE = "where(s2 != 0, greater(a, s0), a)"
_CLAMPED = f"where(s3 != 0, smaller({_ABOVE}, s1), {_ABOVE})"
_HARD = "smaller(greater(a + 3, 0), 6)"
_TANH = "0.5 * a * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))"
_ERF = "0.5 * a * (1 + erf(a * 0.7071067811865476))"
GELUS: Mapping[str, Formula] = {"none": _of(_ERF), "tanh": _of(_TANH)}
"""The variants of `gelu` by the argument `approximate`."""
_MODES = "where(s0 == 0, quotient(a, b), where(s0 == 1, trunc(quotient(a, b)), floored(a, b)))"
_MODE = "{'trunc': 1, 'floor': 2}.get(self.rounding_mode_, 0)"

UNARY: Mapping[str, Formula] = {
    **{
        name: _of(f"{name}(a)")
        for name in FUNCTIONS
        if name not in ("where", "greater", "smaller", "quotient", "floored", "remainder")
        and name not in ("infinite", "fmod", "power", "atan2", "copysign", "hypot")
    },
    "frac": _of("a - trunc(a)"),
    "neg": _of("-a"),
    "reciprocal": _of("1 / a"),
    "rsqrt": _of("1 / sqrt(a)"),
    "sign": _of("where(a > 0, 1, where(a < 0, -1, 0))"),
    "sgn": _of("where(a > 0, 1, where(a < 0, -1, 0))"),
    "isnan": _of("a != a"),
    "isinf": _of("infinite(a)"),
    "isposinf": _of("infinite(a) & (a > 0)"),
    "isneginf": _of("infinite(a) & (a < 0)"),
    "logical_not": _of("a == 0"),
    "bitwise_not": _of("~a"),
    "deg2rad": _of("a * 0.017453292519943295"),
    "rad2deg": _of("a * 57.29577951308232"),
    "relu": _of("where(a <= 0, 0, a)"),
    "sigmoid": _of("1 / (1 + exp(-a))"),
    "silu": _of("a / (1 + exp(-a))"),
    "mish": _of("a * tanh(where(a > 20, a, log1p(exp(a))))"),
    "gelu": _of(f"where(s0 != 0, {_TANH}, {_ERF})", s0="self.approximate_ == 'tanh'"),
    "elu": _of(
        "where(a > 0, a * s1, s0 * s1 * expm1(a * s2))",
        s0="self.alpha_",
        s1="self.scale_",
        s2="self.input_scale_",
    ),
    "celu": _of("where(a > 0, a, s0 * expm1(a / s0))", s0="self.alpha_"),
    "leaky_relu": _of("where(a > 0, a, a * s0)", s0="self.negative_slope_"),
    "hardtanh": _of("smaller(greater(a, s0), s1)", s0="self.min_val_", s1="self.max_val_"),
    "hardsigmoid": _of(f"{_HARD} / 6"),
    "hardswish": _of(f"a * {_HARD} / 6"),
    "hardshrink": _of("where((a >= -s0) & (a <= s0), 0, a)", s0="self.lambd_"),
    "softshrink": _of("where(a > s0, a - s0, where(a < -s0, a + s0, a * 0))", s0="self.lambd_"),
    "softplus": _of("where(a * s0 > s1, a, log1p(exp(a * s0)) / s0)", s0="self.beta_", s1="self.threshold_"),
    "threshold": _of("where(a <= s0, s1, a)", s0="self.threshold_", s1="self.value_"),
    "clamp": _of(
        _CLAMPED,
        s0="self.min_ or 0",
        s1="self.max_ or 0",
        s2=_given("self.min_"),
        s3=_given("self.max_"),
    ),
    "clamp_min": _of("greater(a, s0)", s0="self.min_"),
    "clamp_max": _of("smaller(a, s0)", s0="self.max_"),
}
"""Operators of one tensor, by name; their overload is `default`."""

BINARY: Mapping[str, Formula] = {
    "add": _of("a + s0 * b", s0="self.alpha_"),
    "sub": _of("a - s0 * b", s0="self.alpha_"),
    "rsub": _of("b - s0 * a", s0="self.alpha_"),
    "mul": _of("a * b"),
    "div": _of("quotient(a, b)"),
    "floor_divide": _of("floored(a, b)"),
    "remainder": _of("remainder(a, b)"),
    "fmod": _of("fmod(a, b)"),
    "maximum": _of("greater(a, b)"),
    "minimum": _of("smaller(a, b)"),
    "fmax": _of("where(a != a, b, where(b != b, a, greater(a, b)))"),
    "fmin": _of("where(a != a, b, where(b != b, a, smaller(a, b)))"),
    "atan2": _of("atan2(a, b)"),
    "copysign": _of("copysign(a, b)"),
    "hypot": _of("hypot(a, b)"),
    "xlogy": _of("where(b != b, b, where(a == 0, 0, a * log(b)))"),
    "heaviside": _of("where(a == 0, b, where(a > 0, 1, where(a != a, a, 0)))"),
    **{
        name: _of(f"a {symbol} b")
        for name, symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()
    },
    "logical_and": _of("(a != 0) & (b != 0)"),
    "logical_or": _of("(a != 0) | (b != 0)"),
    "logical_xor": _of("(a != 0) != (b != 0)"),
    "bitwise_and": _of("a & b"),
    "bitwise_or": _of("a | b"),
    "bitwise_xor": _of("a ^ b"),
}
"""Operators of two tensors (overload `Tensor` or `default`) or of a tensor and a number (`Scalar`)."""

OTHERS: Mapping[str, Formula] = {
    "pow.Tensor_Tensor": _of("power(a, b)"),
    "pow.Tensor_Scalar": _of("power(a, s0)", s0="self.exponent_"),
    "div.Tensor_mode": _of(_MODES, s0=_MODE),
    "clamp_min.Tensor": _of("greater(a, b)"),
    "clamp_max.Tensor": _of("smaller(a, b)"),
    "clamp.Tensor": _of(_CLAMPED.replace("s0", "b").replace("s1", "c"), s2=_given("min"), s3=_given("max")),
    "addcmul.default": _of("a + s0 * b * c", s0="self.value_"),
    "addcdiv.default": _of("a + s0 * b / c", s0="self.value_"),
    "lerp.Tensor": _of("where(abs(c) < 0.5, a + c * (b - a), b - (b - a) * (1 - c))"),
    "lerp.Scalar": _of("where(abs(s0) < 0.5, a + s0 * (b - a), b - (b - a) * (1 - s0))", s0="self.weight_"),
    "where.self": _of("where(a != 0, b, c)"),
    "masked_fill.Scalar": _of("where(b != 0, s0, a)", s0="self.value_"),
    "masked_fill.Tensor": _of("where(b != 0, c, a)"),
}
"""Further operators by name and overload."""


def formula_of(operator: str) -> Formula | None:
    """The formula of an operator such as `aten.add.Tensor` or, in place, `aten.add_.Tensor`; None if
    unknown."""
    namespace, name, overload = operator.split(".")
    name = name.removesuffix("_")
    if namespace != "aten":
        return None
    if f"{name}.{overload}" in OTHERS:
        return OTHERS[f"{name}.{overload}"]
    if overload == "default" and name in UNARY:
        return UNARY[name]
    if name not in BINARY or overload not in ("Tensor", "default", "Scalar"):
        return None
    found = BINARY[name]
    if overload == "Scalar":
        return Formula(text=found.text, scalars={**found.scalars, "b": "self.other_"})
    return found
