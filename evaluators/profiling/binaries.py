"""The static level of a GPU kernel: what the disassembler `cuobjdump` shows of its compiled binaries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from evaluators.profiling.facts import CompiledFunction, StaticFacts
from evaluators.system.cuobjdump import (
    CODE,
    RESOURCES,
    binaries_below,
    output_of,
    parse_resources,
    path_of_tool,
)

FUNCTION = re.compile(r"^\s*Function : (?P<name>.+?)\s*$")
INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?(?P<code>[A-Z][A-Z0-9_]*)(?P<suffix>[\w.]*)"
)
TENSOR = re.compile(r"[HIDBQ]G?MMA$|UTC\w*MMA$|OMMA$")
SCALAR_MATH = {"FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2", "DFMA", "DMUL", "DADD", "FFMA2"}
COMBINES = {"SHFL", "REDUX", "BAR", "ATOMS", "VOTE", "MATCH", "CREDUX"}
ATOMICS = {"RED", "REDG", "ATOM", "ATOMG"}
MOST_BINARIES = 8


@dataclass
class _Counts:
    """Counts of one function while its code is read."""

    codes: Counter[str] = field(default_factory=Counter)
    tensor: Counter[str] = field(default_factory=Counter)
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)


def parse_sass(text: str) -> dict[str, CompiledFunction]:
    """The functions in the output of `cuobjdump -sass`, with the counts of their instructions."""
    counts: dict[str, _Counts] = {}
    current: _Counts | None = None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            current = counts.setdefault(match["name"], _Counts())
        elif current is not None and (match := INSTRUCTION.match(line)):
            _count(current, match["code"], match["suffix"])
    return {name: _function(name, each) for name, each in counts.items()}


def static_facts(resources: str, sass: str, warnings: Iterable[str] = ()) -> StaticFacts:
    """The facts of a binary, or of several whose outputs were joined."""
    functions = parse_sass(sass)
    for known in parse_resources(resources):
        counted = functions.get(known.name, CompiledFunction(name=known.name))
        functions[known.name] = replace(
            counted,
            registers=known.registers,
            stack_bytes=known.stack_bytes,
            shared_bytes=known.shared_bytes,
        )
    return StaticFacts(functions=tuple(functions.values()), warnings=tuple(warnings))


def disassembled(folder: Path) -> tuple[str, str]:
    """The resources and the code of all binaries below a folder, as `cuobjdump` prints them.

    Raises:
        RuntimeError: if there is no `cuobjdump`, or no binary with GPU code.
    """
    tool = path_of_tool()
    if tool is None:
        raise RuntimeError("cuobjdump is missing; it is part of CUDA and of Triton's wheel")
    binaries = binaries_below(folder)[:MOST_BINARIES]
    outputs = [(output_of(tool, RESOURCES, path), output_of(tool, CODE, path)) for path in binaries]
    resources, sass = ("\n".join(each) for each in zip(*outputs, strict=True)) if outputs else ("", "")
    if "Function" not in sass:
        raise RuntimeError("the kernel's build left no binary with GPU code")
    return resources, sass


def _count(counts: _Counts, code: str, suffix: str) -> None:
    counts.codes[code] += 1
    if TENSOR.search(code):
        counts.tensor[code] += 1
    elif code in ("LDG", "STG"):
        widths = [int(part) for part in suffix.split(".") if part in ("64", "128", "256")]
        narrow = next((bits for name, bits in (("8", 8), ("16", 16)) if f".U{name}" in suffix), 32)
        (counts.loads if code == "LDG" else counts.stores)[max(widths, default=narrow)] += 1


def _function(name: str, counts: _Counts) -> CompiledFunction:
    def total(codes: Iterable[str]) -> int:
        return sum(counts.codes[code] for code in codes)

    return CompiledFunction(
        name=name,
        spill_loads=counts.codes["LDL"],
        spill_stores=counts.codes["STL"],
        tensor=dict(counts.tensor),
        scalar_math=total(SCALAR_MATH),
        atomics=total(ATOMICS),
        combines=total(COMBINES),
        load_bits=dict(sorted(counts.loads.items())),
        store_bits=dict(sorted(counts.stores.items())),
    )
