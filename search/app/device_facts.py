"""The facts of a device for prompts that are written where there is no such device."""

from __future__ import annotations

from pathlib import Path

import yaml

from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.system.author_facts import cpu_name, toolchain
from search.recordings.verdicts import recording_folder, shipped_recordings
from search.records.journal import JOURNAL, replay
from search.records.run_state import rebuild

DEVICES = Path(__file__).with_name("devices.yaml")


def shipped_facts(device: str) -> dict[str, str]:
    """The shipped facts of the device with this full name, such as `NVIDIA H200`; {} if there are none."""
    return next((facts for facts in _known().values() if facts["device"] == device), {})


def device_facts(source: str) -> dict[str, str]:
    """The facts of a known device (h100, …), or those that a run or a shipped recording was made with. Raises
    UsageError for anything else."""
    known = _known()
    if source in known:
        return known[source]
    journal = recording_folder(source) / JOURNAL
    if not journal.exists():
        names = [*known, *shipped_recordings()]
        raise UsageError(
            f"facts={source}: neither a run folder nor one of {', '.join(names)}{near(source, names)}"
        )
    started = rebuild(replay(journal)).started
    if started is None:
        raise UsageError(f"facts={source}: the run has no facts of its device; name another run or a GPU")
    return dict(started.environment)


def facts_of_this_cpu() -> dict[str, str]:
    """What a run on this CPU would record, without the rates, which take seconds to measure."""
    import torch

    return {"device": cpu_name(), "torch": str(torch.__version__), **toolchain("cpu")}


def _known() -> dict[str, dict[str, str]]:
    """The facts of the shipped devices, by short name (h100, …)."""
    shipped = yaml.safe_load(DEVICES.read_text(encoding="utf-8"))
    return {name: {key: str(value) for key, value in facts.items()} for name, facts in shipped.items()}
