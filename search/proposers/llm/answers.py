"""Reads and writes models' answers. The readers raise ValueError for an unusable answer, in words that the
model can act on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.records.problem import Kernel, language_of
from search.records.model_calls import storable
from search.records.tree import Category, Idea

FENCE = re.compile(
    r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
NO_CODE = "the answer has no code"
LONGEST_REASON = 300
"""Characters; a schema's error quotes the value that violates it."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """An idea as a model states it."""

    text: str
    category: Category
    expected: str
    library_entry: str = ""


def ideas_schema(seed_id: str, entry_ids: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer with ideas, in the form that both providers' strict modes accept."""
    fields = {
        "text": {"type": "string"},
        "category": {"type": "string", "enum": [category.value for category in Category]},
        "expected_effect": {"type": "string"},
        "seed": {"type": "string", "enum": [seed_id]},
        "library_entry": {"type": "string", "enum": ["", *entry_ids]},
    }
    idea = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"ideas": {"type": "array", "items": idea}},
        "required": ["ideas"],
        "additionalProperties": False,
    }


def read_ideas(text: str, schema: dict[str, Any]) -> list[Sketch]:
    """The ideas of an answer that follows the schema; at least one."""
    import jsonschema

    data = _json(text)
    try:
        jsonschema.validate(data, schema)
    except jsonschema.ValidationError as error:
        place = "/".join(str(part) for part in error.absolute_path)
        where = f" at {place}" if place else ""
        reason = error.message[:LONGEST_REASON]
        raise ValueError(f"the JSON does not follow the schema{where}: {reason}") from error
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    ideas = [
        Sketch(
            text=" ".join(storable(each["text"]).split()),
            category=Category(each["category"]),
            expected=" ".join(storable(each["expected_effect"]).split()),
            library_entry=each["library_entry"],
        )
        for each in data["ideas"]
    ]
    if not any(idea.text for idea in ideas):
        raise ValueError("the answer has no idea")
    return [idea for idea in ideas if idea.text]


def ideas_answer(ideas: Iterable[Idea]) -> str:
    """The answer from which `read_ideas` reads these ideas."""
    stated = [
        {
            "text": idea.text,
            "category": idea.category.value,
            "expected_effect": idea.expected,
            "seed": idea.parent,
            "library_entry": idea.builds_on,
        }
        for idea in ideas
    ]
    return json.dumps({"ideas": stated}, ensure_ascii=False)


def kernel_answer(kernel: Kernel) -> str:
    """The answer from which `read_kernel` reads this kernel."""
    return f"```python\n{kernel.source.strip()}\n```"


def read_kernel(text: str) -> Kernel:
    """The kernel of an answer: the last complete file among its code blocks or, without a code block, the
    text itself."""
    blocks = [match[2] for match in FENCE.finditer(text)] or [text]
    reason = NO_CODE
    for block in reversed(blocks):
        found = _why_not(block)
        if found is None:
            source = block.strip() + "\n"
            return Kernel(source=source, language=language_of(source))
        reason = found if "class ModelNew" in block or reason == NO_CODE else reason
    raise ValueError(reason)


def _why_not(source: str) -> str | None:
    """Why a text is not a kernel; None if it is."""
    if not source.strip():
        return NO_CODE
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return f"the code is not Python: {error}"
    except (RecursionError, MemoryError):
        return "the code is nested too deeply for Python to parse"
    if any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        return None
    return "the code defines no class ModelNew"


def _json(text: str) -> Any:
    """The JSON of an answer: bare, in a code block, or surrounded by text."""
    candidates = [text, *(match[2] for match in FENCE.finditer(text))]
    candidates.append(text[text.find("{") : text.rfind("}") + 1])
    reason = "the answer is not JSON"
    for candidate in candidates:
        try:
            return json.loads(candidate)
        except ValueError as error:
            reason = f"the answer is not JSON: {error}"
        except RecursionError:
            reason = "the answer is JSON nested too deeply"
    raise ValueError(reason)
