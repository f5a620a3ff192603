"""What compilers say about a source, out of all that a build prints: every error with its source lines, then
the notes."""

from __future__ import annotations

import re

LEFT_OUT = "[… {} more lines]"
PATH = re.compile(r"(?<![\w.])/[^\s:,()'\"‘’]*/(?=[\w.+-]+)")
"""The folder of a path: scratch folders mean nothing to an author."""
DIAGNOSTIC = re.compile(
    r"(?:\S+?(?:[:(]\d+[:,\d)]*)\s*(?:fatal |catastrophic )?"  # main.cpp:3:5: error: …, a.cu(12): error: …
    r"|(?:ptxas|nvlink|nvcc|cc1plus|ld|collect2)\b.*?)\b(?P<kind>error|warning|note|remark)\b"
    r"|(?P<linker>.*undefined reference to )"
)
CONTEXT = re.compile(
    r"\S+: In (?:function|member function|instantiation|constructor|lambda)|\S+:\d+:\d+:\s+required from"
)
"""Lines that say where the next diagnostic is."""
END = re.compile(r"ninja: |FAILED: |\[\d+/\d+\] |\d+ errors? detected|compilation terminated|\s*$")
"""Lines that belong to no diagnostic."""


def compiler_messages(text: str, characters: int) -> str:
    """The diagnostics in the output of a build: errors before notes and warnings, without the folders of
    paths and without repetitions, in whole lines of at most `characters` together. "" without an error."""
    errors: list[str] = []
    others: list[str] = []
    block: list[str] | None = None
    context: list[str] = []
    seen: set[str] = set()
    for line in text.splitlines():
        short = PATH.sub("", line.rstrip())
        if found := DIAGNOSTIC.match(short):
            kind = errors if found["linker"] or found["kind"] == "error" else others
            is_new = short not in seen
            seen.add(short)
            block = kind if is_new else None
            if block is not None:
                block += [*context, short]
            context = []
        elif CONTEXT.match(short):
            context.append(short)
            block = None
        elif END.match(short):
            block, context = None, []
        elif block is not None:
            block.append(short)
    return whole_lines([*errors, *others], characters) if errors else ""


def whole_lines(lines: list[str], characters: int) -> str:
    """The first lines that fit into so many characters, and how many were left out."""
    kept: list[str] = []
    for line in lines:
        if (characters := characters - len(line) - 1) < 0:
            kept.append(LEFT_OUT.format(len(lines) - len(kept)))
            break
        kept.append(line)
    return "\n".join(kept)
