"""A Ray cluster of several nodes on this machine: work in progress on a node that dies is not lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import exceptions
from ray.cluster_utils import Cluster

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from evaluators.scheduler import ray_host as module
from evaluators.scheduler.host import WorkerDied
from evaluators.scheduler.pool import Pool
from evaluators.scheduler.ray_host import RayHost
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS, forward

COUNT = 9
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster(marked: Marked, tmp_path: Path) -> Iterator[Cluster]:
    """A head without a device, and two nodes with one each: nominally a GPU, which no problem here uses."""
    started = Cluster(initialize_head=True, head_node_args={**NODE, "num_gpus": 0})
    try:
        for _ in range(2):
            started.add_node(**NODE, num_gpus=1)
        started.wait_for_nodes()
        yield started
    finally:
        ray.shutdown()
        started.shutdown()
    assert gone(marked), marked()


async def node_of(cluster: Cluster, host: RayHost, device: int) -> Any:
    """The node on which the device's worker runs."""
    ask = host._actors[device].__ray_call__.remote(lambda actor: ray.get_runtime_context().get_node_id())
    identity = await ask
    (node,) = [each for each in cluster.list_all_nodes() if each.node_id == identity]
    return node


def a_kernel(number: int) -> tuple[Kernel, Status]:
    """Every third returns its input; each takes a while, so that a node dies in the middle of its work."""
    wrong = number % 3 == 2
    body = "return x" if wrong else "time.sleep(0.02)\nreturn honest(self, x)"
    source = f"# {number}\n{forward(body) if number else HONEST}"
    return Kernel(source=source, language="cpp"), Status.INCORRECT if wrong else Status.CORRECT


FAILURES = [
    exceptions.LocalRayletDiedError(),
    exceptions.ActorDiedError(),
    exceptions.ActorUnavailableError("the actor is busy", None),
    exceptions.WorkerCrashedError(),
    exceptions.NodeDiedError("the node is gone"),
    exceptions.OutOfMemoryError("Ray's monitor killed it"),
    exceptions.ObjectLostError("00", None, ""),
    exceptions.ObjectStoreFullError("it is full"),
    exceptions.GetTimeoutError("the server is gone"),
    exceptions.RaySystemError("Ray has not been started"),
    exceptions.RuntimeEnvSetupError("no space"),
    exceptions.TaskCancelledError(),
    ConnectionError("the client is disconnected"),
]


@pytest.mark.parametrize("nested", [False, True], ids=["here", "in the task"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_whatever_happens_to_ray_is_not_the_kernels_fault(error: Exception, nested: bool) -> None:
    async def fail() -> None:
        in_task = nested and isinstance(error, exceptions.RayError)
        raise exceptions.RayTaskError("run", "Traceback", error) if in_task else error

    replaced: list[int] = []
    host = object.__new__(RayHost)
    host._ray, host._servers, host._asked = ray, {}, set()
    host._replace = replaced.append  # type: ignore[method-assign]
    with pytest.raises(WorkerDied) as died:
        asyncio.run(host._answer(0, fail))
    assert "Traceback" not in str(died.value)
    assert replaced == ([] if nested and isinstance(error, exceptions.RayError) else [0])
    assert not host._asked


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_ray_is_started_again_when_its_own_processes_die(
    victim: str, marked: Marked, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(host := RayHost(settings=SETTINGS, on_gpu=False))
    kernels = [a_kernel(number) for number in range(6)]

    async def all_of_them() -> list[Evaluation]:
        await pool.evaluate(PROBLEM, kernels[0][0])
        running = [asyncio.ensure_future(pool.evaluate(PROBLEM, kernel)) for kernel, _ in kernels[1:]]
        await asyncio.sleep(0.5)
        (pid,) = [pid for pid, name in host._servers.items() if name == victim]
        os.kill(pid, signal.SIGKILL)
        return list(await asyncio.gather(*running))

    try:
        found = asyncio.run(all_of_them())
    finally:
        pool.close()
    assert [each.status for each in found] == [status for _, status in kernels[1:]]
    assert "it is started again" in caplog.text
    assert gone(marked), marked()


def test_nothing_is_left_if_ray_does_not_start(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: str) -> None:
        assert marked(), "the node's fork server is up"
        raise ConnectionError("no cluster")

    monkeypatch.setattr(module, "_connect", connect)
    with pytest.raises(ConnectionError, match="no cluster") as failed:
        RayHost(settings=SETTINGS, on_gpu=False)
    assert gone(marked), f"{marked()} are left while somebody holds {failed.value!r}"


@pytest.mark.slow
def test_without_an_address_no_cluster_of_others_is_joined(cluster: Cluster) -> None:
    """Of two searches on one machine, the end of one would end the other."""
    module._connect("")
    assert ray.get_runtime_context().gcs_address != cluster.address


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_node_that_dies_takes_no_verdict_with_it(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(host := RayHost(settings=SETTINGS, on_gpu=True, address=cluster.address))
    kernels = [a_kernel(number) for number in range(COUNT)]
    verdicts: list[tuple[str, Evaluation]] = []
    done = 0

    async def evaluate(kernel: Kernel) -> None:
        nonlocal done
        evaluation = await pool.evaluate(PROBLEM, kernel)
        verdicts.append((kernel.id, evaluation))
        done += 1

    async def all_of_them() -> None:
        await pool.describe(PROBLEM)
        nodes = [await node_of(cluster, host, device) for device in range(2)]
        assert nodes[0].node_id != nodes[1].node_id
        running = [asyncio.ensure_future(evaluate(kernel)) for kernel, _ in kernels]
        while done < 4:
            await asyncio.sleep(0.05)
        cluster.remove_node(nodes[1], allow_graceful=False)
        monkeypatch.setattr(module, "START_S", 2.0)  # nothing will start there
        assert done < COUNT
        await asyncio.gather(*running)

    try:
        assert host.devices == 2
        asyncio.run(all_of_them())
    finally:
        pool.close()
    assert sorted(identity for identity, _ in verdicts) == sorted(kernel.id for kernel, _ in kernels)
    found = dict(verdicts)
    assert {kernel.id: found[kernel.id].status for kernel, _ in kernels} == {
        kernel.id: status for kernel, status in kernels
    }
    assert any("is tried again" in record.message for record in caplog.records)
    assert list(pool.devices_set_aside) == [1], "there is no room for its worker any more"
