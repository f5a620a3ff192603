"""Real hosts, on this machine's CPU: threads of this process, and Ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.device.child_processes import UnfitProblem
from evaluators.isolation.scratch import scratch_root
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.probe import ProbeStatus
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.host import Host
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.scheduler.ray_host import RayHost
from evaluators.system import process_tree
from tests.evaluators.build.builds import GEMM, PRINTS, with_tool
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, REFERENCE, SETTINGS, forward

WRONG = forward("return x")
BAD = "def f(:"


def real(source: str) -> Kernel:
    return Kernel(source=source, language="cpp")


async def three_kernels(pool: Pool) -> None:
    facts = await pool.describe(PROBLEM)
    assert {"device", "torch"} <= set(facts)
    found = await asyncio.gather(*(pool.evaluate(PROBLEM, real(s)) for s in (HONEST, WRONG, BAD)))
    assert [each.status for each in found] == [Status.CORRECT, Status.INCORRECT, Status.COMPILE_ERROR], found
    assert "SyntaxError" in found[2].log
    assert all(each.build_s > 0 for each in found)
    assert (await pool.probe(PROBLEM, real(WRONG))).status is ProbeStatus.TIMED
    raced = await asyncio.gather(*(pool.race(PROBLEM, real(HONEST), threshold=each) for each in (None, 0.01)))
    assert [each.status for each in raced] == [Status.OUTPACED, Status.CORRECT], raced
    again = await pool.compare(PROBLEM, [real(s) for s in (WRONG, HONEST, BAD)])
    assert [each.status for each in again] == [Status.INCORRECT, Status.CORRECT, Status.COMPILE_ERROR], again


async def resources_arrive(host: Host) -> None:
    done = await host.build(PROBLEM, real(with_tool(PRINTS)), "9.0")
    assert (done.status, done.resources) == (None, (GEMM,))


@pytest.fixture
def clean(marked: Marked) -> Iterator[Marked]:
    yield marked
    assert gone(marked), marked()


@pytest.mark.core
@pytest.mark.slow
def test_threads_of_this_process(clean: Marked) -> None:
    before = set(scratch_root("x").parent.glob("*"))
    pool = Pool(host := LocalHost(settings=SETTINGS, on_gpu=False))
    try:
        asyncio.run(three_kernels(pool))
        asyncio.run(resources_arrive(host))
    finally:
        pool.close()
    left = set(scratch_root("x").parent.glob(f"local-{os.getpid()}-*")) - before
    assert left == set()


def test_no_more_cores_are_used_than_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job of Slurm on a node with many more."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    host = LocalHost(settings=SETTINGS, on_gpu=False)
    host.close()
    assert host.cores == 1


@pytest.mark.slow
def test_a_pool_that_is_closed_at_once_ends_only_its_own_processes(clean: Marked) -> None:
    """Processes that the rest of the program started continue."""
    others = subprocess.Popen(["sleep", "60"])

    async def interrupted() -> None:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            await pool.describe(PROBLEM)
            asleep = real("import time\ntime.sleep(100)\n" + HONEST)
            async with asyncio.timeout(1.0):
                await pool.evaluate(PROBLEM, asleep)

    start = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            asyncio.run(interrupted())
        assert time.monotonic() - start < 60, "it waited for what was under way"
        assert others.poll() is None
    finally:
        others.kill()
        others.wait()


BROKEN = Problem(name="file/broken", source=REFERENCE.replace("return x\n", "raise ValueError('seven')\n"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_actor_loses_nothing(clean: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL to the process that owns the device, in the middle of an evaluation."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    pool = Pool(host := RayHost(settings=replace(SETTINGS, timeout_s=30.0), on_gpu=False))
    stages: list[str] = []
    killed: list[int] = []
    niceness: int | None = None

    async def pid_of_actor() -> int:
        return int(await host._actors[0].__ray_call__.remote(lambda worker: os.getpid()))

    async def evaluation() -> Evaluation:
        with pytest.raises(UnfitProblem, match="ValueError: seven"):
            await pool.describe(BROKEN)
        await three_kernels(pool)
        await resources_arrive(host)
        victim = await pid_of_actor()
        nonlocal niceness
        niceness = os.getpriority(os.PRIO_PROCESS, victim)

        async def kill_soon() -> None:
            await asyncio.sleep(0.5)
            killed.extend([victim, *process_tree.descendants(victim)])
            os.kill(victim, signal.SIGKILL)

        killers: list[Awaitable[None]] = []

        def note(stage: str) -> None:
            stages.append(stage)
            if stage == "measuring" and not killers:
                killers.append(asyncio.ensure_future(kill_soon()))

        slow = forward(
            "time.sleep(0.15)\nreturn honest(self, x)", before="assert 'OPENAI_API_KEY' not in os.environ"
        )
        found = await pool.evaluate(PROBLEM, real(slow), on_stage=note)
        await asyncio.gather(*killers)
        assert await pid_of_actor() != victim
        return found

    try:
        found = asyncio.run(evaluation())
        assert found.status is Status.CORRECT, found
        assert niceness == os.nice(0), "Ray has made what is measured give way to all else"
        assert [stage for stage in stages if stage in ("building", "measuring")] == [
            "building",
            "measuring",
            "measuring",
        ]
        assert "checking" in stages
        assert len(killed) >= 4, "the actor, its fork server, its judge process and their runners"
        deadline = time.monotonic() + 30
        while (alive := [pid for pid in killed if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive == []
    finally:
        pool.close()
    assert not host._root.exists()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
