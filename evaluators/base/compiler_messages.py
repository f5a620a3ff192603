"""What compilers say about a source, out of all that a build prints: every error with its source lines, then
the notes."""

from __future__ import annotations

import re

LEFT_OUT = "[… {} more lines]"
FOLDER = re.compile(r"(?<![\w./:<])/(?:[\w.+@~-]+/)+(?=[\w.+<-])")
"""The folder of an absolute path, which means nothing on another machine."""
DIAGNOSTIC = re.compile(
    r"(?:\S+?[:(]\d+[:,\d)]*\s*(?:catastrophic )?"  # main.cpp:3:5: error: …, a.cu(12): catastrophic error: …
    r"|(?:ptxas|nvlink|nvcc|ninja|cc1plus|ld|collect2)\b.*?)\b(?P<kind>fatal|error|warning|note|remark)\b"
    r"|(?P<linker>.*undefined reference to )"
)
"""The beginning of a line in which a compiler, an assembler or a linker reports something."""
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
        short = without_folders(line.rstrip())
        if found := DIAGNOSTIC.match(short):
            kind = errors if _is_error(found) else others
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


def reports_error(line: str) -> bool:
    """Whether a compiler, an assembler or a linker reports an error in this line."""
    found = DIAGNOSTIC.match(line)
    return found is not None and _is_error(found)


def without_folders(text: str) -> str:
    """A text whose absolute paths have lost their folders, except those inside a Python package."""

    def kept(found: re.Match[str]) -> str:
        for packages in ("site-packages/", "dist-packages/"):
            if packages in found[0]:
                return found[0].partition(packages)[2]
        return ""

    return FOLDER.sub(kept, text)


def whole_lines(lines: list[str], characters: int) -> str:
    """The first lines that fit into `characters`, and the number of those left out."""
    kept: list[str] = []
    for line in lines:
        if (characters := characters - len(line) - 1) < 0:
            kept.append(LEFT_OUT.format(len(lines) - len(kept)))
            break
        kept.append(line)
    return "\n".join(kept)


def _is_error(diagnostic: re.Match[str]) -> bool:
    return diagnostic["linker"] is not None or diagnostic["kind"] in ("fatal", "error")
