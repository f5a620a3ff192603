"""Makes calls of operators' `out=` forms from calls of their functional forms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

from evaluators.reference.containers import tensors_in
from evaluators.suites.operator_call import keeps_shapes
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.inputs import make_arguments, operator_of
from evaluators.suites.traced.recording import call_of

UNFIT = (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError)
"""Errors with which an operator rejects arguments."""

RESIZING = ("binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
"""Operators that temporarily resize a scalar `out`, with a warning each time."""


def is_out_form(operator: str) -> bool:
    """Whether the operator writes to `out` arguments."""
    return any(each.is_out for each in operator_of(operator)._schema.arguments)


def out_forms(calls: Iterable[TracedCall]) -> Iterator[TracedCall]:
    """The same calls with `out=` tensors of the shapes, types and strides that the call returns, for
    operators that have such a form. The calls run on the CPU."""
    import torch

    names: dict[str, str] = {}
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for call in calls:
            if call.operator not in names:
                names[call.operator] = name_of_out_form(call.operator)
            try:
                found = _with_out(call, names[call.operator]) if names[call.operator] else None
                if found is not None and keeps_shapes(found, "cpu"):
                    yield found
            except UNFIT:
                continue


def name_of_out_form(operator: str) -> str:
    """The overload with the same arguments plus `out`; "" if there is none."""
    import torch

    namespace, base, _ = operator.split(".")
    if base in RESIZING or torch.Tag.dynamic_output_shape in operator_of(operator).tags:
        return ""
    packet = getattr(getattr(torch.ops, namespace), base)
    own = [(each.name, str(each.type)) for each in operator_of(operator)._schema.arguments]
    for overload in packet.overloads():
        name = f"{namespace}.{base}.{overload}"
        arguments = operator_of(name)._schema.arguments
        others = [(each.name, str(each.type)) for each in arguments if not each.is_out]
        if len(others) < len(arguments) and others == own:
            return name
    return ""


def _with_out(call: TracedCall, operator: str) -> TracedCall | None:
    """The call with `out`; None if the operator does not return exactly the `out` tensors."""
    given, named = make_arguments(call, "cpu", 0)
    returned = tensors_in(operator_of(call.operator)(*given, **named))
    outs = [each.name for each in operator_of(operator)._schema.arguments if each.is_out]
    if len(outs) != len(returned):
        return None
    record = call_of(operator, (), dict(zip(outs, returned, strict=True)), "cpu")
    return replace(call, operator=operator, keywords={**call.keywords, **record.keywords})
