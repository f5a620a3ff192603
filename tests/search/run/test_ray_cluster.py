"""A search on a Ray cluster of several nodes, all on this machine: one is killed, and another joins."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler import ray_host
from evaluators.scheduler.pool import Pool
from evaluators.scheduler.ray_host import RayHost
from search.records.events import RunFinished, VariantEvaluated
from search.records.journal import Journal, replay
from search.records.tree import Expansion, Idea, Outcome, Seed
from tests.evaluators.conftest import marked  # noqa: F401  (a fixture)
from tests.evaluators.device.kernels import PROBLEM, SETTINGS
from tests.evaluators.scheduler.test_ray_host import NODE, a_kernel, cluster, node_of  # noqa: F401
from tests.search.fakes import FakeProposer, build, state_of


class RealKernels(FakeProposer):
    """Writes kernels that run, and has ideas until it has had `enough`."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[str, Status] = {}
        self.enough = False
        self._numbers = itertools.count()

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        return [] if self.enough else await super().propose(problem, expansion, history, rng)

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        for _ in range(n):
            kernel, status = a_kernel(next(self._numbers))
            self.expected[kernel.id] = status
            yield kernel


class CountingHost(RayHost):
    """Counts the measurements of each device."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.measured: Counter[int] = Counter()

    async def measure(self, device: int, *about: Any) -> Evaluation:
        found = await super().measure(device, *about)
        self.measured[device] += 1
        return found


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_node_is_killed_and_another_joins_in_the_middle_of_a_search(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search judges every kernel once, and uses the new node."""
    pool = Pool(host := CountingHost(settings=SETTINGS, on_gpu=True, address=cluster.address))
    proposer = RealKernels()

    async def disturb() -> None:
        while not (host.measured[0] and host.measured[1]):
            await asyncio.sleep(0.05)
        cluster.remove_node(await node_of(cluster, host, 1), allow_graceful=False)
        monkeypatch.setattr(ray_host, "START_S", 2.0)  # nothing will start there
        while not pool.devices_set_aside:
            await asyncio.sleep(0.05)
        before = host.measured[1]
        cluster.add_node(**NODE, num_gpus=1)
        while host.measured[1] == before:
            await asyncio.sleep(0.05)

    async def both(journal: Journal) -> RunFinished:
        parts = {"evaluator": pool, "problem": PROBLEM, "proposer": proposer, "comparisons": 0}
        engine = build(journal, ideas=2, branch=3, keep=1, rounds=None, **parts)
        disturbing = asyncio.create_task(asyncio.wait_for(disturb(), 300))
        disturbing.add_done_callback(lambda _: setattr(proposer, "enough", True))
        finished = await engine.run()
        await disturbing
        return finished

    try:
        with Journal(tmp_path / "journal.jsonl") as journal:
            finished = asyncio.run(both(journal))
    finally:
        pool.close()
    assert finished.reason == "exhausted" and finished.confirmed is not None
    assert finished.confirmed.status is Status.CORRECT
    judged = [each.variant for each in replay(journal.path) if isinstance(each, VariantEvaluated)]
    written = state_of(journal.path).tree.variants
    assert Counter(each.id for each in judged) == Counter(written.keys()), "each has one verdict"
    found = {each.kernel.id: each.evaluation.status for each in judged if each.evaluation}
    assert found == proposer.expected
    assert pool.devices_set_aside == {} and "device 1 is back" in caplog.text
