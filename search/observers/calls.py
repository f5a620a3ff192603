"""The questions and answers of models, as recorded in a run folder's `model_calls.jsonl`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from evaluators.base.jsonl_store import whole_lines
from search.records.model_calls import ModelCall, Purpose
from search.records.tree import Idea, Variant


@dataclass(frozen=True, kw_only=True)
class CallTexts:
    """The texts of one call; empty if the file does not have them."""

    system: str = ""
    prompt: str = ""
    answer: str = ""


def read_texts(folder: Path) -> dict[str, CallTexts]:
    """The texts by call id; empty if no model was called. Torn lines are left out."""
    path = folder / "model_calls.jsonl"
    found: dict[str, CallTexts] = {}
    if not path.exists():
        return found
    for data in whole_lines(path.read_bytes()):
        texts = {name: str(data.get(name) or "") for name in ("system", "prompt", "answer")}
        found[str(data.get("id"))] = CallTexts(**texts)
    return found


def calls_by_variant(
    calls: Iterable[ModelCall], texts: Mapping[str, CallTexts], variants: Iterable[Variant]
) -> dict[str, list[str]]:
    """By variant id, the calls whose answers contain its source: calls about its idea, or about the variant
    that it repairs."""
    about = _by_subject(calls)
    return {
        variant.id: [
            id
            for id in about[_subject(variant)]
            if id in texts and variant.written.source.strip() in texts[id].answer
        ]
        for variant in variants
    }


def calls_by_idea(
    calls: Iterable[ModelCall], texts: Mapping[str, CallTexts], ideas: Iterable[Idea]
) -> dict[str, list[str]]:
    """By idea id, the calls that proposed it: those for ideas in its round whose answers contain its text, as
    plain text or as JSON."""
    known = list(calls)
    asked = _by_subject(call for call in known if call.purpose is Purpose.IDEAS)
    found = {}
    for idea in ideas:
        wanted = (idea.text, json.dumps(idea.text)[1:-1])
        found[idea.id] = [
            id
            for id in asked[f"round {idea.round}"]
            if id in texts and any(text in texts[id].answer for text in wanted)
        ]
    return found


def calls_about_idea(calls: Iterable[ModelCall], variants: Iterable[Variant]) -> dict[str, list[ModelCall]]:
    """By idea id, all calls to implement it, including failed calls and repairs."""
    idea_of = {f"variant {variant.id}": variant.idea for variant in variants}
    found: defaultdict[str, list[ModelCall]] = defaultdict(list)
    for call in calls:
        if (idea := idea_of.get(call.about) or call.about.removeprefix("idea ")) != call.about:
            found[idea].append(call)
    return found


def _subject(variant: Variant) -> str:
    return f"variant {variant.repairs}" if variant.repairs else f"idea {variant.idea}"


def _by_subject(calls: Iterable[ModelCall]) -> defaultdict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for call in calls:
        found[call.about].append(call.id)
    return found
