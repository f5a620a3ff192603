"""Reads kernels in language models' completions, and writes them as answers. The readers raise ValueError for
an unusable completion, in words that the model can act on."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import pairwise

from markdown_it import MarkdownIt
from rapidfuzz import fuzz, process

from evaluators.base.languages import language_of
from evaluators.records.problem import Kernel

FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
IMPORT = re.compile(r"^(import|from) \w", re.MULTILINE)
INCLUDE = re.compile(r"^\s*#\s*include\b", re.MULTILINE)
THOUGHTS = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
EDIT = re.compile(
    r"^<{5,9} ?SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE[ \t]*$", re.MULTILINE | re.DOTALL
)
"""An edit in an answer: the text to replace, and the text that replaces it."""

BLOCKS = MarkdownIt().disable("inline")  # which is slow for odd texts, and says nothing of blocks

FILE_NAME = re.compile(r"\A\s*[\w./-]+\.py:?[ \t]*\n")
"""The name of a file above its contents."""
MOST_FILE_STARTS = 100
NO_CODE = "the answer has no code"


def kernel_answer(kernel: Kernel) -> str:
    """The answer from which `read_kernel` reads this kernel."""
    return f"```python\n{kernel.source.strip()}\n```"


def read_kernel(text: str, seed: str = "") -> Kernel:
    """The kernel of an answer: the file that edits make of the source `seed`, the last complete file among
    its code blocks or, without one, the last part of the text that is a file."""
    text = FILE_NAME.sub("", text.replace("\r\n", "\n"))
    if _why_not(text) is None:
        return _kernel(text)  # a file may contain fences, in a docstring
    text = without_thinking(text)
    blocks, reasons = code_blocks(text), []
    if seed and (edits := EDIT.findall(text) or EDIT.findall("\n".join(blocks))):
        try:
            return _kernel(edited(seed, edits))
        except ValueError as error:
            reasons.append(str(error))
    if files := _files(text):
        return _kernel(files[-1])
    likely = sorted(blocks[::-1] or [text], key=lambda block: "class ModelNew" not in block)
    raise ValueError([*reasons, *filter(None, map(_why_not, likely)), NO_CODE][0])


def read_kernels(text: str, seed: str = "", count: int = 1) -> list[Kernel]:
    """The kernels of an answer to a question for `count` variants: its last `count` complete files, at least
    one. Edits of `seed` are one kernel."""
    files = _files(without_thinking(text)) if count > 1 else []
    return [_kernel(file) for file in files[-count:]] or [read_kernel(text, seed)]


def edited(source: str, edits: Sequence[tuple[str, str]]) -> str:
    """The source after replacing, one after another, each text that stands in it exactly once. Raises
    ValueError, naming the edit and the closest place, for another text."""
    for number, (old, new) in enumerate(edits, 1):
        if (count := source.count(old)) == 1 and old:
            source = source.replace(old, new)
        elif count:
            raise ValueError(f"edit {number}: its SEARCH text occurs {count} times; add lines around it")
        else:
            raise ValueError(f"edit {number}: its SEARCH text does not occur; {_closest(source, old)}")
    if reason := _why_not(source):
        raise ValueError(f"after the edits, {reason}")
    return source


def code_blocks(text: str, *, indented: bool = False) -> list[str]:
    """The contents of all fenced code blocks, whatever their fence, its length and its indentation;
    if `indented`, also of indented blocks without a fence."""
    blocks = []
    for token in BLOCKS.parse(text):
        if token.type == "fence":
            blocks.append(token.content)
        elif token.type == "code_block" and FENCE.search(token.content):
            blocks += code_blocks(token.content)  # fences indented by four spaces or more
        elif token.type == "code_block" and indented:
            blocks.append(token.content)
    return blocks


def _kernel(source: str) -> Kernel:
    source = source.strip() + "\n"
    return Kernel(source=source, language=language_of(source))


def _closest(source: str, wanted: str) -> str:
    """Names the line of a source that is most like the first line of a text."""
    first = next((line.strip() for line in wanted.splitlines() if line.strip()), "")
    lines = source.splitlines()
    found = process.extractOne(first, lines, scorer=fuzz.ratio) if first else None
    return f"the closest line is {found[2] + 1}: {found[0].strip()}" if found else "it is empty"


def _files(text: str) -> list[str]:
    """The complete files of a text: those of its code blocks or, without one, the parts between its prose."""
    blocks = [FILE_NAME.sub("", block) for block in code_blocks(text, indented=True)]
    for number, (before, block) in enumerate(pairwise(blocks), 1):
        if "class ModelNew" in block and IMPORT.search(before) and not IMPORT.search(block):
            joined = f"{before}\n\n{block}"  # one file in two blocks
            blocks[number] = joined if _why_not(joined) is None else block
    complete = [block for block in blocks if _why_not(block) is None]
    return complete or [part for part in _python_parts(text) if _why_not(part) is None]


def _python_parts(text: str) -> list[str]:
    """The parts of a text that are Python, each from an import up to where prose begins. Code that ends at
    an indented line has a fault there, and is none."""
    lines, parts, end = text.split("\n"), [], 0
    starts = [number for number, line in enumerate(lines) if IMPORT.match(line)]
    for start in starts[:MOST_FILE_STARTS]:
        if start >= end and (part := _python(lines[start:])):
            end = start + len(part)
            if not "".join(lines[end : end + 1])[:1].isspace():
                parts.append("\n".join(part))
    return parts


def _python(lines: list[str]) -> list[str]:
    """The longest beginning of some lines that is Python, as far as its errors tell."""
    while lines:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            lines = lines[: max(0, min(error.lineno or 0, len(lines)) - 1)]
        except (ValueError, RecursionError, MemoryError):
            return []
        else:
            break
    return lines


def _why_not(source: str) -> str | None:
    """Why a text is not a kernel; None if it is."""
    if not source.strip():
        return NO_CODE
    try:
        tree = ast.parse(source)
    except (RecursionError, MemoryError):
        return "the code is nested too deeply for Python to parse"
    except (SyntaxError, ValueError) as error:
        if INCLUDE.search(source) and "import" not in source:
            return (
                "the code is C++ or CUDA alone; put it into a string of a Python file that compiles it with "
                "load_inline and defines class ModelNew"
            )
        return f"the code is not Python: {error}"
    if any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return None
    return "the code defines no class ModelNew"


def without_thinking(text: str) -> str:
    """An answer without the thoughts that some models write before it."""
    return THOUGHTS.sub("", text).strip("\n")
