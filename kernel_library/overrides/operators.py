"""PyTorch's operators by name, and the forms of each, found by their schemas."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch
from torch._ops import OpOverload


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator in its functional form (`overload`) with its equivalent forms: `in_place` ones write into
    their first argument, `outs` into `out` arguments. `composite`: torch implements it with other operators,
    such as softmax.int with _softmax, and derives its backward from theirs."""

    overload: OpOverload
    in_place: tuple[OpOverload, ...]
    outs: tuple[OpOverload, ...]
    composite: bool

    @property
    def name(self) -> str:
        """Its name, such as `aten.addmm.default`."""
        return str(self.overload)


def operator(name: str) -> Operator:
    """The operator with this name (`aten.addmm.default`, `addmm`) or with this form (`addmm_`, `addmm.out`).

    Raises ValueError for an unknown name, for a view, and for an operator without a functional form.
    """
    named = overload(name)
    packet = named.overloadpacket.__name__
    base = packet.removesuffix("_") if not packet.startswith("__") else packet
    signature = _signature(named)
    functional = [each for each in _overloads(base) if not written(each) and _signature(each) == signature]
    if not functional:
        raise ValueError(f"{named} has no functional form, so a kernel cannot replace it")
    if any(each.alias_info is not None for each in functional[0]._schema.returns):
        raise ValueError(f"{named} is a view, so a kernel cannot be faster")
    forms = [each for each in (*_overloads(base), *_overloads(f"{base}_")) if _signature(each) == signature]
    return Operator(
        overload=functional[0],
        in_place=tuple(each for each in forms if is_in_place(each)),
        outs=tuple(each for each in forms if out_names(each)),
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(
            schema_name(functional[0]), "CompositeImplicitAutograd"
        ),
    )


def overload(name: str) -> OpOverload:
    """The overload with this name; without an overload name, the default or the only one. Raises ValueError
    with the nearest known names."""
    short = name.replace("::", ".").removeprefix("aten.")
    packet, _, which = short.partition(".")
    found = _overloads(packet)
    if not found:
        every = {each[6:].partition(".")[0] for each in _all() if each.startswith("aten::")}
        near = difflib.get_close_matches(packet, sorted(every), n=1)
        hint = f"; did you mean aten.{near[0]}?" if near else ""
        raise ValueError(f"torch has no operator {name}{hint}")
    names = {each._overloadname: each for each in found}
    if which in names:
        return names[which]
    if not which and len(found) == 1:
        return found[0]
    if not which and "default" in names:
        return names["default"]
    problem = f"has no overload {which}" if which else "has several overloads"
    raise ValueError(f"aten.{packet} {problem}; choose one of {', '.join(map(str, found))}")


def is_in_place(form: OpOverload) -> bool:
    """Whether it writes into its first argument."""
    return form.overloadpacket.__name__.endswith("_") and written(form) == [form._schema.arguments[0].name]


def out_names(form: OpOverload) -> tuple[str, ...]:
    """The arguments that its results are written into."""
    return tuple(each.name for each in form._schema.arguments if each.is_out)


def written(form: OpOverload) -> list[str]:
    """The arguments that it writes into."""
    return [each.name for each in form._schema.arguments if each.alias_info and each.alias_info.is_write]


def _signature(form: OpOverload) -> tuple[tuple[str, str], ...]:
    """Names and types of the inputs, which all forms of one operator share."""
    return tuple((each.name, str(each.type)) for each in form._schema.arguments if not each.is_out)


def _overloads(packet: str) -> list[OpOverload]:
    """The overloads that torch's dispatcher knows; others are only for TorchScript."""
    found = getattr(torch.ops.aten, packet, None) if packet.isidentifier() else None
    if not isinstance(found, torch._ops.OpOverloadPacket):
        return []
    known = _all()
    names = found.overloads()  # type: ignore[no-untyped-call]
    every = (getattr(found, name) for name in names)
    return [each for each in every if schema_name(each) in known]


def schema_name(form: OpOverload) -> str:
    """The name in the schema, such as `aten::addmm.out`."""
    return str(form.name())  # type: ignore[no-untyped-call]


def _all() -> set[str]:
    return set(torch._C._dispatch_get_all_op_names())
