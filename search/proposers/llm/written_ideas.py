"""Reads ideas that a model wrote as numbered or titled Markdown instead of JSON."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from search.records.tree import Category

FIELD_NAMES = {
    "text": ("text", "idea", "hypothesis", "description", "change", "title", "name"),
    "category": ("category",),
    "expected_effect": ("expected_effect", "expected", "effect", "expected_improvement"),
    "predicted_gain": ("predicted_gain", "predicted_speedup", "expected_gain", "expected_speedup", "gain"),
    "refuted_by": ("refuted_by", "refuted_if", "refutation", "falsified_by"),
    "variants": ("variants",),
    "language": ("language", "written_in"),
    "library_entry": ("library_entry",),
    "seed": ("seed",),
}
"""The names that models give to the fields of an idea, the one that they are asked for first."""

HEADING = re.compile(r"^(?P<style>#{1,6} +)(?P<rest>\S.*)$", re.MULTILINE)
NUMBERED = re.compile(
    r"^(?P<style> {0,3}(?:#{1,6} +)?(?:\*\*)?(?:(?:idea|hypothesis|optimi[sz]ation) *#?)?) *"
    r"(?P<number>\d+)(?: *[.):]| +[-–—]|(?=\W*$))(?=[\s*]|$)(?P<rest>.*)$",
    re.MULTILINE | re.IGNORECASE,
)
LABEL = re.compile(r"^\s*(?:[-*+•] +)?[*`]{0,2}([A-Za-z][A-Za-z _-]{2,30})[*`]{0,2}:(.*)$")
MARKS = re.compile(r"^\s*(?:[-*+•]|\d+[.)]) +|^\W*\*\*|(?<!\w)\*\*|\*\*(?!\w)")
"""Marks of lists and of bold text."""
OUTSIDE = re.compile(r"\n[ \t]*\n(?=[^\s*+•-])")
"""Where a paragraph begins that belongs to no item of the list above it."""

Stated = Mapping[str, str | Sequence[str]]


def field_of(name: str) -> str | None:
    """The field of an idea that a model's name for it means; None for another name."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return next((field for field, names in FIELD_NAMES.items() if "_".join(words) in names), None)


def written_ideas(text: str) -> list[Stated]:
    """The ideas of a text, each as its fields: the items of the last numbered list, or the last headings of
    one level, that name categories, all of them if possible. No ideas without such a list."""
    lists = [*_titled(text), *_numbered(text)]
    found = [[_stated(item, end, text) for item, end in _with_ends(each, text)] for each in reversed(lists)]
    for enough in (all, any):
        for ideas in found:
            if enough("category" in each for each in ideas):
                return ideas
    return []


def _numbered(text: str) -> list[list[re.Match[str]]]:
    """The items of each list in a text that is numbered from 1 and marked in one way."""
    lists: defaultdict[str, list[list[re.Match[str]]]] = defaultdict(list)
    for match in NUMBERED.finditer(text):
        there = lists[match["style"].lower()]
        if match["number"] == "1":
            there.append([match])
        elif there and int(match["number"]) == len(there[-1]) + 1:
            there[-1].append(match)
    return sorted((items for each in lists.values() for items in each), key=lambda items: items[0].start())


def _titled(text: str) -> list[list[re.Match[str]]]:
    """The headings of each level whose own sections name a category."""
    levels: defaultdict[str, list[re.Match[str]]] = defaultdict(list)
    for match in HEADING.finditer(text):
        following = HEADING.search(text, match.end())
        if "category" in _stated(match, following.start() if following else len(text), text):
            levels[match["style"]].append(match)
    return list(levels.values())


def _with_ends(items: Sequence[re.Match[str]], text: str) -> list[tuple[re.Match[str], int]]:
    """The items of a list with the places where they end: the last one at the next heading that is not below
    its own or, in a plain list, at the next paragraph."""
    last = items[-1]
    level = last["style"].count("#") or 6
    after = [each for each in HEADING.finditer(text, last.end()) if each["style"].count("#") <= level]
    if not last["style"].strip():
        after += OUTSIDE.finditer(text, last.end())
    end = min((each.start() for each in after), default=len(text))
    return list(zip(items, [*(each.start() for each in items[1:]), end], strict=True))


def _stated(item: re.Match[str], end: int, text: str) -> Stated:
    """The fields of an item that ends at `end`: a title, text, and lines that begin with the name of a field.
    What follows such a line belongs to its field, and after a blank line to none."""
    title, *body = text[item.start("rest") : end].splitlines() or [""]
    apart = "#" in item["style"] or title.rstrip().endswith("**") or not "".join(body[:1]).strip()
    fields: defaultdict[str, list[str]] = defaultdict(list)
    field, has_text = "text", False
    for line in (title, *body):
        label = LABEL.match(line)
        if label and (named := field_of(label[1])):
            has_text = has_text or named == "text" or len(fields["text"]) > bool(title.strip())
            field, line = named, label[2]
        elif not line.strip() and field != "variants":
            field = "" if has_text else "text"
        if field and (plain := MARKS.sub("", line).strip()):
            fields[field].append(plain)
    if apart and len(fields["text"]) > 1 and fields["text"][0][-1] not in ".:!?":
        fields["text"][0] += "."
    stated = {
        name: lines if name == "variants" else " ".join(lines) for name, lines in fields.items() if lines
    }
    said = text[item.start() : end].lower()
    mentioned = next(({"category": each.value} for each in Category if each.value in said), {})
    return {**mentioned, **stated}
