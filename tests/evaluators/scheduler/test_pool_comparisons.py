"""Kernels that are measured against one another in one session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation, Status
from evaluators.scheduler.lanes import TRIES
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import ON_GPU, RESOURCES, Act, FakeHost, break_down, die, kernel


def compared(host: FakeHost, *names: object, **options: Any) -> list[Evaluation]:
    return asyncio.run(Pool(host).compare(ON_GPU, [kernel(each) for each in names], **options))


def test_kernels_are_compared_in_order_in_one_session() -> None:
    found = compared(host := FakeHost(cores=2), "a", "b", "c")
    assert host.compared == [tuple(kernel(each).id for each in "abc")]
    assert [each.log for each in found] == [f"{kernel(each).id} usual" for each in "abc"]
    assert host.archives == {kernel(each).id.encode() for each in "abc"}
    assert {(each.build_s, each.resources) for each in found} == {(0.25, RESOURCES)}
    assert compared(FakeHost(), "a", "b", thorough=True)[1].log.endswith("thorough")


def test_equal_kernels_are_measured_once() -> None:
    found = compared(host := FakeHost(), "a", "b", "a")
    assert host.compared == [(kernel("a").id, kernel("b").id)]
    assert found[0] == found[2] != found[1]


def test_kernels_that_cannot_be_built_are_not_compared() -> None:
    host = FakeHost()
    host.building = [lambda: Build(seconds=1.0, status=Status.COMPILE_ERROR, log="no such type")]
    failed, fine = compared(host, "a", "b")
    assert (failed.status, failed.log) == (Status.COMPILE_ERROR, "no such type")
    assert fine.status is Status.CORRECT
    assert host.compared == [(kernel("b").id,)]


@pytest.mark.parametrize(
    ("act", "reason"),
    [(die, "the node is gone"), (break_down, "the judge process died")],
    ids=["die", "break_down"],
)
def test_a_comparison_that_is_lost_is_made_again(act: Act, reason: str) -> None:
    host = FakeHost(devices=2)
    host.measuring = [act]
    assert [each.status for each in compared(host, "a", "b")] == [Status.CORRECT] * 2
    assert len(host.compared) == 2
    assert host.built.total() == 2, "builds outlast it"
    host = FakeHost()
    host.measuring = [act] * TRIES
    found = compared(host, "a", "b")
    assert [each.status for each in found] == [Status.INFRASTRUCTURE_ERROR] * 2
    assert found[0].log == reason
