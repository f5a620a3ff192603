"""Where the time of a run's measurements went: seconds by stage, and for how long each device was held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluators.records.evaluation import Evaluation, summed_stages
from evaluators.records.probe import Probe
from evaluators.records.time_spent import DeviceLease

PROBING = "probing"
"""The stage of kernels that are only built and timed, next to those of `Stage`."""


@dataclass
class DeviceTime:
    """One device's seconds in a run.

    Attributes:
        held_s: Seconds for which kernels held it.
        idle_s: Seconds for which it was idle although a kernel was being built for it, or waited.
    """

    held_s: float = 0.0
    idle_s: float = 0.0


@dataclass
class TimeUse:
    """The sums over a run's evaluations, comparisons, probes and final measurements.

    Attributes:
        build_s: Seconds of all builds. They run concurrently.
        waited_s: Seconds for which kernels waited. They wait concurrently, too.
        stages_s: Seconds of the devices by stage.
        devices: Each device that measured something. Records of older versions do not name it: all of their
            devices together are "".
    """

    build_s: float = 0.0
    waited_s: float = 0.0
    stages_s: dict[str, float] = field(default_factory=dict)
    devices: dict[str, DeviceTime] = field(default_factory=dict)

    def add(self, evaluation: Evaluation) -> None:
        """Adds an evaluation that was made for this run."""
        self._add(evaluation.lease, evaluation.device_s, evaluation.build_s)
        self.stages_s = summed_stages([self.stages_s, evaluation.stages_s])

    def add_probe(self, probe: Probe) -> None:
        """Adds a probe."""
        self._add(probe.lease, probe.device_s, probe.build_s)
        self.stages_s = summed_stages([self.stages_s, {PROBING: probe.device_s}])

    @property
    def held_s(self) -> float:
        """Seconds for which devices were held, all of them together."""
        return sum(each.held_s for each in self.devices.values())

    @property
    def is_elsewhere(self) -> bool:
        """Whether workers of a queue have measured, whose time is not the run's."""
        return any("/" in name for name in self.devices)

    def shares(self, elapsed_s: float) -> Mapping[str, tuple[float, float]]:
        """For each device, the shares of the run's time in which it was held, and in which it was idle
        although a kernel was on its way to it. Empty if they are not known: for a queue, and for an older
        record of several devices."""
        most_s = max((each.held_s for each in self.devices.values()), default=0.0)
        if self.is_elsewhere or not 0 < elapsed_s >= most_s:
            return {}
        return {
            name: (each.held_s / elapsed_s, min(each.idle_s, elapsed_s - each.held_s) / elapsed_s)
            for name, each in sorted(self.devices.items())
        }

    def _add(self, lease: DeviceLease | None, device_s: float, build_s: float) -> None:
        lease = lease or DeviceLease(device="", held_s=device_s)
        self.build_s += build_s
        self.waited_s += lease.waited_s
        if lease.held_s or lease.idle_s:
            device = self.devices.setdefault(lease.device, DeviceTime())
            device.held_s += lease.held_s
            device.idle_s += lease.idle_s
