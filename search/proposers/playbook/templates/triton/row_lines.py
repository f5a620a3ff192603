"""The lines of Triton kernels for reductions, normalisations and chains of both.

A name ending in `_each` is what every place of a tile gathered; one ending in `_held` belongs to the part of
a row that is kept in registers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from search.proposers.playbook.formulas import OPERANDS, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.passes import Round, Rows, filled, words_of

LIMITS = {
    "lowest": 'float("-inf") if COMPUTE == tl.float32 else -9223372036854775808',
    "least": "-3.4028234663852886e38",
    "highest": 'float("inf") if COMPUTE == tl.float32 else 9223372036854775807',
}
WHOLE_ROW = ("HELD", "reduced_count")
"""The first and last element of a row's streamed part in a program with whole rows."""


class RowLines:
    """The lines for one chain of steps, with these knobs. `count` is the number of operands."""

    def __init__(self, found: Rows, knobs: Knobs, count: int) -> None:
        self.found, self.knobs, self.count = found, knobs, count
        self.rounds = found.rounds(bool(knobs["joint"]))
        self.passes = found.passes
        self._held = found.operands(*(each.step for each in self.passes.values()))

    def kernel(self, name: str, says: str, lines: Iterable[str], more: Sequence[str] = ()) -> str:
        """A kernel. All kernels of a file take the same arguments; `more` are further constants."""
        outs = ["out", *(f"also{place}" for place, _ in enumerate(self.found.also))]
        tensors = [f"x{n}" for n in range(self.count)]
        parts = "" if "HELD" in more else "part_count, part_size, partials, totals, "
        numbers = [f"{each}_given" for each in self.found.scalars]
        strides = [
            ", ".join([f"{nest}_sizes", *(f"{nest}_{each}" for each in ["out", *tensors])])
            for nest in ("kept", "reduced")
        ]
        constants = ", ".join(f"{each}: tl.constexpr" for each in ("ROWS", "BLOCK", *more))
        body = [
            "program = tl.program_id(0)",
            "if WIDE:",
            "    program = program.to(tl.int64)",
            "n = tl.cast(reduced_count, COMPUTE)",
            *(f"{each} = tl.cast({each}_given, COMPUTE)" for each in self.found.scalars),
            *lines,
        ]
        return f'''
@triton.jit
def {name}(
    {", ".join([*outs, *tensors, *numbers])}, kept_count, reduced_count,
    {parts}{strides[0]},
    {strides[1]},
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, WIDE: tl.constexpr,
    {constants},
):
    """{says}"""
{textwrap.indent(chr(10).join(body), "    ")}
'''

    def merges(self) -> list[str]:
        """The functions `merge_0`, `merge_1`, …, one for each pass, which merge two places."""
        return [
            f"@triton.jit\ndef merge_{place}(t, u):\n    return {in_language(each.merge, 1)}"
            for place, each in enumerate(self.passes.values())
        ]

    def merge(self, name: str) -> str:
        """The name of a pass's function."""
        return f"merge_{list(self.passes).index(name)}"

    def sources(self, operands: Iterable[int]) -> list[str]:
        """The lines that find where the rows of operands begin."""
        return [f"source{n} = places(rows, kept_sizes, kept_x{n}, KEPT)[:, None]" for n in operands]

    def hold(self) -> list[str]:
        """The lines that load the part of a row that is kept in registers."""
        index = [
            "index_held = tl.arange(0, HELD)",
            "if WIDE:",
            "    index_held = index_held.to(tl.int64)",
            "here_held = inside & (index_held < reduced_count)[None, :]",
        ]
        return ["if HELD:", *indented([*index, *self._loads(self._held, "_held", "evict_first")])]

    def value(self, name: str) -> str:
        """The line that computes a value of a row."""
        return f"{name} = tl.cast({in_language(str(self.found.steps[name]), 1)}, COMPUTE)"

    def gather(self, several: Round) -> list[str]:
        """The lines that run a round over whole rows; each pass leaves a column with one value per row."""
        lines = [f"{name} = tl.full([ROWS, 1], {self.start(name)}, COMPUTE)" for name in several.names]
        lines += ["if STREAMED:", *indented(self.stream(several, *WHOLE_ROW))]
        for names in (several.first, several.then):
            streamed, held = list[str](), list[str]()
            for name in names:
                if name in several.then:
                    about = self.passes[name].about
                    lines += [] if about in several.first else [self.value(about)]
                    streamed.append(self.moved_each(name, about))
                streamed.append(f"{name} = {self.merge(name)}({name}, {self.reduced(name)})")
                held += self._gather_held(name)
            if names:
                lines += ["if STREAMED:", *indented(streamed), "if HELD:", *indented(held)]
        return lines

    def stream(self, several: Round, begin: str, end: str) -> list[str]:
        """The lines that run a round over the tiles of a part of a row, place by place."""
        first, then = several.first, several.then
        texts, more = ([self.passes[name].step for name in names] for names in (first, then))
        abouts = {self.passes[name].about: name for name in then}
        lines = [
            f"{name}_each = tl.full([ROWS, BLOCK], {self.start(name)}, COMPUTE)" for name in several.names
        ]
        lines += ["count_each = tl.zeros([ROWS, BLOCK], COMPUTE)"] if then else []
        body = [*self._tile("first", end), *self._loads(self.found.operands(*texts, *more), "", "evict_last")]
        body += self._steps(texts)
        body += [f"{about}_before = {self._centre_each(name)}" for about, name in abouts.items()]
        body += ["before_each = count_each"] if then else []
        body += [f"{name}_each = {self._stepped(name, f'{name}_each')}" for name in first]
        if then:
            words = {about: f"{about}_after" for about in abouts}
            body.append("count_each = tl.where(here, count_each + 1, count_each)")
            body += [f"{about}_after = {self._centre_each(name)}" for about, name in abouts.items()]
            body += self._steps(more, words=words, known=texts)
        for name in then:
            about, each = self.passes[name].about, f"{name}_each"
            body.append(f"t = {self.moved(name, each, 'before_each', f'{about}_before', f'{about}_after')}")
            body.append(f"{each} = {self._stepped(name, 't', words, otherwise=each)}")
        return [*lines, f"for first in range({begin}, {end}, BLOCK):", *indented(body)]

    def reduced(self, name: str) -> str:
        """The merged value of all places of a tile."""
        return f"tl.reduce({name}_each, 1, {self.merge(name)}, keep_dims=True)"

    def moved(self, name: str, t: str, count: str, before: str, after: str) -> str:
        """A pass's value after the value it is about has changed."""
        words = {"t": t, "count": count, "before": before, "after": after}
        return filled(in_language(self.passes[name].moved, 1), words)

    def moved_each(self, name: str, after: str) -> str:
        """The line that moves the values of all places to one common value that they are about."""
        return (
            f"{name}_each = {self.moved(name, f'{name}_each', 'count_each', self._centre_each(name), after)}"
        )

    def centre(self, name: str, gathered: str, count: str) -> str:
        """The value that a pass is about, after `count` elements with the result `gathered`."""
        source, text = self.found.centre(name)
        return f"tl.cast({filled(in_language(text, 1), {source: gathered, 'n': count})}, COMPUTE)"

    def further(self) -> list[str]:
        """The lines that store the further results of a row."""
        return [
            f"tl.store(also{place} + rows[:, None], {name}.to(also{place}.dtype.element_ty), mask=inside)"
            for place, name in enumerate(self.found.also)
        ]

    def element(self) -> list[str]:
        """The lines that store the one element of each row."""
        found = self.found
        loads = [
            f"{OPERANDS[n]} = tl.load(x{n} + source{n}, mask=inside, other=0).to(COMPUTE)"
            for n in found.operands(found.last)
        ]
        return [
            *loads,
            *self._steps([found.last]),
            f"value = tl.broadcast_to(tl.cast({found.last}, COMPUTE), (ROWS, 1))",
            "if out.dtype.element_ty == tl.int1:",
            "    value = value != 0",
            "tl.store(out + rows[:, None], value.to(out.dtype.element_ty), mask=inside)",
        ]

    def write(self, ends: tuple[str, str] = WHOLE_ROW) -> list[str]:
        """The lines that store the elements of rows, or of a part of them."""
        begin, end = ends
        held = begin == "HELD"
        used = self.found.operands(self.found.last)
        body = [*self._tile("first", end), *self._loads(used, "", "evict_first"), *self._store("")]
        loop = [f"for first in range({begin}, {end}, BLOCK):", *indented(body)]
        if self.knobs["order"] == "backwards":
            loop = [
                f"for back in range({begin}, {end}, BLOCK):",
                f"    first = {begin} + ({end} - 1 - {begin}) // BLOCK * BLOCK - (back - {begin})",
                *indented(body),
            ]
        target = "target = places(rows, kept_sizes, kept_out, KEPT)[:, None]"
        if not held:
            return [target, *loop]
        rest = [n for n in used if n not in self._held]
        whole = [*self._loads(rest, "_held", "evict_first"), *self._store("_held")]
        return [target, "if STREAMED:", *indented(loop), "if HELD:", *indented(whole)]

    def start(self, name: str) -> str:
        """The start value of a pass."""
        return LIMITS.get(self.passes[name].start, self.passes[name].start)

    def _tile(self, first: str, end: str) -> list[str]:
        """The lines that set `index`, the elements of a tile, and `here`, whether they exist."""
        return [
            f"index = {first} + tl.arange(0, BLOCK)",
            "if WIDE:",
            "    index = index.to(tl.int64)",
            f"here = inside & (index < {end})[None, :]",
        ]

    def _loads(self, operands: Iterable[int], suffix: str, policy: str) -> list[str]:
        """The lines that load operands at `index`."""
        lines = []
        hint = f', eviction_policy="{policy}"' if self.knobs["hints"] else ""
        for n in operands:
            name = OPERANDS[n]
            shared = hint.replace("evict_first", "evict_last") if n not in self._held else hint
            place = f"source{n} + places(index{suffix}, reduced_sizes, reduced_x{n}, REDUCED)[None, :]"
            load = f"{name}{suffix} = tl.load(x{n} + {place}, mask=here{suffix}, other=0{shared}).to(COMPUTE)"
            if name in self.found.optional:
                otherwise = f"    {name}{suffix} = tl.cast({self.found.optional[name]}, COMPUTE)"
                lines += [f"if x{n} is None:", otherwise, "else:", f"    {load}"]
            else:
                lines.append(load)
        return lines

    def _steps(
        self,
        texts: Sequence[str],
        suffix: str = "",
        words: dict[str, str] | None = None,
        known: Sequence[str] = (),
    ) -> list[str]:
        """The lines that compute what `texts` depend on, except what `known` texts depend on."""
        done = self.found.needed(*known)
        several = [each for each in self.found.needed(*texts) if each not in OPERANDS and each not in done]
        return [
            f"{name}{suffix} = tl.cast({self._text(str(self.found.steps[name]), suffix, words)}, COMPUTE)"
            for name in several
        ]

    def _text(self, text: str, suffix: str = "", words: dict[str, str] | None = None) -> str:
        """A text in Triton, with a suffix for elements and with `words` replaced."""
        elements = self.found.elements
        mapped = {each: f"{each}{suffix}" for each in words_of(text) if each in elements or each in OPERANDS}
        return filled(in_language(text, 1), {**mapped, **(words or {})})

    def _stepped(
        self, name: str, t: str, words: dict[str, str] | None = None, suffix: str = "", otherwise: str = ""
    ) -> str:
        """A pass's next value after `t`, or the current one outside the row."""
        step = self._text(self.passes[name].step, suffix, {"t": t, **(words or {})})
        return f"tl.where(here{suffix}, {step}, {otherwise or t})"

    def _gather_held(self, name: str) -> list[str]:
        """The lines that run a pass over the elements in registers and merge the result."""
        step = self.passes[name].step
        return [
            *self._steps([step], "_held"),
            f"t_held = tl.full([ROWS, HELD], {self.start(name)}, COMPUTE)",
            f"t_held = {self._stepped(name, 't_held', suffix='_held')}",
            f"{name} = {self.merge(name)}({name}, tl.reduce(t_held, 1, {self.merge(name)}, keep_dims=True))",
        ]

    def _centre_each(self, name: str) -> str:
        """The value that a pass is about in each place."""
        return self.centre(name, f"{self.found.centre(name)[0]}_each", "tl.maximum(count_each, 1)")

    def _store(self, suffix: str) -> list[str]:
        last = self._text(self.found.last, suffix)
        hint = ', cache_modifier=".cs"' if self.knobs["hints"] else ""
        at = f"target + places(index{suffix}, reduced_sizes, reduced_out, REDUCED)[None, :]"
        return [
            *self._steps([self.found.last], suffix),
            f"at{suffix} = {at}",
            f"tl.store(out + at{suffix}, {last}.to(out.dtype.element_ty), mask=here{suffix}{hint})",
        ]


def indented(lines: Sequence[str]) -> list[str]:
    """Lines moved right by one level."""
    return [f"    {each}" for each in lines] or ["    pass"]
