"""How long evaluations waited for devices and held them, and a table of where that time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from evaluators.base.json_record import JsonRecord

if TYPE_CHECKING:
    from evaluators.records.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class DeviceLease(JsonRecord):
    """The time for which an evaluation had a device, and the time before.

    Attributes:
        device: The device's number on its machine; in a queue after the worker's name and a slash.
        waited_s: Seconds for which the evaluation waited: for a core to build on, for its problem to open,
            for a device.
        held_s: Seconds for which it held the device, tries that failed through no fault of the kernel
            included.
        building_s: The part of `held_s` in which it was built: on a CPU nothing is measured meanwhile.
        idle_s: Seconds for which the device was idle just before, although a kernel was being built for it or
            waited.
    """

    device: str
    waited_s: float = 0.0
    held_s: float = 0.0
    building_s: float = 0.0
    idle_s: float = 0.0

    def shared(self, count: int) -> DeviceLease:
        """The part of each of `count` kernels that had the device together."""
        return replace(self, **{name: getattr(self, name) / count for name in SECONDS})


SECONDS = tuple(each.name for each in fields(DeviceLease) if each.name != "device")
"""The fields of a lease in seconds."""


def summed(leases: Sequence[DeviceLease | None]) -> DeviceLease | None:
    """One lease with the seconds of all, and the first one's device; None if there is none."""
    known = [each for each in leases if each is not None]
    if not known:
        return None
    return replace(known[0], **{name: sum(getattr(each, name) for each in known) for name in SECONDS})


def table(evaluations: Sequence[Evaluation]) -> list[str]:
    """A table of where the time of several evaluations went: for each stage the median, the largest and the
    sum of its seconds, over the evaluations that had it."""
    leases = [each.lease for each in evaluations if each.lease is not None]
    rows = {
        "build, on the cores": [each.build_s for each in evaluations],
        "waiting for a core or a device": [each.waited_s for each in leases],
        "device idle before, while kernels waited": [each.idle_s for each in leases],
        "device held": [each.held_s for each in leases if each.held_s > 0],
        "  building, on a CPU": [each.building_s for each in leases if each.building_s > 0],
    }
    for name in dict.fromkeys(name for each in evaluations for name in each.stages_s):
        rows[f"  {name}"] = [each.stages_s[name] for each in evaluations if name in each.stages_s]
    found = [f"{'seconds':<42}{'median':>9}{'largest':>9}{'sum':>9}{'number':>8}"]
    for name, values in rows.items():
        if values:
            figures = f"{statistics.median(values):9.3f}{max(values):9.3f}{sum(values):9.2f}"
            found.append(f"{name:<42}{figures}{len(values):8d}")
    return found
