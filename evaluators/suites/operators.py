"""PyTorch's operators as problems: one per operator, with its calls as cases.

A problem's reference is generated from the operator's schema: tensors are the inputs, other arguments go to
the constructor, and the module global `call` has the arguments in the grammar of traces.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluators.base.nearest import nearest
from evaluators.records.problem import Problem
from evaluators.reference.loading import KEEPS_INTEGERS, KEEPS_TYPES, BadReference, make_problem
from evaluators.suites.case_calls import (
    Operators,
    all_tensors,
    by_type,
    bytes_of,
    dtype_of,
    fit,
    floating_types,
)
from evaluators.suites.facto import facto_calls
from evaluators.suites.informative_calls import is_informative
from evaluators.suites.op_samples import cached_calls, opinfo_calls
from evaluators.suites.out_forms import is_out_form, out_forms
from evaluators.suites.random_operators import is_random
from evaluators.suites.suite import SuiteEntry
from evaluators.suites.traced.call import Device, TracedCall, Value
from evaluators.suites.traced.files import merge_counts, traces
from evaluators.suites.traced.grammar import write_arguments
from evaluators.suites.traced.inputs import keeps_integers, operator_of, takes_tensors

TRACED = "operators/traced"
REFERENCE = '''"""{operator}: {count} calls, in the grammar of traces (docs/guides/operators.md)."""

import torch
from torch import nn

from evaluators.suites.operator_call import call_like, constants_of, tensors_of

OPERATOR = "{operator}"
LEAVES_UNREAD = True
{flags}call = "{call}"


class Model(nn.Module):
    """{schema}"""

    def __init__(self{parameters}):
        super().__init__()
{stored}
    def forward(self{inputs}):
        {before}return {function}({passed})


def get_inputs():
    return tensors_of(OPERATOR, call)


def get_init_inputs():
    return constants_of(OPERATOR, call)


def get_held_out(generator):
    return {{"call": call_like(OPERATOR, call, generator)}}
'''

RANDOM_CHECKS = """

def random_checks(inputs, outputs):
    from evaluators.suites.random_operators import checks_of

    return checks_of(OPERATOR, call, inputs, outputs)
"""
KERNEL = """{source}


from torch.nn import Module as _Module

from evaluators.suites.operator_call import as_aten as _as_aten


class ModelNew(_Module):
    def __init__(self{parameters}):
        super().__init__()
        self._call = _as_aten("{operator}", {function}, [{constants}])

    def forward(self{inputs}):
        return self._call({passed})
"""


class OperatorSuite:
    """A suite of operators: `operators/traced` has the calls in the file that TRACES names;
    `operators/opinfo` the samples of PyTorch's own tests; `operators/opinfo_out` the same with `out=`;
    `operators/facto` the arguments that FACTO generates."""

    def __init__(self, name: str) -> None:
        """Raises ValueError for an unknown name."""
        if name not in SOURCES:
            raise ValueError(f"unknown suite {name}; choose {' or '.join(SOURCES)}")
        self.name = name

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        operators = sorted(SOURCES[self.name]().calls)
        return [SuiteEntry(problem=f"{self.name}/{operator}") for operator in operators]


def load_operator(
    name: str,
    *,
    cases: Sequence[Mapping[str, Any]] | None = None,
    types: Sequence[str] = (),
    most_cases: int | None = None,
    **rules: Any,
) -> Problem:
    """The problem `operators/<suite>/<operator>`, such as `operators/opinfo/aten.addmm.default`.

    Its cases are the suite's calls whose tensors all have one of the `types` (empty: any), at each type the
    `most_cases` largest. Masks and indices next to floating-point tensors may have any type. `rules` are
    arguments of `evaluators.reference.loading.make_problem`. Raises SuiteMissing, and BadReference if the
    suite has no such operator or no such call of it."""
    suite, _, operator = name.rpartition("/")
    if suite not in SOURCES:
        raise BadReference(f"unknown problem {name}; use a name like operators/opinfo/aten.addmm.default")
    found = SOURCES[suite]().calls
    if operator not in found:
        near = nearest(operator, list(found))
        raise BadReference(f"{suite} has no {operator}" + (f"; did you mean {near}?" if near else ""))
    device = rules.get("device", "cpu")
    placed = (_placed(each, device, everything=suite != TRACED) for each in found[operator])
    calls = _chosen(merge_counts(placed), types, most_cases)
    if not calls:
        raise BadReference(f"{name} has no call whose tensors are all {' or '.join(types)}")
    first = max(calls, key=bytes_of)
    if cases is None:
        cases = list(map(case_of, calls, _weights(suite, calls)))
    rules["dtype"] = rules.get("dtype") or dtype_of(first)
    mixed = any(len(floating_types(each)) > 1 for each in calls)
    source = reference_of(operator, first, len(calls), mixed=mixed)
    return make_problem(source, where=name, name=name, cases=cases, **rules)


def _chosen(calls: Sequence[TracedCall], types: Sequence[str], most: int | None) -> list[TracedCall]:
    """The calls with tensors of these types, the `most` largest at each. Raises BadReference for `most` <
    1."""
    if most is not None and most < 1:
        raise BadReference(f"problem.most_cases is {most}; it must be at least 1")
    wanted = [each for each in calls if not types or _types_of(each) <= {*types}]
    return [each for alike in by_type(wanted) for each in sorted(alike, key=bytes_of, reverse=True)[:most]]


def _placed(call: TracedCall, device: str, *, everything: bool) -> TracedCall:
    """The call with this device in place of a GPU among its arguments, or with `everything` in place of any
    device: PyTorch's tests are recorded on a CPU but mean the device under test; traced calls mean the device
    they name."""

    def placed(value: Value) -> Value:
        moves = isinstance(value, Device) and (everything or value.name not in ("cpu", "meta"))
        return Device(device) if moves else value

    keywords = {name: placed(value) for name, value in call.keywords.items()}
    return replace(call, arguments=tuple(map(placed, call.arguments)), keywords=keywords)


def _types_of(call: TracedCall) -> set[str]:
    """The types of its floating-point tensors or, if it has none, of all tensors: next to floating-point
    tensors, others are masks and indices."""
    return floating_types(call) or {each.dtype for each in all_tensors(call)}


def reference_of(operator: str, call: TracedCall, count: int, *, mixed: bool = False) -> str:
    """The source of a reference for an operator with this default call. `mixed`: a call has tensors of
    several floating-point types."""
    schema = operator_of(operator)._schema
    flags = {KEEPS_TYPES: mixed, KEEPS_INTEGERS: keeps_integers(operator)}
    inputs = [each.name for each in schema.arguments if takes_tensors(each)]
    constants = [each.name for each in schema.arguments if not takes_tensors(each)]
    passed = [
        f"{each.name}={place}" if each.kwarg_only else place
        for each in schema.arguments
        for place in [_input(each.name) if takes_tensors(each) else f"self.{each.name}_"]
    ]
    return REFERENCE.format(
        operator=operator,
        function=_in_python(operator),
        before="with torch.no_grad():\n            " if is_out_form(operator) else "",
        count=count,
        flags="".join(f"{name} = True\n" for name, is_so in flags.items() if is_so),
        call=write_arguments(call).replace("\\", "\\\\").replace('"', '\\"'),
        schema=schema,
        parameters="".join(f", {_input(each)}" for each in constants),
        stored="".join(f"        self.{each}_ = {_input(each)}\n" for each in constants),
        inputs="".join(f", {_input(each)}" for each in inputs),
        passed=", ".join(passed),
    ) + (RANDOM_CHECKS if is_random(call) else "")


def kernel_source(operator: str, source: str, function: str) -> str:
    """A kernel for the operator's problem, made from a source that defines a function of the operator's
    arguments. Raises ValueError if this PyTorch has no such operator."""
    arguments = operator_of(operator)._schema.arguments
    constants = [_input(each.name) for each in arguments if not takes_tensors(each)]
    inputs = [_input(each.name) for each in arguments if takes_tensors(each)]
    return KERNEL.format(
        source=source.rstrip(),
        operator=operator,
        function=function,
        parameters="".join(f", {each}" for each in constants),
        constants=", ".join(constants),
        inputs="".join(f", {each}" for each in inputs),
        passed=", ".join(inputs),
    )


def case_of(call: TracedCall, weight: float) -> dict[str, Any]:
    """The fields of a case for this call."""
    sizes = {"call": write_arguments(call)}
    return {"sizes": sizes, "dtype": dtype_of(call), "weight": weight, "droppable": True}


def _weights(suite: str, calls: Sequence[TracedCall]) -> list[float]:
    """The weights of the cases: for traced calls, how often each was made; otherwise 1 for the largest
    informative call at each type, which is timed, and 0 for the others."""
    if suite == TRACED:
        return [float(each.count) for each in calls]
    largest = [_largest(of_a_type) for of_a_type in by_type(calls)]
    return [float(each in largest) for each in calls]


def _largest(calls: Sequence[TracedCall]) -> TracedCall:
    """The largest informative call; the largest of all if none is informative."""
    by_size = sorted(calls, key=bytes_of, reverse=True)
    return next(filter(is_informative, by_size), by_size[0])


def _in_python(operator: str) -> str:
    """A Python expression for the operator; `aten.random_.from` is not valid Python."""
    packet, _, overload = operator.rpartition(".")
    known = f"torch.ops.{packet}"
    return f'getattr({known}, "{overload}")' if keyword.iskeyword(overload) else f"{known}.{overload}"


def _input(name: str) -> str:
    """A valid parameter name: `self` is taken, and `from` is a keyword."""
    return "input" if name == "self" else f"{name}_" if keyword.iskeyword(name) else name


@functools.cache
def _traced() -> Operators:
    return fit(traces().calls)


@functools.cache
def _opinfo() -> Operators:
    return fit(opinfo_calls())


@functools.cache
def _opinfo_out() -> Operators:
    calls = [call for calls in _opinfo().calls.values() for call in calls]
    return fit(cached_calls("opinfo_out", lambda: list(out_forms(calls))))


@functools.cache
def _facto() -> Operators:
    return fit(facto_calls())


SOURCES: Mapping[str, Callable[[], Operators]] = {
    TRACED: _traced,
    "operators/opinfo": _opinfo,
    "operators/opinfo_out": _opinfo_out,
    "operators/facto": _facto,
}
