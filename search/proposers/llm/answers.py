"""Reads and writes models' answers; those with kernels are read by `evaluators.rewards.completions`. The
readers raise ValueError for an unusable answer, in words that the model can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import json_repair
from rapidfuzz import fuzz, process

from evaluators.base.languages import LANGUAGES
from evaluators.rewards.completions import code_blocks, without_thinking
from search.proposers.llm.written_ideas import field_of, written_ideas
from search.records.model_calls import storable
from search.records.tree import Category, Idea

JSON_START = re.compile(r"""[{\[](?=\s*["'“”‘{\[/])""")
CURLY = re.compile(r"[\s{\[]*“")
"""JSON in typographic quotation marks."""
MOST_BRACKETS, MOST_JSON_STARTS = 10_000, 5
LONGEST_REFLECTION = 2000
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
    language: str = ""
    library_entry: str = ""


@dataclass(frozen=True, kw_only=True)
class ProbeSketch:
    """A probe as a model asks for it (see `ProbeRequest`)."""

    question: str
    what: str
    base: str


def ideas_schema(
    seed_id: str, entry_ids: Sequence[str], *, languages: Sequence[str] = (), probes: bool = False
) -> dict[str, Any]:
    """The JSON schema of an answer with ideas, in the form that both providers' strict modes accept.
    `languages`: those that an idea chooses from, if there are several. `probes`: whether the answer also
    lists probes."""
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
    if len(languages) > 1:
        fields["language"] = {"type": "string", "enum": list(languages)}
    lists: dict[str, dict[str, Any]] = {"ideas": fields}
    if probes:
        text: dict[str, Any] = {"type": "string"}
        base = {**text, "enum": list(dict.fromkeys([seed_id, "", *entry_ids]))}
        lists["probes"] = {"question": text, "what": text, "base": base}
    return _lists_schema(lists)


def read_ideas(text: str, entry_ids: Sequence[str]) -> list[Sketch]:
    """The ideas of an answer; at least one. What a person could read is read: JSON with small faults, in
    prose or code blocks, a bare list, other names of the fields and spellings of a category, numbered or
    titled Markdown. An idea without a text is left out, and so is the last one of an answer that was cut
    off."""
    text, reason = without_thinking(text), ""
    for candidate in _json_candidates(text):
        try:
            items = _json_items(candidate)
        except ValueError as error:
            reason = reason or str(error)
            continue
        if ideas := _sketches(items, entry_ids):
            return ideas
        reason = "the answer has no idea: each needs a `text`"
    if ideas := _sketches(written_ideas(text), entry_ids):
        return ideas
    raise ValueError(reason or "the answer is not JSON")


def read_probes(text: str, seed_id: str, entry_ids: Sequence[str]) -> list[ProbeSketch]:
    """The probes that an answer asks for next to its ideas. One without a question or a description is left
    out; one of an unknown kernel is a probe of the seed."""
    for candidate in _json_candidates(without_thinking(text)):
        data = None
        with suppress(ValueError):
            data = _parsed(candidate)
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
    note = _line(without_thinking(text))
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
    for candidate in _json_candidates(without_thinking(text)):
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
            **({"language": idea.language} if idea.language else {}),
            "seed": idea.parent,
            "library_entry": idea.builds_on,
        }
        for idea in ideas
    ]
    return json.dumps({"ideas": stated}, ensure_ascii=False)


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


def _json_candidates(text: str) -> list[str]:
    """Where the JSON of an answer may be: all code blocks or lines if each is one idea, code blocks, the last
    first, the text itself, and what stands between its first and its last brackets."""
    blocks = code_blocks(text)
    found = [*reversed(blocks), text]
    parts = (part.strip().rstrip(",") for part in blocks or text.splitlines())
    objects = [part for part in parts if part.startswith("{") and part.endswith("}")]
    if len(objects) > 1 and '"ideas"' not in text:
        found.insert(0, f"[{','.join(objects)}]")
    end, last = 0, max(text.rfind("}"), text.rfind("]")) + 1
    for opening in islice(JSON_START.finditer(text), MOST_JSON_STARTS):
        if (start := opening.start()) >= end:
            with suppress(ValueError, RecursionError):
                end = json.JSONDecoder().raw_decode(text, start)[1]
            found.append(text[start : end if end > start else last] or text[start:])
    return found


def _json_items(text: str) -> list[Any]:
    """The ideas in the JSON of a text, with its small faults mended. Raises ValueError."""
    try:
        items, text = _items(_parsed(text)), text.strip()
    except RecursionError:
        raise ValueError("the answer is not JSON with ideas: it is nested too deeply") from None
    if items and text.startswith(("{", "[")) and not text.endswith(("}", "]")):
        items = items[:-1]  # cut off in the middle of the last one
        if not items:
            raise ValueError("the answer is not JSON: it ends in its first item")
    return items


def _parsed(text: str) -> Any:
    """What the JSON of a text says, with its small faults mended. Raises ValueError."""
    if CURLY.match(text):
        text = re.sub("[“”]", '"', re.sub(r'(?<!\\)"', r"\"", text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = ValueError(f"the answer is not JSON: {error}")
    text = text.strip()
    if not text.startswith(("{", "[")) or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise reason
    try:
        return json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        raise reason from None


def _items(data: Any) -> list[Any]:
    """The ideas in JSON, at whatever depth: objects with a text, or the texts of a list."""
    if isinstance(data, dict):
        if "ideas" in data:
            return _items(data["ideas"])
        inner = [
            each
            for key, each in data.items()
            if isinstance(each, dict) or (isinstance(each, list) and not field_of(str(key)))
        ]
        deeper = _items(inner)
        found = [each for each in deeper if isinstance(each, dict) and _text(each)]
        if _text(data) and ("category" in data or not found):
            return [data]
        return found or (deeper if len(inner) == 1 else [data])
    if isinstance(data, list):
        several = (_items(each) if isinstance(each, dict | list) else [each] for each in data)
        return [*chain.from_iterable(several)]
    return [data]


def _sketches(items: Iterable[Any], entry_ids: Sequence[str]) -> list[Sketch]:
    return [sketch for each in items if (sketch := _sketch(each, entry_ids))]


def _sketch(item: Any, entry_ids: Sequence[str]) -> Sketch | None:
    """The idea in an item of an answer; None if it has no text."""
    stated = item if isinstance(item, dict) else {"text": item}
    fields = {field_of(str(key)): value for key, value in stated.items()}
    entry, plans = fields.get("library_entry"), fields.get("variants")
    if not (text := _line(_text(stated))):
        return None
    return Sketch(
        text=text,
        category=_category(fields.get("category")),
        expected=_line(fields.get("expected_effect")),
        predicted_gain=_gain(fields.get("predicted_gain")),
        refuted_by=_line(fields.get("refuted_by")),
        variant_plans=tuple(filter(None, map(_line, plans))) if isinstance(plans, list) else (),
        language=_language(fields.get("language")),
        library_entry=entry if isinstance(entry, str) and entry in entry_ids else "",
    )


def _text(stated: Mapping[Any, Any]) -> str:
    """The text of an idea or, if it has another name, the longest of those it may be; "" without one."""
    texts = {str(key): each for key, each in stated.items() if isinstance(each, str) and each.strip()}
    named = (each for key, each in texts.items() if field_of(key) == "text")
    return texts.get("text") or max(named, key=len, default="")


def _language(stated: object) -> str:
    """The language that an idea names by its name or its title; "" for none or an unknown one."""
    said = _line(stated).lower()
    return next((name for name, each in LANGUAGES.items() if said in (name, each.title.lower())), "")


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
