"""The Python code that operator kernels share in every language: layouts, types, `supports`."""

from __future__ import annotations

from collections.abc import Sequence

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import (
    deciding_names,
    names_of,
    tensor_names,
)
from search.proposers.playbook.passes import Rows
from search.proposers.playbook.workload import Signature, Workload

MOST_DIMENSIONS = 8
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
FLOATING = ("float32", "float16", "bfloat16", "float64")

DIMENSIONS = '''
def dimensions(shape, *strides):
    """Size and strides of every dimension that has more than one element, outermost first."""
    return [each for each in zip(shape, *strides) if each[0] != 1] or [(1,) + (0,) * len(strides)]
'''
MERGED = '''
def dimensions(shape, *strides):
    """Size and strides of every dimension, outermost first. Neighbours that all tensors cross in one stride
    become one dimension."""
    found = []
    for size, *own in zip(shape, *strides):
        if size == 1:
            continue
        if found and all(outer == size * inner for outer, inner in zip(found[-1][1:], own)):
            found[-1] = (found[-1][0] * size, *own)
        else:
            found.append((size, *own))
    return found or [(1,) + (0,) * len(strides)]
'''
BROADCAST = '''
def broadcast(shapes):
    """As `torch.broadcast_shapes`, which imports sympy."""
    dims = max(map(len, shapes))
    columns = zip(*((1,) * (dims - len(each)) + tuple(each) for each in shapes))
    sizes = [{*column} - {1} or {1} for column in columns]
    if any(len(each) > 1 for each in sizes):
        raise ValueError(f"cannot broadcast the shapes {shapes}")
    return torch.Size(each.pop() for each in sizes)
'''
SPREAD = '''
def spread(shape, own, strides):
    """The strides of a tensor that is broadcast to `shape`."""
    steps = [0 if size == 1 else stride for size, stride in zip(own, strides)]
    return [0] * (len(shape) - len(own)) + steps
'''
CONTIGUOUS = '''
def contiguous(shape):
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: len(shape)]
'''
REDUCED = '''
def reduced(dim, rank):
    """The reduced dimensions; without a name, all."""
    named = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return {each % rank for each in named} if rank else set()
'''
NESTS = '''
def nests(shape, inside, *strides):
    """Sizes and strides of the dimensions outside and inside the set `inside`."""
    several = [[], []]
    for place, each in enumerate(zip(shape, *strides)):
        several[place in inside].append(each)
    return [dimensions(*zip(*each)) if each else dimensions((), *strides) for each in several]
'''


def layout(knobs: Knobs, *more: str) -> str:
    """The functions that compute a kernel's layouts: `dimensions` and the given ones."""
    chosen = [MERGED if knobs["merged"] else DIMENSIONS, *more]
    return "\n\n".join(each.strip("\n") + "\n" for each in chosen)


def remembered(knobs: Knobs) -> str:
    """The decorator of a function that depends on shapes and strides only."""
    return "@functools.lru_cache(maxsize=256)\n" if knobs["remembered"] else ""


def signatures(workload: Workload, results: Sequence[tuple[Signature, str]]) -> str:
    """The dictionary SIGNATURES from types and deciding constants to what a kernel needs (`results`, Python
    expressions), and the function `supports`."""
    there = {signature for signature, _ in results}
    partly = {each.tensors for each in workload.signatures if each not in there}
    rows = []
    for signature, result in results:
        if signature.tensors in partly:  # `supports` sees no constants
            continue
        types = [_type(name) for name in signature.tensors]
        rows.append(f"    ({', '.join([*types, *signature.deciding])},): {result},")
    listed = "\n".join(rows)
    return f'''SIGNATURES = {{
{listed}
}}
{_types(workload)}


def types_of(*tensors):
    """The types of tensors; None for omitted ones."""
    return tuple(None if each is None else each.dtype for each in tensors)


{_supports(workload)}'''


def _types(workload: Workload) -> str:
    """The set TYPES of the supported argument types."""
    if workload.around is None:
        return f"TYPES = {{each[:{len(names_of(workload))}] for each in SIGNATURES}}"
    rows = ", ".join(f"({''.join(f'{_type(name)}, ' for name in own)})" for own in workload.around.types)
    return f"TYPES = {{{rows}}}"


def _supports(workload: Workload) -> str:
    if workload.around is not None:
        given = ", ".join(workload.around.arguments)
        return f'''def supports({given}):
    """Whether the kernel supports these types."""
    return types_of({given}) in TYPES'''
    given = ", ".join(names_of(workload))
    return f'''def supports({given}):
    """Whether the kernel supports such tensors. It declines tensors without dimensions among several types:
    they do not always count in the type of the result."""
    tensors = [each for each in ({given},) if each is not None]
    several = len({{each.dtype for each in tensors}} - {{torch.bool}}) > 1
    dims = [each.dim() for each in tensors]
    plain = all(0 < each or not several for each in dims) and all(each <= {MOST_DIMENSIONS} for each in dims)
    return plain and types_of({given}) in TYPES'''


def found_signature(workload: Workload, names: str) -> str:
    """The line that looks up a call's signature."""
    decide = deciding_names(workload.operator) if workload.operator else ()
    deciding = "".join(f", self.{name}_" for name in decide)
    given = ", ".join(names_of(workload))
    return f"{names} = SIGNATURES[(*types_of({given}){deciding},)]"


def kept(workload: Workload, types: Sequence[str]) -> list[Signature]:
    """The workload's signatures whose tensors all have one of these types."""
    return [each for each in workload.signatures if {*each.tensors, *each.outputs} <= {*types, ""}]


def _type(name: str) -> str:
    return f"torch.{name}" if name else "None"


def product_tensors(workload: Workload) -> tuple[str | None, str, str]:
    """The names of the added tensor, if any, and of both factors of a matrix product."""
    names = tensor_names(workload.operator)
    return (None, *names) if len(names) == 2 else names  # type: ignore[return-value]


def product_scalars(workload: Workload) -> str:
    """The expressions for the factors of the added tensor and of the product."""
    return "0, 1" if product_tensors(workload)[0] is None else "self.beta_, self.alpha_"


def product_plan(workload: Workload) -> str:
    """The function `plan` of a matrix product."""
    added = (
        "[0, 0, 0]"
        if product_tensors(workload)[0] is None
        else "spread((batches, m, n), shapes[0], strides[0])"
    )
    vector = workload.operator.split(".")[1] == "mv"
    right = "(strides[-1][0], 0)" if vector else "strides[-1]"
    return f'''
def plan(shapes, strides):
    """The output's shape; batches, rows, columns and depth; and for the left factor, the right one and the
    added tensor the strides over batches and both dimensions of a matrix."""
    *outer, m, k = shapes[-2]
    batches, n = (outer or [1])[0], {"1" if vector else "shapes[-1][-1]"}
    left, right = strides[-2], {right}
    added = {added}
    layout = [batches, m, n, k, *[0] * (3 - len(left)), *left, *[0] * (3 - len(right)), *right, *added]
    return [*outer, m{"" if vector else ", n"}], layout
'''


def rows_of(workload: Workload) -> Rows:
    """The passes of a workload. Raises ValueError for one without."""
    if workload.rows is None:
        raise ValueError(f"{workload.op} has no passes over rows")
    return workload.rows


def rows_plan(found: Rows) -> str:
    """The beginning of the function `plan` of a kernel with passes. It leaves the output's shape in `result`,
    that of a row's results in `ones`, and both nests of loops in `kept` and `inner`."""
    own, result = "contiguous(shape)", "shape"
    if found.kept:
        own = "[0] * len(shape)"
        result = "ones if keepdim else [n for place, n in enumerate(shape) if place not in inside]"
    return f'''
def plan(shapes, strides, dim, keepdim):
    """The shapes of the result and of a row's results, and the loops over rows and over their elements."""
    shape = broadcast(shapes)
    inside = reduced(dim, len(shape))
    ones = [1 if place in inside else size for place, size in enumerate(shape)]
    result = {result}
    own = {own}
    kept, inner = nests(shape, inside, own, *(spread(shape, *each) for each in zip(shapes, strides)))'''
