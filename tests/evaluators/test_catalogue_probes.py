"""Kernels of the catalogue of cheats as probes: they get a time at most, and harm nobody."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from evaluators.build.build_cache import BuildCache
from evaluators.build.builder import build
from evaluators.device.worker import Worker
from evaluators.records.evaluation import Status
from evaluators.records.probe import Probe, ProbeStatus
from evaluators.records.problem import Kernel
from tests.evaluators.catalogue import fixtures
from tests.evaluators.catalogue.problems import problem
from tests.evaluators.test_catalogue import SETTINGS

CHEATS = {
    "attacking_the_harness/attaches_to_other_processes",
    "attacking_the_harness/fills_the_disk",
    "attacking_the_harness/forges_a_verdict",
    "attacking_the_harness/kills_its_parent",
    "attacking_the_harness/patches_the_judge",
    "attacking_the_harness/truncates_the_shared_memory",
    "reuse/caches_by_data_ptr",
    "stealing_the_answer/walks_gc_for_the_answer",
    "timing/forks_faster_than_it_can_be_stopped",
    "timing/patches_the_clock",
}
HONEST = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
"""


@pytest.mark.slow
def test_cheats_get_a_time_at_most(tmp_path: Path, build_cache: BuildCache) -> None:
    chosen = [each for each in fixtures() if each.id in CHEATS and "cpu" in each.devices]
    assert len(chosen) == len(CHEATS) == 10
    worker = Worker(root=tmp_path, settings=SETTINGS["cpu"])
    with contextlib.closing(worker):
        for cheat in sorted(chosen, key=lambda each: each.problem):
            asked, kernel = problem(cheat.problem, "cpu"), Kernel(source=cheat.source, language="cpp")
            built = build(asked, kernel, root=tmp_path, architecture="", timeout_s=180.0, cache=build_cache)
            if built.status is None:
                found = worker.probe(asked, kernel, built.archive)
                assert type(found) is Probe
                assert found.status is not ProbeStatus.INFRASTRUCTURE_ERROR, f"{cheat.id}: {found}"
        verdict = worker.measure(problem("softmax", "cpu"), Kernel(source=HONEST, language="cpp"), b"")
    assert verdict.status is Status.CORRECT, verdict.log
