"""Writes `docs/reference/cheats.md` from the catalogue: `python -m tests.evaluators.catalogue.table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.evaluators.catalogue import DEVICES, GROUPS, NO_GAIN_SPEEDUP, Fixture, fixtures

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cheats.md"
HEAD = """# Catalogue of cheats

This page lists every kernel in the judge's test catalogue: {cheats} cheats and {honest} honest kernels. It
shows what each kernel tries, what stops it, and the verdict that the tests require. {stopped} of the cheats
are caught or gain nothing. The other {missed} are known to get through, and the section
[Not stopped](#not-stopped) says why.

[How a kernel is judged](../explanation/judging.md) explains the defences.
[Results: judging](../results/judging.md) compares KernelBench's evaluation with Ideatree's on this
catalogue. `python -m tests.evaluators.catalogue.table` writes this page from the kernels' own files.

## How to read the tables

- **kernel** is the name of a file in `tests/evaluators/catalogue/`, with spaces in place of underscores.
- **device** says where the tests run the kernel: `any` means on CPUs and on CUDA GPUs.
- **verdict** is the status that the evaluation must have. If the table lists several, any of them is right.
  For `rejected`, the broken rule may follow in brackets.
- **`no_gain`** means that the outputs are right and that the cheat gained nothing: the lower end of the
  speedup's interval stays below {no_gain} times eager.
- **"works only if"** marks a probe. It computes the right answer only if its attack succeeds, so `incorrect`
  means that the attack failed.

| group | kernels | what they have in common |
|---|---|---|
"""
ABOUT = {
    "stealing_the_answer": (
        "They look for the right answer, or for signs of being checked, instead of computing.",
        "These kernels look for the expected output, for the seed behind it, or for a sign that they are\n"
        "being checked. The answers, the seeds and the clock are in another process, and any timed call may\n"
        "be checked.",
    ),
    "weak_oracle": (
        "They are wrong, but a weak comparison would accept them.",
        "These kernels are wrong in a way that a loose tolerance, a single input distribution or a careless\n"
        "comparison would miss. Many are mistakes that an honest author can make.",
    ),
    "no_kernel": (
        "They leave the work to a library where the problem forbids that.",
        "These kernels are for problems with `libraries: no_library`, whose kernels have to do the work\n"
        "themselves. Attribution finds out whose code did the work.",
    ),
    "reuse": (
        "They reuse work from another call, or compute several calls together.",
        "These kernels do less work per call than a user's calls would need: they cache answers, keep\n"
        "something computed from the weights, or compute a whole block at once.",
    ),
    "timing": (
        "They make the measured time shorter than the work.",
        "These kernels move work out of the measured time, change a clock, report false times or slow the\n"
        "baseline down. The judge's own clock runs over whole blocks, and no figure comes from the runner.",
    ),
    "attacking_the_harness": (
        "They attack the evaluator, its processes or the machine.",
        "These kernels send forged messages, replace the evaluator's code, or try to leave the sandbox.\n"
        "[What isolation promises](../explanation/security.md) describes the sandbox.",
    ),
    "not_stopped": (
        "They are cheats that get through.",
        "These kernels come out `correct`. They are in the tests so that this list of limits stays accurate.",
    ),
    "honest": (
        "They are right kernels that a strict judge might reject by mistake.",
        "These kernels must come out `correct`. Each one resembles a cheat in some way, or uses a freedom\n"
        "that kernels have.",
    ),
}
"""For each group: its row in the overview, and how its section begins."""
NOT_STOPPED = "not_stopped"
NOR_THESE = """
Some other cheats are not stopped either. No kernel here tries them, because each needs luck, a lot of work,
or a special problem:

- **Wrong outputs in a few calls.** Of a timed block, the judge compares the outputs of one call. It checks
  the others only for elements that nobody wrote. A kernel that leaves out 15 % of the calls is missed in
  about one measurement in ten. The winner of a search is measured again, and for longer.
- **Small calls that are computed together on a GPU, where a chain of calls shows nothing.** This is possible
  if all inputs are integers, or if the answers are about the same number for any input.
- **Own work only while the judge looks.** While the judge counts a GPU's kernels or samples threads, the
  runner follows a separate order. A kernel can recognise that order, just as it can forge the answer to it.
- **A little own code next to the library's under `no_library` on a CPU.** A kernel in which no own code was
  seen is rejected there. For other kernels the evaluation reports the own share, because calling a library
  gains nothing over eager on a CPU.
"""


def page() -> str:
    """The whole document."""
    known = fixtures()
    sections = [_head(known)]
    for group in GROUPS:
        chosen = [each for each in known if each.group == group]
        more = NOR_THESE if group == NOT_STOPPED else ""
        sections.append(f"## {_title(group)}\n\n{ABOUT[group][1]}\n\n{_table(group, chosen)}{more}")
    return "\n".join(sections)


def _head(known: Sequence[Fixture]) -> str:
    counts = Counter(each.group for each in known)
    cheats = len(known) - counts["honest"]
    rows = [
        f"| [{_title(each)}](#{each.replace('_', '-')}) | {counts[each]} | {ABOUT[each][0]} |\n"
        for each in GROUPS
    ]
    text = HEAD.format(
        cheats=cheats,
        honest=counts["honest"],
        stopped=cheats - counts[NOT_STOPPED],
        missed=counts[NOT_STOPPED],
        no_gain=NO_GAIN_SPEEDUP,
    )
    return text + "".join(rows)


def _title(group: str) -> str:
    return group.replace("_", " ").capitalize()


def _table(group: str, chosen: Iterable[Fixture]) -> str:
    reason = {NOT_STOPPED: "why it is not stopped", "honest": "why it passes"}.get(group, "what stops it")
    does = "what it does" if group == "honest" else "what it tries"
    lines = [f"| kernel | {does} | device | {reason} | verdict |", "|---|---|---|---|---|"]
    words = {devices: word for word, devices in DEVICES.items()}
    for each in chosen:
        verdict = ", ".join(each.verdicts) + (f" ({each.rule})" if each.rule else "")
        name = each.name.replace("_", " ")
        cells = (name, each.says, words[each.devices], each.defence, verdict)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
