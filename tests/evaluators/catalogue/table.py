"""Writes `docs/cheats.md` from the catalogue: `python -m tests.evaluators.catalogue.table`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.evaluators.catalogue import DEVICES, GROUPS, Fixture, fixtures

PAGE = Path(__file__).parents[3] / "docs" / "cheats.md"
HEAD = """# What the evaluator does about cheats

Written by `python -m tests.evaluators.catalogue.table` from `tests/evaluators/catalogue/`, where each line
below is a kernel that the tests run. `no_gain` says that the outputs are right and that the cheat earned
nothing.
"""
NOT_STOPPED = "not_stopped"


def page() -> str:
    """The whole document."""
    known = fixtures()
    sections = [HEAD]
    for group in GROUPS:
        chosen = [each for each in known if each.group == group]
        sections.append(f"## {group.replace('_', ' ').capitalize()}\n\n{_table(group, chosen)}")
    return "\n".join(sections)


def _table(group: str, chosen: Iterable[Fixture]) -> str:
    reason = {NOT_STOPPED: "why not", "honest": "why it passes"}.get(group, "defence")
    lines = [f"| kernel | what it tries | device | {reason} | verdict |", "|---|---|---|---|---|"]
    words = {devices: word for word, devices in DEVICES.items()}
    for each in chosen:
        verdict = ", ".join(each.verdicts) + (f" ({each.rule})" if each.rule else "")
        name = each.name.replace("_", " ")
        cells = (name, each.says, words[each.devices], each.defence, verdict)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
