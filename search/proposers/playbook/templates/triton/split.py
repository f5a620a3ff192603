"""Long rows split over many programs, in Triton, for reductions and for chains with reductions.

A round gathers all that needs no more than what the rounds before it came to, in two kernels: in `gather_0` a
program has a part of a row and leaves what it gathered there in `partials`, in `combine_0` one has what all
parts of a row gathered, and leaves it in `totals`. The last `combine` computes the row's one element at once;
where a row has many, the kernel `write` follows. A program adds few numbers one after the other in each lane:
2**21 of them were off by 5e-4.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.passes import Pass, Rows, words_of
from search.proposers.playbook.templates.triton import passes

PARTS = '''
FEW, PROGRAMS = 264, 2112
"""Programs with whole rows that leave most of a GPU with 132 multiprocessors idle, and what fills it."""
LONG, LONGEST = 2**16, 2**20
"""Elements of a row above which it is split: where such programs are few, and always."""
ADDITIONS = 128
"""Elements of a part for each place of a block, at most: sums of more lose digits."""


def parts_of(counts, rows, block):
    """Into how many parts the rows are split, and of how many elements each."""
    programs = triton.cdiv(counts[0], rows)
    if counts[1] <= (LONG if programs < FEW else LONGEST):
        return 1, counts[1]
    size = block * max(1, min(ADDITIONS, programs * counts[1] // (PROGRAMS * block)))
    return triton.cdiv(counts[1], size), size
'''


def kernels(found: Rows, laid: Sequence[str], scalars: Sequence[str] = ()) -> list[str]:
    """The kernels in Triton. `laid`: the tensors of which the layout has strides, in their order, the
    operands as `x0`, `x1`, …; `scalars`: names of numbers that the kernels are given."""
    several = []
    for number, gathers in enumerate(_rounds(found)):
        last = found.kept and number + 1 == len(_rounds(found))
        several += [
            (f"gather_{number}", "One program: a part of ROWS rows.", _gather(found, number, gathers)),
            (f"combine_{number}", "One program: all parts of a row.", _combine(found, number, gathers, last)),
        ]
    if not found.kept:
        several.append(("write", "One program: the elements of a part of ROWS rows.", _write(found)))
    return [_kernel(*each, laid, scalars) for each in several]


def launches(found: Rows, knobs: Knobs) -> str:
    """The function in Python that calls them one after the other."""
    lines = []
    for number, _ in enumerate(_rounds(found)):
        lines += [
            f"gather_{number}[(groups * parts[0],)](*given, **several)",
            f"combine_{number}[(counts[0],)](*given, **types, ROWS=1, BLOCK=combined)",
        ]
    if not found.kept:
        lines.append("write[(groups * parts[0],)](*given, **several)")
    return f'''
def in_parts(out, tensors, numbers, counts, parts, layout, compute, wide, block):
    """The output, by programs that have a part of a row each."""
    rows = min({knobs["rows"]}, triton.next_power_of_2(counts[0]))
    groups, combined = triton.cdiv(counts[0], rows), min(1024, triton.next_power_of_2(parts[0]))
    made = {{"dtype": torch.int64 if compute == tl.int64 else torch.float32, "device": out.device}}
    partials = torch.empty(({len(_gathers(found))}, counts[0], parts[0]), **made)
    totals = torch.empty(({len(_gathers(found))}, counts[0]), **made)
    given = (out, partials, totals, *tensors, *numbers, *counts, *parts, *layout)
    types = {{"COMPUTE": compute, "KEPT": len(layout[0]), "REDUCED": len(layout[-1]), "WIDE": wide}}
    several = {{**types, "ROWS": rows, "BLOCK": block, "num_warps": {knobs["warps"]}}}
{textwrap.indent(chr(10).join(lines), "    ")}
    return out
'''


def _kernel(name: str, says: str, lines: Sequence[str], laid: Sequence[str], scalars: Sequence[str]) -> str:
    """A kernel. All are given the same, so that one line can call each."""
    tensors = ["out", "partials", "totals", *(each for each in laid if each != "out")]
    given = [*tensors, *(f"{each}_given" for each in scalars)]
    strides = [", ".join([f"{nest}_sizes", *(f"{nest}_{each}" for each in laid)]) for nest in NESTS]
    numbers = [f"{each} = tl.cast({each}_given, COMPUTE)" for each in scalars]
    body = textwrap.indent("\n".join([*numbers, *lines]), "    ")
    return f'''
@triton.jit
def {name}(
    {", ".join(given)},
    kept_count, reduced_count, part_count, part_size,
    {strides[0]},
    {strides[1]},
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """{says}"""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    n = tl.cast(reduced_count, COMPUTE)
{body}
'''


NESTS = ("kept", "reduced")
PART = (
    "groups = (kept_count + ROWS - 1) // ROWS",
    "rows = program % groups * ROWS + tl.arange(0, ROWS)",
    "inside = (rows < kept_count)[:, None]",
    "part = program // groups",
    "begin = part * part_size",
    "end = tl.minimum(begin + part_size, reduced_count)",
)
"""The lines that find a program's part: neighbours have different rows, which may share cache lines."""


def _gather(found: Rows, number: int, gathers: Sequence[str]) -> list[str]:
    """The lines that leave what a part's elements come to in `partials`."""
    several = {name: _pass(found, name) for name in gathers}
    text = " ".join(each.step for each in several.values())
    body = [*passes.loads(found.operands(text), "first", "end"), *passes.steps(found, text)]
    for name, each in several.items():
        body += [f"t = {name}", f"{name} = tl.where(here, {in_language(each.step, 1)}, t)"]
    return [
        *PART,
        *_sources(found.operands(text)),
        *_known(found, number),
        *(f"{name} = tl.full([ROWS, BLOCK], {_start(each)}, COMPUTE)" for name, each in several.items()),
        "for first in range(begin, end, BLOCK):",
        *passes.indented(body),
        *(
            f"tl.store({_partial(found, each)} + part, {_reduced(found, each)}, mask=inside)"
            for each in gathers
        ),
    ]


def _combine(found: Rows, number: int, gathers: Sequence[str], last: bool) -> list[str]:
    """The lines that leave what all parts of a row come to in `totals`, or the row's element in `out`."""
    body = ["index = first + tl.arange(0, BLOCK)", "here = inside & (index < part_count)[None, :]"]
    for name in gathers:
        merge = f"merge_{_gathers(found).index(name)}"
        body += [
            f"u = tl.load({_partial(found, name)} + index[None, :], mask=here, other=0)",
            f"{name} = tl.where(here, {merge}({name}, u), {name})",
        ]
    starts = {name: _start(_pass(found, name)) for name in gathers}
    lines = [
        "rows = program * ROWS + tl.arange(0, ROWS)",
        "inside = (rows < kept_count)[:, None]",
        *(f"{name} = tl.full([ROWS, BLOCK], {start}, COMPUTE)" for name, start in starts.items()),
        "for first in range(0, part_count, BLOCK):",
        *passes.indented(body),
        *(f"{name} = {_reduced(found, name)}" for name in gathers),
    ]
    if last:
        return [*lines, *_known(found, number + 1, here=gathers), *_element(found)]
    return [*lines, *(f"tl.store({_total(found, name)}, {name}, mask=inside)" for name in gathers)]


def _element(found: Rows) -> list[str]:
    """The lines that write a row's one element."""
    loads = [
        f"{OPERANDS[n]} = tl.load(x{n} + source{n}, mask=inside, other=0).to(COMPUTE)"
        for n in found.operands(found.last)
    ]
    return [
        *_sources(found.operands(found.last)),
        *loads,
        *passes.steps(found, found.last),
        f"value = tl.broadcast_to(tl.cast({found.last}, COMPUTE), (ROWS, 1))",
        "if out.dtype.element_ty == tl.int1:",
        "    value = value != 0",
        "tl.store(out + rows[:, None], value.to(out.dtype.element_ty), mask=inside)",
    ]


def _write(found: Rows) -> list[str]:
    """The lines that write the elements of a part."""
    body = [
        *passes.loads(found.operands(found.last), "first", "end"),
        *passes.steps(found, found.last),
        "at = target + places(index, reduced_sizes, reduced_out, REDUCED)[None, :]",
        f"tl.store(out + at, {found.last}.to(out.dtype.element_ty), mask=here)",
    ]
    return [
        *PART,
        *_sources(found.operands(found.last)),
        "target = places(rows, kept_sizes, kept_out, KEPT)[:, None]",
        *_known(found, len(_rounds(found))),
        "for first in range(begin, end, BLOCK):",
        *passes.indented(body),
    ]


def _known(found: Rows, number: int, here: Sequence[str] = ()) -> list[str]:
    """The lines that make what is known of a row before a round; `here`: what stands there already."""
    depths, lines = _depths(found), []
    for name, step in found.steps.items():
        if isinstance(step, Pass):
            if depths[name] < number and name not in here:
                lines.append(f"{name} = tl.load({_total(found, name)}, mask=inside, other=0)")
        elif depths[name] <= number and name not in found.elements:
            lines.append(f"{name} = tl.cast({in_language(step, 1)}, COMPUTE)")
    return lines


def _sources(operands: Sequence[int]) -> list[str]:
    """The lines that find where the rows of operands begin."""
    return [f"source{n} = places(rows, kept_sizes, kept_x{n}, KEPT)[:, None]" for n in operands]


def _rounds(found: Rows) -> list[list[str]]:
    """The passes by the number of rounds before them."""
    depths, gathers = _depths(found), _gathers(found)
    count = max(depths[name] for name in gathers) + 1
    return [[name for name in gathers if depths[name] == number] for number in range(count)]


def _depths(found: Rows) -> dict[str, int]:
    """How many rounds come before each step."""
    depths: dict[str, int] = {}
    for name, step in found.steps.items():
        words = words_of(step.step if isinstance(step, Pass) else step)
        before = [depths[each] + isinstance(found.steps[each], Pass) for each in words if each in depths]
        depths[name] = max(before, default=0)
    return depths


def _gathers(found: Rows) -> list[str]:
    """The names of the passes."""
    return [name for name, step in found.steps.items() if isinstance(step, Pass)]


def _pass(found: Rows, name: str) -> Pass:
    step = found.steps[name]
    assert isinstance(step, Pass)
    return step


def _start(each: Pass) -> str:
    return passes.LIMITS.get(each.start, each.start)


def _partial(found: Rows, name: str) -> str:
    """Where the parts of a row begin."""
    return f"partials + ({_place(found, name)}) * part_count"


def _total(found: Rows, name: str) -> str:
    return f"totals + {_place(found, name)}"


def _place(found: Rows, name: str) -> str:
    """The row's place among what all passes gathered."""
    return f"{_gathers(found).index(name)} * kept_count + rows[:, None]"


def _reduced(found: Rows, name: str) -> str:
    return f"tl.reduce({name}, 1, merge_{_gathers(found).index(name)}, keep_dims=True)"
