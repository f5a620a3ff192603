"""Leases of devices, and the table of where time went."""

from __future__ import annotations

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.time_spent import DeviceLease, summed, table

LEASE = DeviceLease(device="1", waited_s=4.0, held_s=2.0, building_s=1.0, idle_s=0.5)


def test_leases_add_up_and_are_shared() -> None:
    assert summed([LEASE.shared(2), None, LEASE.shared(2)]) == LEASE
    assert summed([None]) is None


def test_a_verdict_keeps_its_lease_and_older_ones_have_none() -> None:
    found = Evaluation(status=Status.CRASHED, lease=LEASE)
    assert Evaluation.from_json(found.to_json()) == found
    older = {name: value for name, value in found.to_json().items() if name != "lease"}
    assert Evaluation.from_json(older).lease is None


def test_the_table_has_each_stages_median_largest_and_sum() -> None:
    one = Evaluation(status=Status.CRASHED, device_s=1.0, build_s=3.0, stages_s={"timing": 1.0}, lease=LEASE)
    two = Evaluation(status=Status.CRASHED, device_s=2.0, stages_s={"loading": 0.5, "timing": 1.5})
    head, *lines = table([one, two])
    assert head.split() == ["seconds", "median", "largest", "sum", "number"]
    rows = {" ".join(line.split()[:-4]): line.split()[-4:] for line in lines}
    assert rows["timing"] == ["1.250", "1.500", "2.50", "2"]
    assert rows["loading"] == ["0.500", "0.500", "0.50", "1"]
    assert rows["build, on the cores"] == ["1.500", "3.000", "3.00", "2"]
    assert rows["device held"] == ["2.000", "2.000", "2.00", "1"]
