"""Reductions, normalisations and chains of both in C++, over any dimensions, strides and types.

A layout describes two nests of loops: over rows, and over the elements of a row. Each nest starts with its
numbers of elements and of dimensions, followed by the sizes and, tensor by tensor, the strides.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import names_of
from search.proposers.playbook.passes import Round, Rows, filled
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KINDS,
    KNOWN,
    TYPES,
    compute_types,
    functions,
    operator_kernel,
)
from search.proposers.playbook.templates.cpp.row_moves import MOVES, NAIVE
from search.proposers.playbook.templates.operator_pieces import (
    BROADCAST,
    CONTIGUOUS,
    NESTS,
    REDUCED,
    SPREAD,
    kept,
    rows_of,
    rows_plan,
)
from search.proposers.playbook.workload import Signature, Workload

NEST = """
struct Nest {
    int64_t count, dims;
    const int64_t *size, *stride;
    explicit Nest(const int64_t* from) : count(from[0]), dims(from[1]), size(from + 2), stride(size + dims) {}

    // The position of the i-th element in a tensor.
    int64_t place(int64_t i, int tensor) const {
        int64_t at = 0;
        for (int64_t d = dims - 1; d >= 0; --d) {
            at += i % size[d] * stride[tensor * dims + d];
            i /= size[d];
        }
        return at;
    }
    int64_t length() const { return size[dims - 1]; }
    int64_t step(int tensor) const { return stride[tensor * dims + dims - 1]; }
};

// A row in blocks: several lines of the innermost dimension, or a part of one long line.
struct Blocks {
    int64_t length, lines, parts, each, count;
    explicit Blocks(const Nest& nest)
        : length(std::max<int64_t>(nest.length(), 1)), lines(nest.count / length),
          parts((length + BLOCK - 1) / BLOCK), each(std::max<int64_t>(BLOCK / length, 1)),
          count((lines * parts + each - 1) / each) {}
    int64_t first_line(int64_t block) const { return parts > 1 ? block / parts : block * each; }
    int64_t last_line(int64_t block) const { return std::min(lines, first_line(block) + each); }
    int64_t begin(int64_t block) const { return parts > 1 ? block % parts * BLOCK : 0; }
    int64_t end(int64_t block) const { return std::min(length, begin(block) + BLOCK); }
    int64_t size(int64_t block) const {
        return (last_line(block) - first_line(block)) * (end(block) - begin(block));
    }
};
"""
LAYOUT = '''
def layout_of(*nests):
    """The layout of nests of loops for C++."""
    layout = []
    for dims in nests:
        columns = list(zip(*dims))
        layout += [math.prod(columns[0]), len(dims), *(value for column in columns for value in column)]
    return (ctypes.c_int64 * len(layout))(*layout)
'''
LIMITS = {
    "lowest": "std::numeric_limits<C>::has_infinity ? -std::numeric_limits<C>::infinity() : "
    "std::numeric_limits<C>::lowest()",
    "least": "std::numeric_limits<C>::lowest()",
    "highest": "std::numeric_limits<C>::has_infinity ? std::numeric_limits<C>::infinity() : "
    "std::numeric_limits<C>::max()",
}

SHARE = "blocks.count * t / threads, blocks.count * (t + 1) / threads"
"""The blocks of thread `t`."""


class RowsTemplate:
    """The family of reductions, normalisations and chains of both."""

    op = "rows"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 sums are as exact as PyTorch's only in many lanes; a scratch row belongs to one thread."""
        exact = knobs["sums"] == "double" or int(knobs["lanes"]) >= 8
        alone = not (knobs["scratch"] and (knobs["joint"] or knobs["split"] == "parts"))
        streams = knobs["stores"] == "cached" or int(knobs["lanes"]) > 1
        return exact and alone and streams and bool(kept(workload, KNOWN))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, chosen, names = rows_of(workload), kept(workload, KNOWN), names_of(workload)
        code = _Rows(found, knobs, len(names))
        streams = knobs["stores"] == "streaming" and not found.kept
        huge = knobs["pages"] == "huge" and not found.kept
        source = pieces.joined(
            ELEMENTS,
            pieces.STREAM if streams else "",
            pieces.HUGE_PAGES if huge else "",
            functions([in_language(each, 0) for each in found.texts]),
            f"constexpr int64_t LANES = {knobs['lanes']}, BLOCK = {knobs['block']};",
            NEST,
            code.function(),
            *(_entry(place, each, found, knobs) for place, each in enumerate(chosen)),
        )
        return operator_kernel(
            summary=f"{workload.operator or 'a chain with reductions'} in C++: row by row.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[BROADCAST, SPREAD, CONTIGUOUS, NESTS, REDUCED, LAYOUT],
            plan=f"{rows_plan(found)}\n    return result, ones, layout_of(kept, inner)\n",
            forward=_forward(names, found),
            pointers=len(names) + len(found.also) + 1,
        )


TEMPLATE = RowsTemplate()


class _Rows:
    """The function `rows` in C++. C is the type of an element's computations and G the type of totals. A
    value of a row exists in both types; its name in G ends with an underscore."""

    def __init__(self, found: Rows, knobs: Knobs, count: int) -> None:
        self._found, self._knobs, self._count = found, knobs, count
        self._rounds = found.rounds(bool(knobs["joint"]))
        self._scratch = found.reused if knobs["scratch"] else ""
        keeps = [name for name, each in found.passes.items() if self._scratch in found.needed(each.step)]
        self._keeping = keeps[-1] if self._scratch else ""

    def function(self) -> str:
        """The whole function."""
        count, found = self._count, self._found
        kinds = KINDS[:count]
        types = ", ".join(f"class {name}" for name in kinds)
        more = "".join(f"M* also{place}, " for place, _ in enumerate(found.also))
        tensors = ", ".join(f"const {kind}* x{place}" for place, kind in enumerate(kinds))
        starts = [f"const {kind}* p{n} = x{n} + kept.place(i, {n + 1});" for n, kind in enumerate(kinds)]
        numbers = "".join(f", {name} = G(s[{place}])" for place, name in enumerate(found.scalars))
        head = [
            f"const Nest kept(layout), reduced(layout + 2 + {2 + count} * kept.dims);",
            "const Blocks blocks(reduced);",
            f"const G n = G(reduced.count){numbers};",
        ]
        if self._knobs["pages"] == "huge" and not found.kept:
            head.append("huge_pages(out, size_t(kept.count) * reduced.count * sizeof(O));")
        parallel, several = [], self._knobs["split"] == "parts"
        if self._knobs["threads"] and not several:
            enough = f"kept.count * reduced.count >= {self._knobs['grain']}"
            parallel = [f"#pragma omp parallel for num_threads(threads) if ({enough})"]
        lines = [*head, *parallel, "for (int64_t i = 0; i < kept.count; ++i) {"]
        lines += [f"    {line}" for line in "\n".join([*starts, *self._body()]).splitlines()]
        body = textwrap.indent("\n".join([*lines, "}"]), "    ")
        return f"""
template <class C, class G, class O, class M, {types}>
static void rows(O* out, {more}{tensors}, const int64_t* layout, const double* s, int threads) {{
{body}
}}
"""

    def _body(self) -> list[str]:
        """The lines for a row."""
        found, lines = self._found, list[str]()
        if self._scratch:
            lines += ["static thread_local std::vector<C> buffer;", "buffer.resize(reduced.count);"]
            lines += ["C* const scratch = buffer.data();"]
        done = 0
        gathered: set[str] = set()
        for name, step in found.steps.items():
            if not isinstance(step, str):
                while name not in gathered:
                    lines += self._gather(done, self._rounds[done])
                    gathered |= {*self._rounds[done].names}
                    done += 1
            elif name not in found.elements:
                lines += self._value(name, self._wide(step))
        for place, name in enumerate(found.also):
            lines.append(f"also{place}[i] = store<M, G>({name}_);")
        if found.kept:
            lines += self._loads(found.last, ["0"] * len(OPERANDS))
            last = f"{found.last}_" if found.last in found.steps.keys() - found.elements else found.last
            return [*lines, f"out[i] = store<O>({last});"]
        return [*lines, *self._write()]

    def _value(self, name: str, text: str) -> list[str]:
        return [f"const G {name}_ = G({text});", f"const C {name} = C({name}_);"]

    def _wide(self, text: str) -> str:
        """A text over values of a row, in the type G."""
        values = self._found.steps.keys() - self._found.elements
        return filled(in_language(text, 0), {name: f"{name}_" for name in values})

    def _gather(self, number: int, several: Round) -> list[str]:
        """The lines that run the passes of a round and store their results in variables."""
        names, passes = several.names, self._found.passes
        fields = [f"G {name} = {self._start(name)};" for name in names]
        fields += ["G count = 0;"] if several.then else []
        block = [f"Gathered{number} here;", *self._lanes(several.first)]
        if several.then:
            block.append("here.count = G(blocks.size(block));")
            for about in dict.fromkeys(passes[name].about for name in several.then):
                block.append(f"const C {about} = C(about_{about}(here));")
            block += self._lanes(several.then)
        block.append(f"all = merged_{number}(all, here);")
        return [
            f"struct Gathered{number} {{ {' '.join(fields)} }};",
            *self._merged(number, several),
            f"const auto gather_{number} = [&](int64_t from, int64_t to) {{",
            f"    Gathered{number} all;",
            "    for (int64_t block = from; block < to; ++block) {",
            *(f"        {line}" for line in block),
            "    }",
            "    return all;",
            "};",
            *self._gathered(number),
            *(line for name in names for line in self._value(name, f"found_{number}.{name}")),
        ]

    def _gathered(self, number: int) -> list[str]:
        """The lines that run a round over all blocks, on one thread or on all."""
        if self._knobs["split"] != "parts":
            return [f"const auto found_{number} = gather_{number}(0, blocks.count);"]
        return [
            f"std::vector<Gathered{number}> parts_{number}(threads);",
            "#pragma omp parallel for num_threads(threads) schedule(static, 1)",
            "for (int t = 0; t < threads; ++t)",
            f"    parts_{number}[t] = gather_{number}({SHARE});",
            f"auto found_{number} = parts_{number}[0];",
            "for (int t = 1; t < threads; ++t)",
            f"    found_{number} = merged_{number}(found_{number}, parts_{number}[t]);",
        ]

    def _merged(self, number: int, several: Round) -> list[str]:
        """The lambdas that merge the results of two parts of a row."""
        passes, kind = self._found.passes, f"Gathered{number}"
        lines, centres = list[str](), {}
        for name in several.then:
            source, text = self._found.centre(name)
            words = {source: f"of.{source}", "n": "of.count"}
            centres[passes[name].about] = filled(in_language(text, 0), words)
        for about, text in centres.items():
            lines.append(f"const auto about_{about} = [](const {kind}& of) {{ return G({text}); }};")
        lines += [f"const auto merged_{number} = [&](const {kind}& one, const {kind}& other) {{"]
        if several.then:
            lines += [
                "    if (one.count == 0 || other.count == 0)",
                "        return one.count == 0 ? other : one;",
            ]
        lines.append(f"    {kind} both;")
        lines += ["    both.count = one.count + other.count;"] if several.then else []
        for name in several.first:
            merge = in_language(passes[name].merge, 0)
            lines.append(f"    {{ const G t = one.{name}, u = other.{name}; both.{name} = G({merge}); }}")
        for name in several.then:
            merge, about = in_language(passes[name].merge, 0), passes[name].about
            text = in_language(passes[name].moved, 0)
            one, other = (
                filled(text, {"t": f"{of}.{name}", "count": f"{of}.count", "before": f"about_{about}({of})"})
                for of in ("one", "other")
            )
            lines += [
                "    {",
                f"        const G after = about_{about}(both), t = {one}, u = {other};",
                f"        both.{name} = G({merge});",
                "    }",
            ]
        return [*lines, "    return both;", "};"]

    def _start(self, name: str) -> str:
        start = self._found.passes[name].start
        return f"C({LIMITS.get(start, start)})"

    def _lanes(self, names: Sequence[str]) -> list[str]:
        """The lines that run passes over a block in lanes and merge the lanes into `here`."""
        found = self._found
        steps = {name: found.passes[name] for name in names}
        texts = [each.step for each in steps.values()]
        lines = []
        for name in names:
            lines.append(f"C lanes_{name}[LANES];")
            lines.append(f"std::fill(lanes_{name}, lanes_{name} + LANES, {self._start(name)});")
        centred = [name for name in names if steps[name].term and self._knobs["sums"] == "float"]
        lines += self._pivots(centred)

        def body(lane: str, places: Sequence[str], index: str) -> list[str]:
            own = self._loads(" ".join(texts), places)
            if self._keeping in names:
                own.append(f"scratch[{index}] = {self._scratch};")
            for name, each in steps.items():
                text = filled(in_language(each.step, 0), {"t": f"lanes_{name}[{lane}]"})
                if name in centred:
                    text = f"lanes_{name}[{lane}] + ({in_language(each.term, 0)} - pivot_{name})"
                own.append(f"lanes_{name}[{lane}] = C({text});")
            return own

        used = found.operands(*texts)
        dense = body("k", [f"at{n} + j + k" for n in range(len(OPERANDS))], "line * blocks.length + j + k")
        strided = body("j % LANES", self._strided(), "line * blocks.length + j")
        ones = " && ".join(map(self._contiguous, used))
        lines += self._over_lines(
            used,
            [
                f"if ({ones})",
                "    for (; j + LANES <= end; j += LANES)",
                "        for (int64_t k = 0; k < LANES; ++k) {",
                *(f"            {line}" for line in dense),
                "        }",
                "for (; j < end; ++j) {",
                *(f"    {line}" for line in strided),
                "}",
            ],
        )
        for name, each in steps.items():
            words = {"t": f"lanes_{name}[k]", "u": f"lanes_{name}[k + width]"}
            merge = filled(in_language(each.merge, 0), words)
            lines += [
                "for (int64_t width = LANES / 2; width; width /= 2)",
                "    for (int64_t k = 0; k < width; ++k)",
                f"        lanes_{name}[k] = C({merge});",
                f"here.{name} = lanes_{name}[0];",
            ]
            if name in centred:
                lines.append(f"here.{name} += G(blocks.size(block)) * pivot_{name};")
        return lines

    def _pivots(self, names: Sequence[str]) -> list[str]:
        """The lines that set `pivot_…` to the block's first term, where that is finite."""
        lines = []
        for name in names:
            term = self._found.passes[name].term
            used = self._found.operands(term)
            places = [f"const int64_t at{n} = reduced.place(line * blocks.length, {n + 1});" for n in used]
            lines += [
                f"C pivot_{name} = 0;",
                "{",
                "    const int64_t line = blocks.first_line(block), j = blocks.begin(block);",
                *(f"    {line}" for line in [*places, *self._loads(term, self._strided())]),
                f"    pivot_{name} = C({in_language(term, 0)});",
                f"    pivot_{name} = pivot_{name} - pivot_{name} == 0 ? pivot_{name} : C(0);",
                "}",
            ]
        return lines

    def _contiguous(self, n: int) -> str:
        """Whether neighbouring elements of an operand are neighbours in memory, or it is left out."""
        step = f"reduced.step({n + 1}) == 1"
        return f"(!p{n} || {step})" if OPERANDS[n] in self._found.optional else step

    def _strided(self) -> list[str]:
        return [f"at{n} + j * reduced.step({n + 1})" for n in range(len(OPERANDS))]

    def _over_lines(self, used: Sequence[int], body: Sequence[str]) -> list[str]:
        """A loop over the lines of a block. `j` starts at the first element of the block in the line."""
        places = [f"const int64_t at{n} = reduced.place(line * blocks.length, {n + 1});" for n in used]
        return [
            "for (int64_t line = blocks.first_line(block); line < blocks.last_line(block); ++line) {",
            *(f"    {line}" for line in places),
            "    int64_t j = blocks.begin(block);",
            "    const int64_t end = blocks.end(block);",
            *(f"    {line}" for line in body),
            "}",
        ]

    def _loads(self, text: str, places: Sequence[str], given: str = "") -> list[str]:
        """The lines that compute what a text depends on; `given` is a step that has been computed."""
        lines = []
        for each in self._found.needed(text, given=given):
            if each in OPERANDS:
                n = OPERANDS.index(each)
                load = f"load<C>(p{n}[{places[n]}])"
                if each in self._found.optional:
                    load = f"p{n} ? {load} : C({self._found.optional[each]})"
                lines.append(f"const C {each} = {load};")
            elif each != given:
                lines.append(f"const C {each} = C({in_language(str(self._found.steps[each]), 0)});")
        return lines

    def _write(self) -> list[str]:
        """The lines that write the elements of a row."""
        found, given = self._found, self._scratch
        used = found.operands(found.last, given=given)

        def body(places: Sequence[str], index: str, to: str) -> list[str]:
            kept_step = [f"const C {given} = scratch[{index}];"] if given else []
            return [*kept_step, *self._loads(found.last, places, given), f"{to} = store<O>({found.last});"]

        many = range(len(OPERANDS))
        dense = body([f"at{n} + j" for n in many], "line * blocks.length + j", "to[j]")
        strided = body(self._strided(), "line * blocks.length + j", "to[j * reduced.step(0)]")
        single = ["for (; j < end; ++j) {", *(f"    {line}" for line in dense), "}"]
        if self._knobs["stores"] == "streaming":
            one = body([f"at{n} + j + k" for n in many], "line * blocks.length + j + k", "whole[k]")
            ahead = ["for (; j < end && uintptr_t(to + j) % 64; ++j) {", *single[1:]]
            single = [
                *ahead,
                "constexpr int64_t LINE = 64 / sizeof(O);",
                "for (; j + LINE <= end; j += LINE) {",
                "    alignas(64) O whole[LINE];",
                "    for (int64_t k = 0; k < LINE; ++k) {",
                *(f"        {line}" for line in one),
                "    }",
                "    stream(to + j, whole);",
                "}",
                *single,
            ]
        ones = " && ".join(["reduced.step(0) == 1", *map(self._contiguous, used)])
        over = self._over_lines(
            used,
            [
                "O* to = out + kept.place(i, 0) + reduced.place(line * blocks.length, 0);",
                f"if ({ones}) {{",
                *(f"    {line}" for line in single),
                "} else",
                "    for (; j < end; ++j) {",
                *(f"        {line}" for line in strided),
                "    }",
            ],
        )
        lines = [
            "const auto write = [&](int64_t from, int64_t to) {",
            "    for (int64_t block = from; block < to; ++block) {",
            *(f"        {line}" for line in over),
            "    }",
            "};",
        ]
        if self._knobs["split"] != "parts":
            return [*lines, "write(0, blocks.count);"]
        return [
            *lines,
            "#pragma omp parallel for num_threads(threads) schedule(static, 1)",
            "for (int t = 0; t < threads; ++t)",
            f"    write({SHARE});",
        ]


def _entry(place: int, signature: Signature, found: Rows, knobs: Knobs) -> str:
    """The function that Python calls."""
    first = signature.tensors[0]
    inputs = [TYPES[name or first] for name in signature.tensors]
    out, more = TYPES[signature.outputs[0]], TYPES[signature.outputs[-1]]
    kinds = ", ".join([*compute_types(signature, knobs), out, more, *inputs])
    casts = [f"{out}*", *(f"{more}*" for _ in found.also), *(f"const {kind}*" for kind in inputs)]
    pointers = ", ".join(f"void* p{n}" for n in range(len(casts)))
    given = ", ".join(f"({kind})p{n}" for n, kind in enumerate(casts))
    return f"""extern "C" void run_{place}({pointers}, int64_t* layout, double* s, int threads) {{
    rows<{kinds}>({given}, layout, s, threads);
}}"""


def _forward(names: Sequence[str], found: Rows) -> str:
    shape, stride, pointer = (
        f"() if each is None else each.{what}" if found.optional else f"each.{what}"
        for what in ("shape", "stride()", "data_ptr()")
    )
    pointer = pointer.replace("()", "None", 1) if found.optional else pointer
    more = " *(torch.empty(ones, dtype=each) for each in dtypes[1:])" if found.also else ""
    return f"""
tensors = ({", ".join(names)},)
shapes, strides = tuple({shape} for each in tensors), tuple({stride} for each in tensors)
shape, ones, layout = plan(shapes, strides, {found.dims}, {found.keepdim})
out = torch.empty(shape, dtype=dtypes[0])
outs = (out,{more})
pointers = [{pointer} for each in (*outs, *tensors)]
run(*pointers, layout, doubles({", ".join(found.scalars.values())}), torch.get_num_threads())
return {"outs" if found.also else "out"}
"""
