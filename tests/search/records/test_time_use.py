"""Where the time of a run's measurements went."""

from __future__ import annotations

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import Probe
from evaluators.records.time_spent import DeviceLease
from search.records.time_use import TimeUse


def use_of(*leases: DeviceLease | None, device_s: float = 1.0) -> TimeUse:
    use = TimeUse()
    for lease in leases:
        stages = {"timing": 0.75, "other": 0.25}
        use.add(
            Evaluation(status=Status.CRASHED, device_s=device_s, build_s=2.0, stages_s=stages, lease=lease)
        )
    return use


def lease(device: str, held_s: float = 4.0, idle_s: float = 1.0) -> DeviceLease:
    return DeviceLease(device=device, waited_s=3.0, held_s=held_s, idle_s=idle_s)


def test_seconds_add_up_by_stage_and_by_device() -> None:
    use = use_of(lease("0"), lease("0"), lease("1"))
    assert (use.build_s, use.waited_s, use.held_s) == (6.0, 9.0, 12.0)
    assert use.stages_s == {"timing": 2.25, "other": 0.75}
    assert use.shares(10.0) == {"0": (0.8, 0.2), "1": (0.4, 0.1)}
    use.add_probe(Probe.failed(Status.CRASHED, "it died"))
    assert use.stages_s["probing"] == 0.0


def test_no_device_is_busier_than_the_time_allows() -> None:
    use = use_of(*[lease(str(number % 2), held_s=9.0) for number in range(2)])
    assert {held for held, _ in use.shares(10.0).values()} == {0.9}, "not 180 %"
    assert sum(use_of(lease("0", held_s=9.5, idle_s=2.0)).shares(10.0)["0"]) == pytest.approx(1.0)


def test_what_workers_elsewhere_did_is_no_share_of_the_runs_time() -> None:
    use = use_of(lease("node:1:1/0"))
    assert use.is_elsewhere and use.held_s == 4.0
    assert use.shares(10.0) == {}


def test_older_records_name_no_device() -> None:
    use = use_of(None, None)
    assert use.shares(10.0) == {"": (0.2, 0.0)}
    assert use.shares(1.5) == {}, "there must have been several devices"
    assert use.shares(0.0) == TimeUse().shares(1.0) == {}


def test_a_kernel_that_never_came_to_a_device_used_none() -> None:
    use = TimeUse()
    use.add(Evaluation(status=Status.COMPILE_ERROR, build_s=2.0))
    assert use.devices == {} and use.build_s == 2.0
