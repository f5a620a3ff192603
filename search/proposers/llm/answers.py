"""Reads and writes models' answers. The readers raise ValueError for an unusable answer, in words that the
model can act on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import json_repair
from markdown_it import MarkdownIt
from rapidfuzz import fuzz, process

from evaluators.records.problem import Kernel, language_of
from search.records.model_calls import storable
from search.records.tree import Category, Idea

FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
IMPORT = re.compile(r"(import|from) \w")
INCLUDE = re.compile(r"^\s*#\s*include\b", re.MULTILINE)
THOUGHTS = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
EDIT = re.compile(
    r"^<{5,9} ?SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE[ \t]*$", re.MULTILINE | re.DOTALL
)
"""An edit in an answer: the text to replace, and the text that replaces it."""

BLOCKS = MarkdownIt().disable("inline")  # which is slow for odd texts, and says nothing of blocks

TEXT_NAMES = ("text", "idea", "hypothesis", "description")
MOST_BRACKETS = 10_000
NO_CODE = "the answer has no code"
LONGEST_REFLECTION = 1000
"""Characters of a reflection; sentences beyond are left out."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """An idea as a model states it."""

    text: str
    category: Category
    expected: str
    predicted_gain: float = 0.0
    refuted_by: str = ""
    variant_plans: tuple[str, ...] = ()
    library_entry: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeSketch:
    """A probe as a model asks for it (see `ProbeRequest`)."""

    question: str
    what: str
    base: str


def ideas_schema(seed_id: str, entry_ids: Sequence[str], *, probes: bool = False) -> dict[str, Any]:
    """The JSON schema of an answer with ideas, in the form that both providers' strict modes accept.
    `probes`: whether the answer also lists probes."""
    fields = {
        "text": {"type": "string"},
        "category": {"type": "string", "enum": [category.value for category in Category]},
        "expected_effect": {"type": "string"},
        "predicted_gain": {"type": "number"},
        "refuted_by": {"type": "string"},
        "variants": {"type": "array", "items": {"type": "string"}},
        "seed": {"type": "string", "enum": [seed_id]},
        "library_entry": {"type": "string", "enum": ["", *entry_ids]},
    }
    lists: dict[str, dict[str, Any]] = {"ideas": fields}
    if probes:
        text: dict[str, Any] = {"type": "string"}
        base = {**text, "enum": list(dict.fromkeys([seed_id, "", *entry_ids]))}
        lists["probes"] = {"question": text, "what": text, "base": base}
    return _lists_schema(lists)


def read_ideas(text: str, entry_ids: Sequence[str]) -> list[Sketch]:
    """The ideas of an answer; at least one. What a person could read is read: JSON with small faults, in
    prose or a code block, a bare list, other spellings of a category. An idea without a text is left out,
    and so is the last one of an answer that was cut off."""
    reason = ""
    for candidate in _json_candidates(_without_thinking(text)):
        try:
            items = _json_items(candidate)
        except ValueError as error:
            reason = reason or str(error)
            continue
        if ideas := [sketch for each in items if (sketch := _sketch(each, entry_ids))]:
            return ideas
        reason = "the answer has no idea: each needs a `text`"
    raise ValueError(reason or "the answer is not JSON")


def read_probes(text: str, seed_id: str, entry_ids: Sequence[str]) -> list[ProbeSketch]:
    """The probes that an answer asks for next to its ideas. One without a question or a description is left
    out; one of an unknown kernel is a probe of the seed."""
    for candidate in _json_candidates(_without_thinking(text)):
        try:
            data = json.loads(candidate)
        except (ValueError, RecursionError):
            data = _mended(candidate)
        if isinstance(data, dict) and isinstance(data.get("probes"), list):
            stated = (each for each in data["probes"] if isinstance(each, dict))
            found = (
                ProbeSketch(
                    question=_line(each.get("question")),
                    what=_line(each.get("what")),
                    base=each["base"] if each.get("base") in ("", *entry_ids) else seed_id,
                )
                for each in stated
            )
            return [each for each in found if each.question and each.what]
    return []


def read_reflection(text: str) -> str:
    """The note in an answer, as one line, cut after the last sentence that there is room for."""
    note = _line(_without_thinking(text))
    if not note:
        raise ValueError("the answer has no text")
    if len(note) <= LONGEST_REFLECTION:
        return note
    end = note.rfind(". ", 0, LONGEST_REFLECTION) + 1
    return note[: end or LONGEST_REFLECTION]


def ranking_schema(count: int) -> dict[str, Any]:
    """The JSON schema of a ranking of `count` ideas."""
    fields = {
        "idea": {"type": "integer", "enum": list(range(1, count + 1))},
        "rejected": {"type": "boolean"},
        "reason": {"type": "string"},
    }
    return _lists_schema({"ranking": fields})


def read_ranking(text: str, count: int) -> list[int]:
    """The places of `count` ideas, from 0, the most promising first. Rejected ones are left out; those that
    the answer does not mention come last."""
    reason = "the answer ranks no idea"
    for candidate in _json_candidates(_without_thinking(text)):
        try:
            items = _json_items(candidate)
        except ValueError as error:
            reason = str(error)
            continue
        rejected: dict[int, bool] = {}
        for item in items:
            stated = item if isinstance(item, dict) else {"idea": item}
            number = str(stated.get("idea"))
            if number.isdecimal() and 1 <= int(number) <= count:
                rejected.setdefault(int(number) - 1, stated.get("rejected") is True)
        if rejected:
            places = [*rejected, *(place for place in range(count) if place not in rejected)]
            if kept := [place for place in places if not rejected.get(place)]:
                return kept
            reason = "the answer rejects every idea"
    raise ValueError(reason)


def ideas_answer(ideas: Iterable[Idea]) -> str:
    """The answer from which `read_ideas` reads these ideas."""
    stated = [
        {
            "text": idea.text,
            "category": idea.category.value,
            "expected_effect": idea.expected,
            "predicted_gain": idea.predicted_gain,
            "refuted_by": idea.refuted_by,
            "variants": list(idea.variant_plans),
            "seed": idea.parent,
            "library_entry": idea.builds_on,
        }
        for idea in ideas
    ]
    return json.dumps({"ideas": stated}, ensure_ascii=False)


def kernel_answer(kernel: Kernel) -> str:
    """The answer from which `read_kernel` reads this kernel."""
    return f"```python\n{kernel.source.strip()}\n```"


def read_kernel(text: str, seed: str = "") -> Kernel:
    """The kernel of an answer: the last complete file among its code blocks, the file that edits make of
    the source `seed`, or, without a code block, the part of the text that is a file."""
    if _why_not(text) is None:
        return _kernel(text)  # a file may contain fences, in a docstring
    text = _without_thinking(text)
    if seed and (edits := EDIT.findall(text)):
        return _kernel(edited(seed, edits))
    reason = NO_CODE
    for block in reversed(code_blocks(text) or [_unfenced(text)]):
        found = _why_not(block)
        if found is None:
            return _kernel(block)
        reason = found if "class ModelNew" in block or reason == NO_CODE else reason
    raise ValueError(reason)


def read_kernels(text: str, seed: str = "", count: int = 1) -> list[Kernel]:
    """The kernels of an answer to a question for `count` variants: its last `count` complete files, at least
    one. Edits of `seed` are one kernel."""
    blocks = code_blocks(_without_thinking(text)) if count > 1 else []
    kernels = [_kernel(block) for block in blocks if _why_not(block) is None][-count:]
    return kernels or [read_kernel(text, seed)]


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


def code_blocks(text: str) -> list[str]:
    """The contents of all fenced code blocks, whatever their fence, its length and its indentation."""
    blocks = []
    for token in BLOCKS.parse(text):
        if token.type == "fence":
            blocks.append(token.content)
        elif token.type == "code_block" and FENCE.search(token.content):
            blocks += code_blocks(token.content)  # fences indented by four spaces or more
    return blocks


def _lists_schema(lists: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of an object with lists of these names, whose items have these fields."""
    return _object({name: {"type": "array", "items": _object(fields)} for name, fields in lists.items()})


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


def _kernel(source: str) -> Kernel:
    source = source.strip() + "\n"
    return Kernel(source=source, language=language_of(source))


def _closest(source: str, wanted: str) -> str:
    """Names the line of a source that is most like the first line of a text."""
    first = next((line.strip() for line in wanted.splitlines() if line.strip()), "")
    lines = source.splitlines()
    found = process.extractOne(first, lines, scorer=fuzz.ratio) if first else None
    return f"the closest line is {found[2] + 1}: {found[0].strip()}" if found else "it is empty"


def _unfenced(text: str) -> str:
    """The part of a text without fences that is a Python file: from the first import up to where prose
    begins again. The whole text if no part is."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if IMPORT.match(line)), 0)
    part = lines[start:]
    while part:
        try:
            ast.parse("\n".join(part))
        except SyntaxError as error:
            part = part[: max(0, min(error.lineno or 0, len(part)) - 1)]
        except ValueError:
            break
        else:
            return "\n".join(part)
    return text


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


def _without_thinking(text: str) -> str:
    """An answer without the thoughts that some models write before it."""
    return THOUGHTS.sub("", text).strip("\n")


def _json_candidates(text: str) -> list[str]:
    """Where the JSON of an answer may be: code blocks, the last first, then the text itself, and what stands
    between its outermost brackets."""
    found = [*reversed(code_blocks(text)), text]
    for opening, closing in ("{}", "[]"):
        if (start := text.find(opening)) >= 0:
            found.append(text[start : text.rfind(closing) + 1] or text[start:])
    return found


def _json_items(text: str) -> list[Any]:
    """The items of the JSON of a text, with its small faults mended. Raises ValueError."""
    try:
        return _items(json.loads(text))
    except (ValueError, RecursionError) as error:
        reason = ValueError(f"the answer is not JSON: {error}")
    data = _mended(text)
    items = _items(data) if data is not None else []
    if items and not text.rstrip().endswith(("}", "]")):
        items = items[:-1]  # cut off in the middle of the last one
    if not items:
        raise reason
    return items


def _mended(text: str) -> Any:
    """What JSON with faults says; None if it cannot be read."""
    text = text.strip()
    if not text.startswith(("{", "[")) or text.count("[") + text.count("{") > MOST_BRACKETS:
        return None
    return json_repair.loads(text, skip_json_loads=True)


def _items(data: Any) -> list[Any]:
    """The ideas in JSON: a list, the list of an object, or a single idea."""
    if isinstance(data, dict):
        lists = [each for each in data.values() if isinstance(each, list)]
        is_idea = any(name in data for name in TEXT_NAMES)
        data = data["ideas"] if "ideas" in data else lists[0] if len(lists) == 1 and not is_idea else [data]
    return data if isinstance(data, list) else [data]


def _sketch(item: Any, entry_ids: Sequence[str]) -> Sketch | None:
    """The idea in an item of an answer; None if it has no text."""
    stated = item if isinstance(item, dict) else {"text": item}
    text = next((stated[name] for name in TEXT_NAMES if stated.get(name)), "")
    if not isinstance(text, str) or not text.strip():
        return None
    entry, plans = stated.get("library_entry"), stated.get("variants")
    return Sketch(
        text=_line(text),
        category=_category(stated.get("category")),
        expected=_line(stated.get("expected_effect")),
        predicted_gain=_gain(stated.get("predicted_gain")),
        refuted_by=_line(stated.get("refuted_by")),
        variant_plans=tuple(filter(None, map(_line, plans))) if isinstance(plans, list) else (),
        library_entry=entry if isinstance(entry, str) and entry in entry_ids else "",
    )


def _line(stated: object) -> str:
    """A value as one line of text; "" for none."""
    return "" if stated is None else " ".join(storable(str(stated)).split())


def _gain(stated: object) -> float:
    """A predicted gain, from a number or words such as "1.3x"; 0 if there is none."""
    found = re.search(r"\d+(\.\d+)?", str(stated)) if isinstance(stated, int | float | str) else None
    return float(found[0]) if found else 0.0


def _category(stated: object) -> Category:
    """The category whose words are closest to those stated; without a close one, the broadest."""
    words = " ".join(re.findall(r"[a-z]+", str(stated or "").lower()))
    found = process.extractOne(
        words, [each.value for each in Category], scorer=fuzz.token_set_ratio, score_cutoff=60
    )
    return Category(found[0]) if found else Category.COMPUTE
