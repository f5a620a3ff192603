"""How long each section of a run's prompts is, round by round, and what a section leaves out first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from evaluators.base.jsonl_store import whole_lines
from evaluators.base.usage_error import UsageError
from search.models.client import SHOWN_AGAIN
from search.proposers.llm.measured_history import (
    MISTAKES_CHARACTERS,
    REFLECTIONS_CHARACTERS,
    SUMMARY_CHARACTERS,
    TRIED_CHARACTERS,
)
from search.proposers.llm.prompts import ENTRY_CHARACTERS, LOG_CHARACTERS
from search.records.journal import recorded_state
from search.records.model_calls import CHARACTERS_PER_TOKEN, Purpose
from search.records.run_state import RunState

LIMITS = {
    "What was tried so far": f"{TRIED_CHARACTERS:,} ({SUMMARY_CHARACTERS:,} with history=summary); ideas "
    "without a gain, the oldest first",
    "Mistakes made on this problem so far": f"{MISTAKES_CHARACTERS:,}; the rarest first",
    "Conclusions from earlier rounds": f"{REFLECTIONS_CHARACTERS:,}; the oldest first",
    "Library kernels that an idea may also use": f"{ENTRY_CHARACTERS:,} of sources; the least related first",
    "The evaluator's message": f"{LOG_CHARACTERS:,}; its middle",
    "An earlier answer could not be used": f"{SHOWN_AGAIN:,}; its middle",
}
"""The most characters in a section, without its introduction, and what is left out first beyond them. Other
sections are never shortened."""
MOST_ROUNDS = 13
"""Rounds in a table; of more, evenly spaced ones are shown."""

BLOCKS = MarkdownIt().disable("inline")


def sections(prompt: str) -> dict[str, int]:
    """The characters of each section of a prompt; its headings name the sections."""
    lines = prompt.splitlines(keepends=True)
    starts = [
        token.map[0]
        for token in BLOCKS.parse(prompt)
        if token.map and token.type == "heading_open" and token.markup == "#" and not token.level
    ]
    found: dict[str, int] = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        name = lines[start].strip("# \n").partition(":")[0]
        found[name] = found.get(name, 0) + len("".join(lines[start:end]))
    return found


def section_tables(folder: Path) -> list[str]:
    """The lines of a table for each kind of question that a run asked: the sections of each round's longest
    prompt. Raises UsageError for a run without recorded calls."""
    path = folder / "model_calls.jsonl"
    if not path.exists():
        raise UsageError(f"{path} does not exist: the run has called no model")
    state = recorded_state(folder)
    longest: dict[str, dict[int, str]] = {}
    for call in whole_lines(path.read_bytes()):
        rounds = longest.setdefault(call["purpose"], {})
        number = _round(call, state)
        rounds[number] = max(call["prompt"], rounds.get(number, ""), key=len)
    tables = [_table(purpose, longest[purpose]) for purpose in Purpose if purpose in longest]
    return [line for table in tables for line in (*table, "")]


def _round(call: Mapping[str, Any], state: RunState) -> int:
    """The round of a recorded call."""
    kind, _, subject = call["about"].partition(" ")
    if kind == "round":
        return int(subject)
    if kind == "probe":
        return state.probes[subject].round
    return (state.tree.ideas[subject] if kind == "idea" else state.tree.variants[subject]).round


def _table(purpose: str, prompts: Mapping[int, str]) -> list[str]:
    """A table with a column for each round."""
    rounds = _spaced(sorted(prompts))
    found = [sections(prompts[number]) for number in rounds]
    names = list(dict.fromkeys(name for each in reversed(found) for name in each))
    totals = [len(prompts[number]) for number in rounds]
    rows = [
        (f"{purpose}, characters", [f"round {number}" for number in rounds], "at most; left out first"),
        *((name, [_count(each.get(name, 0)) for each in found], LIMITS.get(name, "")) for name in names),
        ("together", map(_count, totals), ""),
        ("about, in tokens", [_count(total // CHARACTERS_PER_TOKEN) for total in totals], ""),
    ]
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:{width}}{_cells(cells)}  {limit}".rstrip() for name, cells, limit in rows]


def _spaced(rounds: Sequence[int]) -> list[int]:
    """At most `MOST_ROUNDS` of the rounds, with the first and the last."""
    if len(rounds) <= MOST_ROUNDS:
        return list(rounds)
    return [rounds[step * (len(rounds) - 1) // (MOST_ROUNDS - 1)] for step in range(MOST_ROUNDS)]


def _count(characters: int) -> str:
    return f"{characters:,}" if characters else "-"


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>10}" for cell in cells)
