"""Which calls of operators can be cases of a problem, and which of many are chosen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evaluators.records.problem import DTYPES
from evaluators.suites.random_operators import is_known, is_random, numbers_of
from evaluators.suites.trace_inputs import given_to, operator_of
from evaluators.suites.trace_recording import PLAIN, kind_of
from evaluators.suites.traced_call import Tensor, TracedCall, tensors_of

MOST_CASES = 6
"""Of a problem, at a type."""
RANDOM = "draws random numbers, and nothing is known to hold of them"
ENDLESS = (
    "aten.polygamma",
    "aten.special_zeta",
    "aten.linalg_matrix_exp",
    "aten.special_laguerre_polynomial_l",
    "aten.special_legendre_polynomial_p",
)
"""Operators that take as long as a number in their input is large, on some of our distributions for ever: the
two polynomials on a GPU alone."""
UNSET = ("aten.nll_loss2d_forward",)
"""Operators that without a reduction do not write their second result, the total of the weights."""
STORAGE = "reads what lies around a tensor in memory"
SIZED = ("aten.index.Tensor",)
"""Operators whose results have a size that depends on numbers only where an index is a mask."""
FEWEST = 2
"""Random numbers of a call: of one alone, too many calls are needed to see how it is distributed."""


@dataclass(frozen=True, kw_only=True)
class Operators:
    """The calls of each operator, by its name, and why others were left out: how often, by the reason."""

    calls: Mapping[str, Sequence[TracedCall]]
    left_out: Mapping[str, int] = field(default_factory=dict)


def dtype_of(call: TracedCall) -> str:
    """The floating type of its tensors, the narrowest where there are several; float32 where there is none.
    Raises ValueError where there is one that no problem has."""
    found = floating_types(call) or {"float32"}
    if strange := found - {*DTYPES}:
        raise ValueError(f"tensors of {min(strange)}")
    return max(found, key=DTYPES.index)


def floating_types(call: TracedCall) -> set[str]:
    """Of its tensors."""
    floating = ("float", "bfloat", "complex")
    return {each.dtype for each in all_tensors(call) if each.dtype.startswith(floating)}


def fit(calls: Iterable[TracedCall]) -> Operators:
    """The calls that can be cases, by operator, at most MOST_CASES each. Views and creation compute
    nothing."""
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
    """Those with tensors of the same types."""
    found: dict[tuple[str, ...], list[TracedCall]] = defaultdict(list)
    for call in calls:
        found[tuple(sorted({each.dtype for each in all_tensors(call)}))].append(call)
    return found.values()


def _spread(calls: list[TracedCall]) -> list[TracedCall]:
    """MOST_CASES of them at most, the largest first: the one that is made most, and, by their size, some from
    the largest to the smallest."""
    by_size = sorted(calls, key=bytes_of, reverse=True)
    if len(calls) <= MOST_CASES:
        return by_size
    chosen = [by_size[round(n * (len(calls) - 1) / (MOST_CASES - 2))] for n in range(MOST_CASES - 1)]
    rest = [each for each in by_size if each not in chosen]
    return sorted([*chosen, max(rest, key=lambda each: each.count)], key=bytes_of, reverse=True)


def _why_not(call: TracedCall) -> str:
    """Why a call cannot be a case; "" where it can."""
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
        return "takes for ever on large numbers"
    if packet in UNSET and given_to(call)["reduction"] == 0:
        return "leaves a result as the memory was"
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
        return f"draws less than {FEWEST} numbers"
    return ""


def _of_numbers(call: TracedCall) -> str:
    """Why a call has no result of a size that is known from its arguments' sizes; "" where it has."""
    import torch

    tags = operator_of(call.operator).tags
    if torch.Tag.data_dependent_output in tags:
        return "returns a number"
    sized = call.operator in SIZED and not any(each.is_mask for each in tensors_of(call.arguments[1]))
    if torch.Tag.dynamic_output_shape in tags and not sized:
        return "the size of its result depends on numbers"
    return ""


def all_tensors(call: TracedCall) -> list[Tensor]:
    """Those of its arguments."""
    return [each for value in (*call.arguments, *call.keywords.values()) for each in tensors_of(value)]


def bytes_of(call: TracedCall) -> int:
    """Of its tensors."""
    sizes = {"64": 8, "32": 4, "16": 2}
    total = 0
    for each in all_tensors(call):
        elements = 1
        for size in each.shape:
            elements *= size
        total += elements * sizes.get(each.dtype[-2:], 1)
    return total
