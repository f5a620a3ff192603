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
NOR_THESE = """
Nor are these stopped, which no kernel here tries, since each needs luck, much work, or a problem of its own:

- Wrong outputs in few of the calls. Of a timed block the outputs of one call are compared, those of the
  others are only looked at for elements that nobody wrote. Who leaves 15 % of the calls out is missed in
  about one measurement in ten; whatever wins a search is measured again, and longer.
- Small calls that are computed together on a GPU where a chain of calls tells nothing: inputs that are
  integers alone, or answers that are about the same number whatever the inputs.
- Work that a kernel does by itself only while a GPU's kernels are counted, or its threads are looked at: that
  is an order of its own, which the kernel can see as it can forge the answer.
- A little own code beside the library's under `no_library` on a CPU. Who shows no own code at all is rejected
  there; of the others the evaluation tells the own share, since a library's call earns nothing over eager.
"""


def page() -> str:
    """The whole document."""
    known = fixtures()
    sections = [HEAD]
    for group in GROUPS:
        chosen = [each for each in known if each.group == group]
        more = NOR_THESE if group == NOT_STOPPED else ""
        sections.append(f"## {group.replace('_', ' ').capitalize()}\n\n{_table(group, chosen)}{more}")
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
