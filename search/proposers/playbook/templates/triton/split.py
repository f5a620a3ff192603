"""Long rows split over many programs, in Triton.

A round takes two kernels. In `gather_0` a program has a part of a row and leaves what it gathered in
`partials`; in `combine_0` one has what all parts of a row gathered and leaves it in `totals`. If a row has
one element, the last `combine` also computes it; otherwise the kernel `write` follows. A program adds
few numbers in sequence in each lane: sums of 2**21 numbers were off by 5e-4.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from search.proposers.playbook.passes import Pass, Round, words_of
from search.proposers.playbook.templates.triton.row_lines import RowLines, indented

PARTS = '''
FEW, PROGRAMS = 264, 2112
"""Programs with whole rows that leave most of a GPU with 132 multiprocessors idle, and what fills it."""
LONG, LONGEST = 2**16, 2**20
"""Elements of a row above which it is split: where such programs are few, and always."""
ADDITIONS = 128
"""Elements of a part for each place of a block, at most: sums of more lose digits."""


def parts_of(counts, rows, block):
    """The number of parts of a row, and the elements of each."""
    programs = triton.cdiv(counts[0], rows)
    if counts[1] <= (LONG if programs < FEW else LONGEST):
        return 1, counts[1]
    size = block * max(1, min(ADDITIONS, programs * counts[1] // (PROGRAMS * block)))
    return triton.cdiv(counts[1], size), size
'''
PART = (
    "groups = (kept_count + ROWS - 1) // ROWS",
    "rows = program % groups * ROWS + tl.arange(0, ROWS)",
    "inside = (rows < kept_count)[:, None]",
    "part = program // groups",
    "begin = part * part_size",
    "end = tl.minimum(begin + part_size, reduced_count)",
)
"""The lines that find a program's part. Neighbours have different rows: they share weights, and cache lines
where rows are not contiguous."""


def kernels(lines: RowLines) -> list[str]:
    """The kernels in Triton."""
    several, known = [], list[str]()
    for number, each in enumerate(lines.rounds):
        last = number + 1 == len(lines.rounds)
        gather, combine = _gather(lines, each, known), _combine(lines, each, known, last)
        several.append(lines.kernel(f"gather_{number}", "One program: a part of ROWS rows.", gather))
        several.append(lines.kernel(f"combine_{number}", "One program: all parts of a row.", combine))
        known += each.names
    if not lines.found.kept:
        used = lines.found.operands(lines.found.last)
        body = [*PART, *lines.sources(used), *_values(lines, known), *lines.write(("begin", "end"))]
        several.append(lines.kernel("write", "One program: the elements of a part of ROWS rows.", body))
    return several


def launches(lines: RowLines) -> str:
    """The Python function that launches them in order."""
    calls = []
    for number, _ in enumerate(lines.rounds):
        calls += [
            f"gather_{number}[(groups * parts[0],)](*given, **several)",
            f"combine_{number}[(counts[0],)](*given, **types, ROWS=1, BLOCK=combined)",
        ]
    if not lines.found.kept:
        calls.append("write[(groups * parts[0],)](*given, **several)")
    return f'''
def in_parts(given, out, counts, parts, layout, compute, wide, block):
    """Fills the output by programs that have a part of a row each."""
    rows = min({lines.knobs["rows"]}, triton.next_power_of_2(counts[0]))
    groups, combined = triton.cdiv(counts[0], rows), min(1024, triton.next_power_of_2(parts[0]))
    made = {{"dtype": torch.int64 if compute == tl.int64 else torch.float32, "device": out.device}}
    partials = torch.empty(({len(lines.passes)}, counts[0], parts[0]), **made)
    totals = torch.empty(({len(lines.passes)}, counts[0]), **made)
    given = (*given, *parts, partials, totals, *layout)
    types = {{"COMPUTE": compute, "KEPT": len(layout[0]), "REDUCED": len(layout[-1]), "WIDE": wide}}
    several = {{**types, "ROWS": rows, "BLOCK": block, "num_warps": {lines.knobs["warps"]}}}
{textwrap.indent(chr(10).join(calls), "    ")}
'''


def _gather(lines: RowLines, several: Round, known: Sequence[str]) -> list[str]:
    """The lines that run a round over a part of a row and store its values in `partials`."""
    texts = [lines.passes[name].step for name in several.names]
    body = [*PART, *lines.sources(lines.found.operands(*texts)), *_values(lines, known)]
    body += lines.stream(several, "begin", "end")
    for name in several.names:
        if name in several.then:
            gathered = f"{lines.found.centre(name)[0]}_part"
            body.append(f"centre = {lines.centre(name, gathered, 'tl.cast(end - begin, COMPUTE)')}")
            body.append(lines.moved_each(name, "centre"))
        body.append(f"{name}_part = {lines.reduced(name)}")
        body.append(f"tl.store({_partial(lines, name)} + part, {name}_part, mask=inside)")
    return body


def _combine(lines: RowLines, several: Round, known: Sequence[str], last: bool) -> list[str]:
    """The lines that merge all parts of a row into `totals`, or into the row's element of `out`."""
    body = ["rows = program * ROWS + tl.arange(0, ROWS)", "inside = (rows < kept_count)[:, None]"]
    for names in (several.first, several.then):
        inner = []
        for name in names:
            inner.append(f"u = {_loaded(lines, name)}")
            if name in several.then:
                about = lines.passes[name].about
                body += [] if about in several.first else [lines.value(about)]
                inner += [
                    "size = tl.minimum(part_size, reduced_count - index * part_size)[None, :]",
                    "size = tl.cast(tl.maximum(size, 1), COMPUTE)",
                    f"before = {lines.centre(name, _loaded(lines, lines.found.centre(name)[0]), 'size')}",
                    f"u = {lines.moved(name, 'u', 'size', 'before', about)}",
                ]
            inner.append(f"{name}_each = tl.where(here, {lines.merge(name)}({name}_each, u), {name}_each)")
        if names:
            body += [
                *(f"{name}_each = tl.full([ROWS, BLOCK], {lines.start(name)}, COMPUTE)" for name in names),
                "for first in range(0, part_count, BLOCK):",
                "    index = first + tl.arange(0, BLOCK)",
                "    here = inside & (index < part_count)[None, :]",
                *indented(inner),
                *(f"{name} = {lines.reduced(name)}" for name in names),
            ]
    if last:
        body += [*_values(lines, known, several.names), *lines.further()]
    if last and lines.found.kept:
        return [*body, *lines.sources(lines.found.operands(lines.found.last)), *lines.element()]
    return [
        *body,
        *(f"tl.store(totals + {_place(lines, name)}, {name}, mask=inside)" for name in several.names),
    ]


def _values(lines: RowLines, known: Sequence[str], here: Sequence[str] = ()) -> list[str]:
    """The lines that compute a row's values from known passes; those of `here` are variables already."""
    found, present, body = lines.found, {"n", *lines.found.scalars, *here}, list[str]()
    for name, step in found.steps.items():
        if isinstance(step, Pass):
            if name in known:
                body.append(f"{name} = tl.load(totals + {_place(lines, name)}, mask=inside, other=0)")
        elif name in found.elements or not present.issuperset(words_of(step)):
            continue
        else:
            body.append(lines.value(name))
        present |= {name} if name in known or not isinstance(step, Pass) else set()
    return body


def _loaded(lines: RowLines, name: str) -> str:
    """The values of a pass for the parts at `index`."""
    return f"tl.load({_partial(lines, name)} + index[None, :], mask=here, other=0)"


def _partial(lines: RowLines, name: str) -> str:
    """A pointer to the values of a row's parts."""
    return f"partials + ({_place(lines, name)}) * part_count"


def _place(lines: RowLines, name: str) -> str:
    """The position of a row among the values of all passes."""
    return f"{list(lines.passes).index(name)} * kept_count + rows[:, None]"
