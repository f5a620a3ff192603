"""Selects the calls of operators that become cases of a problem."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evaluators.records.problem import DTYPES
from evaluators.suites.random_operators import is_known, is_random, numbers_of
from evaluators.suites.traced.call import Tensor, TracedCall, tensors_of
from evaluators.suites.traced.inputs import arguments_by_name, operator_of
from evaluators.suites.traced.recording import PLAIN, kind_of

MOST_CASES = 6
"""Cases per operator and type."""
RANDOM = "draws random numbers that no check is known for"
ENDLESS = (
    "aten.polygamma",
    "aten.special_zeta",
    "aten.linalg_matrix_exp",
    "aten.special_laguerre_polynomial_l",
    "aten.special_legendre_polynomial_p",
)
"""Operators whose time grows with the values of their input, without end on some of our distributions; the
two polynomials only on a GPU."""
UNSET = ("aten.nll_loss2d_forward",)
"""Operators that, without a reduction, do not write their second result, the total weight."""
STORAGE = "reads memory outside of its tensors"
SIZED = ("aten.index.Tensor",)
"""Operators whose result size depends on values only if an index is a mask."""
FEWEST = 2
"""Least random numbers per call: with a single one, testing its distribution takes too many calls."""


@dataclass(frozen=True, kw_only=True)
class Operators:
    """The usable calls by operator, and the number of calls left out by reason."""

    calls: Mapping[str, Sequence[TracedCall]]
    left_out: Mapping[str, int] = field(default_factory=dict)


def dtype_of(call: TracedCall) -> str:
    """The floating-point type of its tensors, the narrowest of several; float32 if there is none. Raises
    ValueError for a type that problems do not support."""
    found = floating_types(call) or {"float32"}
    if strange := found - {*DTYPES}:
        raise ValueError(f"tensors of {min(strange)}")
    return max(found, key=DTYPES.index)


def floating_types(call: TracedCall) -> set[str]:
    """The floating-point and complex types of its tensors."""
    floating = ("float", "bfloat", "complex")
    return {each.dtype for each in all_tensors(call) if each.dtype.startswith(floating)}


def fit(calls: Iterable[TracedCall]) -> Operators:
    """The calls that can be cases, by operator, at most MOST_CASES each per type. Views and creation are left
    out, because they compute nothing."""
    kept: dict[str, list[TracedCall]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for call in calls:
        if why := _why_not(call):
            left_out[why] += 1
        else:
            kept[call.operator].append(call)
    chosen = {}
    for operator, found in kept.items():
        chosen[operator] = [each for of_a_type in by_type(found) for each in _spread(of_a_type)]
        if more := len(found) - len(chosen[operator]):
            left_out[f"more than {MOST_CASES} cases of an operator at a type"] += more
    return Operators(calls=chosen, left_out=dict(left_out))


def by_type(calls: Iterable[TracedCall]) -> Iterable[list[TracedCall]]:
    """The calls grouped by the types of their tensors."""
    found: dict[tuple[str, ...], list[TracedCall]] = defaultdict(list)
    for call in calls:
        found[tuple(sorted({each.dtype for each in all_tensors(call)}))].append(call)
    return found.values()


def _spread(calls: list[TracedCall]) -> list[TracedCall]:
    """At most MOST_CASES of the calls, the largest first: evenly spaced by size, plus the most frequent."""
    by_size = sorted(calls, key=bytes_of, reverse=True)
    if len(calls) <= MOST_CASES:
        return by_size
    chosen = [by_size[round(n * (len(calls) - 1) / (MOST_CASES - 2))] for n in range(MOST_CASES - 1)]
    rest = [each for each in by_size if each not in chosen]
    return sorted([*chosen, max(rest, key=lambda each: each.count)], key=bytes_of, reverse=True)


def _why_not(call: TracedCall) -> str:
    """Why a call cannot be a case; "" if it can."""
    try:
        operator_of(call.operator)
    except ValueError:
        return "not in this PyTorch"
    try:
        dtype_of(call)
    except ValueError as error:
        return str(error)
    if is_random(call):
        if not is_known(call):
            return RANDOM
    elif (kind := kind_of(call.operator)) != PLAIN:
        return kind
    packet = call.operator.rpartition(".")[0]
    if packet in ENDLESS:
        return "does not end on large numbers"
    if packet in UNSET and arguments_by_name(call)["reduction"] == 0:
        return "leaves a result uninitialised"
    if "as_strided" in call.operator:
        return STORAGE
    if why := _of_numbers(call):
        return why
    tensors = all_tensors(call)
    if any(0 in each.shape for each in tensors) or not (tensors or is_random(call)):
        return "no elements"
    if any(each.device is not None for each in tensors):
        return "tensors on other devices"
    if is_random(call) and numbers_of(call) < FEWEST:
        return f"draws fewer than {FEWEST} numbers"
    return ""


def _of_numbers(call: TracedCall) -> str:
    """Why the sizes of a call's results do not follow from those of its arguments; "" if they do."""
    import torch

    tags = operator_of(call.operator).tags
    if torch.Tag.data_dependent_output in tags:
        return "returns a number"
    sized = call.operator in SIZED and not any(each.is_mask for each in tensors_of(call.arguments[1]))
    if torch.Tag.dynamic_output_shape in tags and not sized:
        return "the size of its result depends on values"
    return ""


def all_tensors(call: TracedCall) -> list[Tensor]:
    """The tensors in its arguments."""
    return [each for value in (*call.arguments, *call.keywords.values()) for each in tensors_of(value)]


def bytes_of(call: TracedCall) -> int:
    """Bytes of its tensors."""
    sizes = {"64": 8, "32": 4, "16": 2}
    return sum(math.prod(each.shape) * sizes.get(each.dtype[-2:], 1) for each in all_tensors(call))
