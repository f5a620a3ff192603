"""Reads a reference of several operators: the part for one kernel, and PyTorch's own calls around it.

That part is the largest one that is element-wise or has reductions over the same dimensions; without such a
part, it is the only matrix product or convolution. Views become views of the kernel's operands and of its
result. PyTorch computes the rest before or after the kernel, if a kernel may leave work to libraries.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluators.records.problem import Problem
from evaluators.suites.traced.inputs import operator_of, takes_tensors
from evaluators.suites.traced.recording import call_of
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.formulas import Formula
from search.proposers.playbook.meta_calls import Forward, forwards_of
from search.proposers.playbook.one_operator import constants_of, with_constants
from search.proposers.playbook.operator_problem import PRODUCTS, has_no_lists
from search.proposers.playbook.passes import Rows
from search.proposers.playbook.region import Operand, Region, View
from search.proposers.playbook.values import SAME, NotReadError, Value, values_of
from search.proposers.playbook.workload import CONV_SIZES, Around, Signature, Workload

logger = logging.getLogger(__name__)

CONVOLUTION = "aten.convolution.default"
ATTENTION = "aten._safe_softmax.default"
"""On the meta device, attention becomes calls that include this one, which nothing else calls."""
IN_FLOAT32 = {"float32", "float16", "bfloat16"}
"""Floating types that float32 represents exactly."""


def fused_workload(problem: Problem) -> Workload | None:
    """The workload; None if no kernel can be written, or if the cases compute different things."""
    code, forwards = constructor_of(problem), forwards_of(problem)
    if code is None or not forwards:
        return None
    try:
        several = [_read(each, problem) for each in forwards]
        around = _around_all(several)
    except NotReadError as error:
        logger.info("the playbook cannot read %s: %s", problem.name, error)
        return None
    first = several[0]
    return replace(
        first.workload,
        header="\n".join(filter(None, (code[0], first.workload.header))),
        constructor=with_constants(code[1], first.constants),
        dtype=problem.dtype,
        lower=problem.lower_precisions,
        signatures=tuple(dict.fromkeys(one for each in several for one in each.workload.signatures)),
        around=around,
    )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """One case: what its kernel computes, the lines around it, and the operator's constants."""

    workload: Workload
    around: Around | None
    constants: tuple[tuple[str, str], ...] = ()


def _around_all(several: Sequence[_Reading]) -> Around | None:
    """The lines around the kernel for all cases. Raises NotReadError if they differ in more than one size of
    a reshape."""
    kernels = [(replace(each.workload, signatures=()), each.constants) for each in several]
    first = several[0].around
    if any(each != kernels[0] for each in kernels) or len({each.around is None for each in several}) > 1:
        raise NotReadError("the cases compute different things")
    if first is None:
        return None
    rows = zip(*(each.around.lines for each in several if each.around), strict=True)
    types = dict.fromkeys(each for one in several if one.around for each in one.around.types)
    return replace(first, lines=tuple(map(_line, rows)), types=tuple(types))


RESHAPED = re.compile(r"(?<=\.reshape\(\[)[-\d, ]*(?=\]\))")


def _line(texts: tuple[str, ...]) -> str:
    """One line for all cases: a size of a reshape that differs becomes -1. Raises NotReadError."""
    if len({*texts}) == 1:
        return texts[0]
    if len({RESHAPED.sub("", each) for each in texts}) > 1:
        raise NotReadError("the cases have different code")
    sizes = zip(*(RESHAPED.findall(each) for each in texts), strict=True)
    shapes = iter([_sizes([each.split(", ") for each in own]) for own in sizes])
    return RESHAPED.sub(lambda _: next(shapes), texts[0])


def _sizes(several: list[list[str]]) -> str:
    ranks = {len(each) for each in several}
    found = [own[0] if len({*own}) == 1 else "-1" for own in zip(*several, strict=False)]
    if len(ranks) > 1 or found.count("-1") > 1:
        raise NotReadError("the cases differ in more than one size of a reshape")
    return ", ".join(found)


def _read(forward: Forward, problem: Problem) -> _Reading:
    """Reads one case. Raises NotReadError."""
    inputs, output = values_of(forward)
    if any(each.operator == ATTENTION for each in output.reached):
        raise NotReadError("attention is left to PyTorch")
    names = dict(zip(inputs, (*forward.names, *forward.weights), strict=True))
    regions = _regions(output, problem.device)
    for each in regions:
        lines = _Lines(names, each.root, list(each.operands))
        if problem.libraries != "any" and lines.computed(output):
            continue
        try:
            return _of_region(each, lines, forward, output)
        except NotReadError:
            continue
    computed = [each for each in output.reached if each.operator and not each.is_view and not each.is_same]
    if len(computed) != 1:
        raise NotReadError("no single kernel can compute it")
    alone = _of_convolution if computed[0].operator == CONVOLUTION else _of_product
    return alone(computed[0], names, forward, output)


def _regions(output: Value, device: str) -> list[Region]:
    """The parts of the forward that a kernel could compute, the largest first."""
    found = []
    for value in output.reached:
        try:
            found.append(Region(value, device))
        except NotReadError:
            continue
    return sorted(found, key=lambda each: -each.worth)


def _of_region(region: Region, lines: _Lines, forward: Forward, output: Value) -> _Reading:
    signature = _signature(region, [lines.like(each) for each in region.operands])
    count = len(region.operands)
    inputs = tuple(f"x{place}" for place in range(count))
    plain = [value for value, views in region.operands if not views]
    own = [each for each, _ in zip(lines.inputs, plain, strict=False)]
    bare = region.root is output and not forward.weights
    if bare and plain == own and len(plain) == len(lines.inputs) == count:
        around = None
    else:
        around = lines.around(output, forward)
    workload = Workload(op="pointwise", signatures=(signature,), inputs=inputs)
    if region.dims is None:
        steps = {name: text for name, text in region.steps.items() if isinstance(text, str)}
        return _Reading(
            workload=replace(workload, formula=Formula(text=region.last, steps=steps)), around=around
        )
    rows = Rows(
        steps=region.steps,
        last=region.last,
        dims=str(region.dims),
        kept=region.kept,
        keepdim=str(region.keepdim),
    )
    return _Reading(workload=replace(workload, op="rows", rows=rows), around=around)


def _signature(region: Region, types: list[str]) -> Signature:
    """The signature for operands of these types: booleans, and one floating type or several that are
    computed in float32. Raises NotReadError for others."""
    out = str(region.root.like.dtype).removeprefix("torch.")
    floating = {*types, out} - {"bool"}
    together = len(floating) == 1 or floating <= IN_FLOAT32
    if not together or not region.root.like.is_floating_point():
        raise NotReadError(f"it mixes tensors of {', '.join(sorted(floating))}")
    compute = "float64" if out == "float64" else "float32"
    return Signature(tensors=tuple(types), deciding=(), outputs=(out,), compute=compute)


def _of_product(root: Value, names: dict[Value, str], forward: Forward, output: Value) -> _Reading:
    """A forward that is one matrix product and views. Raises NotReadError."""
    if root.operator not in PRODUCTS:
        raise NotReadError(f"{root.operator} is not a matrix product")
    schema = operator_of(root.operator)._schema.arguments
    factors = [root.given[each.name] for each in schema if takes_tensors(each)]
    lines = _Lines(names, root, [(each, ()) for each in factors])
    positional = [each.like if isinstance(each, Value) else each for each in root.given.values()]
    call = call_of(root.operator, positional, {}, "meta")
    types = tuple(str(each.like.dtype).removeprefix("torch.") for each in factors)
    if call is None or not has_no_lists(call) or len({*types}) > 1 or not root.like.is_floating_point():
        raise NotReadError("the product has tensors of several types")
    compute = "float64" if types[0] == "float64" else "float32"
    signature = Signature(tensors=types, deciding=(), outputs=types[:1], compute=compute)
    return _Reading(
        workload=Workload(op="product", operator=root.operator, signatures=(signature,)),
        around=lines.around(output, forward),
        constants=constants_of(call),
    )


def _of_convolution(root: Value, names: dict[Value, str], forward: Forward, output: Value) -> _Reading:
    """A forward that is one two-dimensional convolution and views. Raises NotReadError."""
    given = root.given
    x, weight, bias = given["input"], given["weight"], given["bias"]
    if len(x.shape) != 4 or given["groups"] != 1 or given["transposed"]:
        raise NotReadError("the convolution is grouped, transposed or not two-dimensional")
    steps = (*given["stride"], *given["padding"], *given["dilation"])
    values = (*x.shape, *weight.shape[:1], *weight.shape[2:], *steps, 1, bias is not None, *root.shape[2:])
    lines = _Lines(names, root, [(each, ()) for each in (x, weight, bias) if each is not None], "weights")
    return _Reading(
        workload=Workload(
            op="conv2d",
            sizes={name: int(value) for name, value in zip(CONV_SIZES, values, strict=True)},
            module="weights",
            header="from types import SimpleNamespace",
            shape=x.shape,
        ),
        around=lines.around(output, forward),
    )


class _Lines:
    """The lines of a forward around the kernel that computes `root` from `operands`.

    `names` are the expressions for inputs and weights. `module` is the attribute for the weight and the bias
    of a kernel that takes only the first operand as an argument.
    """

    def __init__(
        self, names: dict[Value, str], root: Value, operands: list[Operand], module: str = ""
    ) -> None:
        self.inputs = list(names)
        self._names, self._root, self._operands, self._module = dict(names), root, operands, module
        self._taken = {*names.values(), "self", "torch"}
        self._codes: dict[str, str] = {}

    def around(self, output: Value, forward: Forward) -> Around:
        """The whole forward. Raises NotReadError."""
        last = self._name(output)
        lines = [f"{name} = {code}" for code, name in self._codes.items()]
        types = tuple(str(each.dtype).removeprefix("torch.") for each in forward.inputs)
        return Around(arguments=forward.names, lines=(*lines, f"return {last}"), types=(types,))

    def computed(self, output: Value) -> list[Value]:
        """The values that PyTorch computes outside the kernel."""
        found, waiting = [], [output]
        while waiting:
            value = waiting.pop()
            if value is self._root:
                waiting += [each for each, _ in self._operands]
                continue
            found += [value] if value.operator and not value.is_view and not value.is_same else []
            waiting += value.sources
        return found

    def like(self, operand: Operand) -> str:
        """The type of an operand, such as `float32`."""
        return str(operand[0].like.dtype).removeprefix("torch.")

    def _name(self, value: Value) -> str:
        """The variable of a value; adds the lines that compute it."""
        if value not in self._names:
            if value is self._root:
                given = [self._viewed(*each) for each in self._operands]
                if self._module:
                    pairs = zip(("weight", "bias"), given[1:], strict=False)
                    named = ", ".join(f"{name}={each}" for name, each in pairs)
                    self._codes[f"SimpleNamespace({named})"] = f"self.{self._module}"
                    given = given[:1]
                self._names[value] = self._line(f"self.kernel({', '.join(given)})", "out")
            else:
                names = {each: self._name(each) for each in value.sources}
                self._names[value] = self._written(value, names)
        return self._names[value]

    def _written(self, value: Value, names: dict[Value, str]) -> str:
        if value.operator in SAME[1:]:
            return names[value.sources[0]]
        return self._line(value.code(names), value.operator.split(".")[1].strip("_"))

    def _viewed(self, value: Value, views: Sequence[View]) -> str:
        name = self._name(value)
        for each in views:
            name = self._line(each.code.format(name), "view")
        return name

    def _line(self, code: str, wanted: str) -> str:
        """The variable that a line assigns; equal code gets the same variable."""
        if code not in self._codes:
            name, number = wanted, 1
            while name in self._taken:
                number += 1
                name = f"{wanted}{number}"
            self._taken.add(name)
            self._codes[code] = name
        return self._codes[code]
