"""Probes on their way through a pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Status
from evaluators.records.probe import Probe, ProbeStatus
from evaluators.records.problem import Case, Problem
from evaluators.scheduler.lanes import TRIES
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import (
    ON_CPU,
    ON_GPU,
    TIMED,
    FakeHost,
    break_down,
    die,
    find_unfit,
    kernel,
)


def probed(host: FakeHost, problem: Problem = ON_GPU, stages: list[str] | None = None) -> Probe:
    said = [] if stages is None else stages
    return asyncio.run(Pool(host).probe(problem, kernel(), on_stage=said.append))


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_a_probe_is_built_and_timed(problem: Problem) -> None:
    stages: list[str] = []
    found = probed(host := FakeHost(), problem, stages)
    assert found == replace(TIMED, build_s=0.25, lease=found.lease)
    assert found.lease is not None and found.lease.device == "0"
    assert stages == ["building", "measuring"]
    assert host.archives == {kernel().id.encode()}


def test_a_probe_that_cannot_be_built_is_not_timed() -> None:
    host = FakeHost()
    host.building = [lambda: Build(seconds=1.0, status=Status.COMPILE_ERROR, log="no such type")]
    assert (found := probed(host)).status is ProbeStatus.COMPILE_ERROR
    assert (found.log, found.build_s, host.used.total()) == ("no such type", 1.0, 0)


def test_a_lost_probe_is_tried_again_on_another_device() -> None:
    host = FakeHost(devices=2)
    host.measuring = [die, break_down]
    assert probed(host).status is ProbeStatus.TIMED
    assert len(host.used) == 2 and host.built.total() == 1
    host.measuring = [break_down] * TRIES
    assert (found := probed(host)).status is ProbeStatus.INFRASTRUCTURE_ERROR
    assert found.log == "the judge process died"


def test_a_reference_that_cannot_be_run_times_no_probe() -> None:
    host = FakeHost()
    host.measuring = [find_unfit]
    assert probed(host).status is ProbeStatus.UNFIT_REFERENCE


def test_of_several_cases_the_first_timed_one_is_probed() -> None:
    cases = (Case(sizes={"n": 1}, weight=0), Case(sizes={"n": 2}), Case(sizes={"n": 3}))
    probed(host := FakeHost(), replace(ON_GPU, cases=cases))
    assert host.order == [(0, "level1/fake [n=2]")]
    with pytest.raises(ValueError, match="is not timed"):
        probed(host, replace(ON_GPU, timed=False))
