"""What the probes of a search have shown, in words for a model. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from evaluators.records.probe import Probe
from search.proposers.llm.measured_history import MeasuredHistory
from search.records.run_state import RunState
from search.records.tree import Seed

MOST_SHOWN = 8
"""Probes in a prompt; the oldest are left out."""


def probe_findings(state: RunState, entries: Iterable[Seed], evidence: MeasuredHistory, before: int) -> str:
    """The probes of the rounds before this one, oldest first; "" if there are none."""
    seeds = {each.id: each for each in entries} | {
        each.id: each.seed for each in state.tree.variants.values()
    }
    found: list[str] = []
    for request in (each for each in state.probes.values() if each.round < before):
        measured = state.probed.get(request.id)
        if measured is not None and measured.probe is not None:
            base = _base(request.base, seeds, measured.probe, evidence)
            what = f"- Round {request.round}: {request.question}\n  What was timed: {request.what}"
            result = textwrap.indent(f"Result: {measured.probe.text()}", "  ")
            found.append(f"{what}\n{base}\n{result}")
    return "\n".join(found[-MOST_SHOWN:])


def _base(id: str, seeds: Mapping[str, Seed], probe: Probe, evidence: MeasuredHistory) -> str:
    """The kernel that the probe changes, its time, and how the probe's time compares."""
    if (seed := seeds.get(id)) is None:
        return "  It starts from the reference."
    evaluation = evidence.measured(seed)
    line = f"  It changes `{id}`, which takes {evidence.figures(seed)}."
    if evaluation is None or (timing := evaluation.timing) is None or probe.times is None:
        return line
    times = probe.times
    share = timing.speedup / times.ratio
    low = timing.speedup_low / times.ratio_high
    high = timing.speedup_high / times.ratio_low
    return f"{line} The probe takes {share:.3g} times as long [{low:.3g}, {high:.3g}]."
