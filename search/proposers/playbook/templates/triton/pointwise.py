"""Element-wise operators in Triton, with broadcasting, for any strides and types."""

from __future__ import annotations

from search.proposers.playbook.formulas import OPERANDS, Formula, called_in, in_language
from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import formula_for, in_place, names_of
from search.proposers.playbook.templates.operator_moves import MERGE, NARROW
from search.proposers.playbook.templates.operator_pieces import BROADCAST, CONTIGUOUS, SPREAD
from search.proposers.playbook.templates.triton.operator_pieces import known_signatures, operator_kernel
from search.proposers.playbook.templates.triton.pieces import number
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOVES = (
    MERGE,
    NARROW,
    Move(
        name="flat tensors",
        text="Use an element's number as its address in tensors that have the output's order: they need no "
        "division even when another operand is broadcast, and their loads stay wide.",
        category=Category.MEMORY,
        gain=1.25,
        sets={"flat": True},
    ),
    Move(
        name="constant sizes",
        text="Compile in the sizes of dimensions: a division by a constant becomes a multiplication.",
        category=Category.COMPUTE,
        gain=1.15,
        sets={"constant": True},
    ),
    Move(
        name="larger blocks",
        text="Give each program more elements, several for each lane, so that enough loads are in flight to "
        "hide the latency of memory, and contiguous ones become wide.",
        category=Category.LATENCY,
        gain=1.3,
        varies={"block": (1024, 512, 2048, 4096), "warps": (4, 8, 2)},
    ),
    Move(
        name="fitting blocks",
        text="Make the block of a small tensor as small as the tensor: no lane computes masked elements.",
        category=Category.PARALLELISM,
        gain=1.05,
        sets={"fit": True},
    ),
    Move(
        name="several blocks",
        text="Let each program compute several blocks: fewer programs have to be started.",
        category=Category.PARALLELISM,
        gain=1.02,
        varies={"blocks": (2, 4, 8)},
    ),
    Move(
        name="streaming stores",
        text="Let results stream past the caches: the kernel does not read them again.",
        category=Category.MEMORY,
        gain=1.03,
        needs={"stores": ("cached",)},
        sets={"stores": "streaming"},
    ),
)

NAIVE: Knobs = {
    "block": 128,
    "blocks": 1,
    "warps": 4,
    "constant": False,
    "fit": False,
    "flat": False,
    "merged": False,
    "narrow": False,
    "remembered": True,
    "stores": "cached",
}


class Pointwise:
    """The family of element-wise kernels."""

    op = "pointwise"
    language = "triton"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """The types must be supported; a lane has at most 64 elements."""
        return bool(_signatures(workload)) and number(knobs, "block") <= 64 * 32 * number(knobs, "warps")

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        names, what = names_of(workload), workload.operator or "a chain"
        formula = formula_for(workload)
        return operator_kernel(
            summary=f"{what} in Triton: {knobs['blocks']} blocks of the output a program.",
            workload=workload,
            knobs=knobs,
            chosen=_signatures(workload),
            functions=[_kernel(knobs, formula, len(names))],
            helpers=[BROADCAST, SPREAD, CONTIGUOUS],
            plan=_plan(workload, knobs),
            forward=_forward(workload, knobs, formula),
            inputs=names,
        )


TEMPLATE = Pointwise()


def _signatures(workload: Workload) -> list[Signature]:
    """The supported signatures. `~` is not a bit operation on booleans, and `/` not an integer division."""
    formula = formula_for(workload)
    text = " ".join(formula.texts)
    found = known_signatures(workload, called_in(text))
    if "/" in text:
        found = [each for each in found if each.compute == "float32"]
    return [each for each in found if "~" not in text or "bool" not in each.tensors]


def _kernel(knobs: Knobs, formula: Formula, count: int) -> str:
    scalars = list(formula.scalars)
    tensors = [f"x{n}" for n in range(count)]
    strides = [f"{name}_strides" for name in tensors]
    arguments = [
        "out",
        *tensors,
        *(f"{name}_given" for name in scalars),
        "count",
        "sizes: tl.constexpr" if knobs["constant"] else "sizes",
        "out_strides",
        *strides,
    ]
    lines = [f"    {name} = tl.cast({name}_given, COMPUTE)" for name in scalars]
    loads = [
        f"        at = {_place(name, number, knobs)}\n"
        f"        {operand} = tl.load({name} + at, mask=inside).to(COMPUTE)"
        for number, (operand, name) in enumerate(zip(OPERANDS, tensors, strict=False), start=1)
    ]
    steps = [
        f"        {name} = tl.cast({in_language(text, 1)}, COMPUTE)" for name, text in formula.steps.items()
    ]
    cache = ', cache_modifier=".cs"' if knobs["stores"] == "streaming" else ""
    flat = "FLAT: tl.constexpr, " if knobs["flat"] else ""
    return f'''
@triton.jit
def pointwise(
    {", ".join(arguments)},
    {flat}COMPUTE: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One program: BLOCKS blocks of the output's elements."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
{chr(10).join(lines) or "    # The operator has no numbers."}
    for block in range(BLOCKS):
        index = (start * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = index < count
{chr(10).join([*loads, *steps])}
        value = tl.cast({in_language(formula.text, 1)}, COMPUTE)
        if out.dtype.element_ty == tl.int1:
            value = value != 0
        at = {_place("out", 0, knobs)}
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside{cache})
'''


def _place(name: str, number: int, knobs: Knobs) -> str:
    """The expression for the positions of a tensor's elements; the output has number 0."""
    place = f"places(index, sizes, {name}_strides, DIMS)"
    return f"index if FLAT[{number}] else {place}" if knobs["flat"] else place


def _plan(workload: Workload, knobs: Knobs) -> str:
    own = "strides[0]" if in_place(workload.operator) else "contiguous(shape)"
    wide = "is_wide(dims)" if knobs["narrow"] else "True"
    block = f"min({knobs['block']}, triton.next_power_of_2(count))" if knobs["fit"] else str(knobs["block"])
    flat = "tuple(list(each) == contiguous(sizes) for each in strides)" if knobs["flat"] else "None"
    sizes = "sizes if len(sizes) > 1 else (0,)" if knobs["constant"] else "sizes"
    return f'''
def plan(shapes, strides):
    """The output's shape, its number of elements, sizes and strides (those of the output first), which
    tensors have the order of the elements, whether addresses exceed 32 bits, and the block's size."""
    shape = broadcast(shapes)
    count = shape.numel()
    dims = dimensions(shape, {own}, *(spread(shape, *each) for each in zip(shapes, strides)))
    sizes, *strides = zip(*dims)
    return shape, count, [{sizes}, *strides], {flat}, {wide}, {block}
'''


def _forward(workload: Workload, knobs: Knobs, formula: Formula) -> str:
    names = names_of(workload)
    first, *others = names
    optional = "" in {each for signature in _signatures(workload) for each in signature.tensors}
    tensors = ", ".join([first, *(f"{first} if {each} is None else {each}" for each in others)])
    tensors = tensors if optional else ", ".join(names)
    if in_place(workload.operator):
        out = f"out = {first}"
    else:
        out = f"out = torch.empty(shape, dtype=dtypes[0], device={first}.device)"
    scalars = "".join(f"float({each}), " for each in formula.scalars.values())
    return f"""
tensors = ({tensors},)
shape, count, layout, flat, wide, block = plan(
    tuple(each.shape for each in tensors), tuple(each.stride() for each in tensors)
)
{out}
pointwise[(triton.cdiv(count, block * {knobs["blocks"]}),)](
    out, *tensors, {scalars}count, *layout,
    {"FLAT=flat, " if knobs["flat"] else ""}COMPUTE=compute, DIMS=len(layout[0]), WIDE=wide, BLOCK=block,
    BLOCKS={knobs["blocks"]}, num_warps={knobs["warps"]},
)
return out
"""
