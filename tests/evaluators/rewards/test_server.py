"""The reward server over HTTP, with a judge that needs no device."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from evaluators.records.evaluation import Status
from evaluators.rewards.guard import Guard
from evaluators.rewards.line import Line
from evaluators.rewards.policies.correctness import CorrectnessReward
from evaluators.rewards.policies.improvement import ImprovementReward
from evaluators.rewards.policies.log_speedup import LogSpeedupReward
from evaluators.rewards.requested_problems import RequestedProblems
from evaluators.rewards.server import RewardServer, application
from evaluators.rewards.verdicts import Verdicts
from tests.evaluators.rewards.verdicts import FakeJudge, failed, kernel

pytestmark = [pytest.mark.slow, pytest.mark.core]

SOFTMAX = {"problem": "level1/softmax"}
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8)]


def get_init_inputs():
    return []
"""


class Served:
    """A running server with its judge and a client."""

    def __init__(self, client: httpx2.AsyncClient, judge: FakeJudge, server: RewardServer) -> None:
        self.client, self.judge, self.server = client, judge, server

    async def verify(self, **body: Any) -> httpx2.Response:
        """Asks for a reward of softmax."""
        return await self.client.post("/verify", json={**SOFTMAX, **body})

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds."""
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def served(
    folder: Path,
    *,
    at_once: int = 2,
    waiting: int = 8,
    keys: dict[str, str] | None = None,
    most_bytes: int = 100_000,
    body_s: float = 5.0,
) -> AsyncIterator[Served]:
    """A server on a free port of the loopback interface."""
    judge, line = FakeJudge(), Line(at_once, waiting)
    server = RewardServer(
        problems=RequestedProblems("cpu"),
        policies={
            "log_speedup": LogSpeedupReward(),
            "correctness": CorrectnessReward(),
            "improvement": ImprovementReward(),
        },
        default="log_speedup",
        line=line,
        device="a device",
        verdicts=Verdicts(judge, line, folder / "verdicts.jsonl", "here"),
    )
    app = Guard(application(server), keys or {}, most_bytes, body_s)
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, http, "should_exit", True)
        http.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
        serving = asyncio.create_task(http.serve())
        while not http.started:
            await asyncio.sleep(0.01)
        port = http.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield Served(client, judge, server)
        judge.free.set()
        http.should_exit = True
        await serving


def play(folder: Path, scene: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    """Plays a scene with a server."""

    async def run() -> None:
        async with served(folder, **options) as found:
            await scene(found)

    asyncio.run(run())


def test_a_completion_is_rewarded(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        answered = (await at.verify(completion=f"Here:\n```python\n{kernel(4.0)}```\n")).json()
        assert answered["status"] == "correct"
        assert answered["reward"] == pytest.approx((1 + 2) / (1 + 4))
        assert answered["components"] == {"correct": 1.0, "log2_gain": 2.0}
        assert answered["timing"]["speedup_low"] == pytest.approx(3.8)
        assert answered["kernel"] == kernel(4.0)
        assert not answered["retryable"]

    play(tmp_path, scene)


def test_a_completion_without_a_kernel_is_malformed_and_not_measured(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        answered = (await at.verify(completion="I cannot do that.")).json()
        assert (answered["status"], answered["reward"]) == ("malformed", 0)
        assert "the code is not Python" in answered["cause"]
        assert not at.judge.asked

    play(tmp_path, scene)


def test_edits_are_applied_to_the_parent(tmp_path: Path) -> None:
    edit = "<<<<<<< SEARCH\n    speed = 2.0\n=======\n    speed = 4.0\n>>>>>>> REPLACE\n"

    async def scene(at: Served) -> None:
        answered = (await at.verify(completion=edit, parent=kernel(2.0), reward="improvement")).json()
        assert answered["kernel"] == kernel(4.0)
        assert answered["components"]["log2_gain"] == pytest.approx(1.0)
        assert len(at.judge.asked) == 2

    play(tmp_path, scene)


def test_the_same_content_is_measured_once_also_after_a_restart(tmp_path: Path) -> None:
    async def first(at: Served) -> None:
        at.judge.free.clear()
        asked = [asyncio.create_task(at.verify(kernel=kernel())) for _ in range(5)]
        await at.until(lambda: len(at.judge.asked) == 1)
        at.judge.free.set()
        answers = [(await each).json() for each in asked]
        assert len(at.judge.asked) == 1
        assert [each["reward"] for each in answers] == pytest.approx([0.4] * 5)

    async def second(at: Served) -> None:
        answered = (await at.verify(kernel=kernel(), reward="correctness")).json()
        assert (answered["known"], answered["reward"]) == (True, 1)
        assert not at.judge.asked

    play(tmp_path, first)
    play(tmp_path, second)


def test_a_failure_of_the_evaluator_is_masked_and_not_kept(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        at.judge.verdicts = {"speed": failed(Status.INFRASTRUCTURE_ERROR)}
        answered = (await at.verify(kernel=kernel())).json()
        assert (answered["reward"], answered["retryable"]) == (None, True)
        at.judge.verdicts = {}
        assert (await at.verify(kernel=kernel())).json()["reward"] == pytest.approx(0.4)

    play(tmp_path, scene)


def test_a_reference_that_cannot_judge_is_refused(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        at.judge.verdicts = {"speed": failed(Status.UNFIT_REFERENCE)}
        refused = await at.verify(kernel=kernel())
        assert (refused.status_code, refused.json()) == (422, {"error": "why", "retryable": False})

    play(tmp_path, scene)


def test_a_batch_has_an_answer_or_a_failure_in_each_place(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        requests = [
            {**SOFTMAX, "kernel": kernel(1.0)},
            {"problem": "level1/softmx", "kernel": kernel()},
            {"reference": REFERENCE, "completion": kernel(8.0)},
            {**SOFTMAX, "kernel": kernel(0)},
        ]
        answers = (await at.client.post("/verify/batch", json={"requests": requests})).json()["answers"]
        assert [each.get("reward") for each in answers] == pytest.approx([0.2, None, 0.8, 0.0])
        assert "did you mean level1/softmax" in answers[1]["error"]

    play(tmp_path, scene)


WRONG_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"kernel": "x", "problem": None}, "give problem or reference"),
    ({"kernel": "x", "completion": "x"}, "give completion or kernel"),
    ({"kernel": "x", "problem": "level1/sofmax"}, "did you mean level1/softmax"),
    ({"kernel": "x", "problem": "/etc/passwd"}, "not a name"),
    ({"kernel": "x", "problem": "a/../b"}, "not a name"),
    ({"kernel": "x", "problem": "level1/softmax.py"}, "not a name"),
    ({"kernel": "x", "problem": "level1/softmax hydra.run.dir=x"}, "not a name"),
    ({"kernel": "x", "reward": "gold"}, "the rewards are log_speedup"),
    ({"kernel": "x", "reward": "improvement"}, "needs the parent"),
    ({"kernel": "x", "problem_keys": {"floor": False}}, "'floor'"),
    ({"kernel": "x", "problem_keys": {"allow_degenerate": True}}, "'allow_degenerate'"),
    ({"kernel": "x", "problem_keys": {"sizes": {"nothing": 3}}}, "nothing"),
    ({"kernel": "x", "problem": None, "reference": "import os"}, "the reference is not valid"),
    ({"kernel": "x", "priority": 10}, "priority"),
    ({"kernel": "x", "deadline_s": -1}, "deadline_s"),
    ({"kernel": "x", "extra": 1}, "extra"),
    ({"kernel": 3}, "kernel"),
]


@pytest.mark.parametrize(("body", "why"), WRONG_BODIES, ids=[why for _, why in WRONG_BODIES])
def test_a_wrong_request_gets_one_line(tmp_path: Path, body: dict[str, Any], why: str) -> None:
    async def scene(at: Served) -> None:
        refused = await at.verify(**body)
        assert refused.status_code == 422, refused.text
        assert why in refused.json()["error"]
        assert "\n" not in refused.json()["error"]
        assert not at.judge.asked

    play(tmp_path, scene)


def test_a_full_line_is_said_with_a_time_to_retry(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        at.judge.free.clear()
        asked = [asyncio.create_task(at.verify(kernel=kernel(1 + number))) for number in range(3)]
        await at.until(lambda: at.server.line.waiting == 2)
        refused = await at.verify(kernel=kernel(9.0))
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["retryable"]
        too_many = {"requests": [{**SOFTMAX, "kernel": kernel(0.1)}]}
        assert (await at.client.post("/verify/batch", json=too_many)).status_code == 429
        at.judge.free.set()
        assert {(await each).status_code for each in asked} == {200}
        assert (await at.verify(kernel=kernel(9.0))).status_code == 200

    play(tmp_path, scene, at_once=1, waiting=2)


def test_a_measurement_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        at.judge.free.clear()
        late = await at.verify(kernel=kernel(), deadline_s=0.2)
        assert late.status_code == 504
        await at.until(lambda: at.judge.cancelled == 1)
        two = [asyncio.create_task(at.verify(kernel=kernel())) for _ in range(2)]
        measuring = at.server.verdicts._measuring  # type: ignore[union-attr]
        await at.until(lambda: [each.asking for each in measuring.values()] == [2])
        two[0].cancel()  # the client closes its connection
        await asyncio.sleep(0.2)
        assert at.judge.cancelled == 1, "another client still waits"
        two[1].cancel()
        await at.until(lambda: at.judge.cancelled == 2)
        assert (at.server.line.waiting, at.server.line.working) == (0, 0)
        at.judge.free.set()
        assert (await at.verify(kernel=kernel())).status_code == 200

    play(tmp_path, scene)


def test_keys_are_needed_and_name_the_client(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            refused = await at.client.post("/verify", json={**SOFTMAX, "kernel": kernel()}, headers=header)
            assert refused.status_code == 401
        assert (await at.client.get("/health")).status_code == 200
        given = {"Authorization": "Bearer secret"}
        answered = await at.client.post("/verify", json={**SOFTMAX, "kernel": kernel()}, headers=given)
        assert answered.status_code == 200
        metrics = (await at.client.get("/metrics", headers=given)).text
        assert 'ideatree_answers_total{client="trainer",status="correct"} 1.0' in metrics

    play(tmp_path, scene, keys={"secret": "trainer"})


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_body_that_is_too_large_is_refused(tmp_path: Path, is_stated: bool) -> None:
    body = b'{"kernel": "' + b"x" * 200_000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async def scene(at: Served) -> None:
        refused = await at.client.post("/verify", content=body if is_stated else chunks())
        assert refused.status_code == 413

    play(tmp_path, scene)


def test_a_slow_body_is_refused(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        url = at.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /verify HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nslow")
        async with asyncio.timeout(10):
            assert b" 408 " in await reader.readline()
        writer.close()
        assert (await at.verify(kernel=kernel())).status_code == 200

    play(tmp_path, scene, body_s=0.3)


ODD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"problem": "level1/softmax", "kernel": "\\ud800"}',
    b'{"problem": "level1/softmax", "completion": "\\u0000"}',
    b"[" * 50_000,
    b'{"problem": "level1/softmax", "kernel": "speed = 0", "problem_keys": {"sizes": {"batch": 1e400}}}',
    '{"problem": "уровень/софтмакс", "kernel": "x"}'.encode(),
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
def test_odd_bodies_do_no_harm(tmp_path: Path, body: bytes) -> None:
    async def scene(at: Served) -> None:
        answered = await at.client.post("/verify", content=body, headers={"content-type": "application/json"})
        assert answered.status_code in (200, 400, 422), answered.text
        assert answered.json().get("reward", 0) == 0
        assert (await at.verify(kernel=kernel())).status_code == 200

    play(tmp_path, scene)


def test_a_server_that_drains_takes_nothing_new(tmp_path: Path) -> None:
    async def scene(at: Served) -> None:
        assert (await at.client.get("/ready")).status_code == 200
        at.server.draining = True
        assert (await at.client.get("/ready")).status_code == 503
        refused = await at.verify(kernel=kernel())
        assert (refused.status_code, refused.json()["error"]) == (503, "the server is draining")
        assert refused.headers["retry-after"]

    play(tmp_path, scene)
