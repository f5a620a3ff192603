"""The environment in a server of its own, against a real reward server on a CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from ideatree_client.testing import RIGHT, TASK, WRONG, running_server
from ideatree_openenv import KernelAction, KernelEnv

HERE = Path(__file__).parents[1]
COMMAND = Path(sys.executable).parent / "openenv"
ROW = {
    "prompt": [{"role": "user", "content": "softmax"}],
    "request": json.dumps(TASK),
    "problem": "level1/softmax",
    "kind": "code",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the environment."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "train.jsonl").write_text(f"{json.dumps(ROW)}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running_server(tmp_path_factory.mktemp("server")) as rewards:
        variables = {"IDEATREE_TASKS": str(folder), "IDEATREE_REWARDS": rewards, "IDEATREE_TURNS": "2"}
        call = [sys.executable, "-m", "ideatree_openenv.server.app", "--port", str(port)]
        environment = {**os.environ, **variables, "IDEATREE_POLICY": "correctness"}
        process = subprocess.Popen(call, env=environment, cwd=folder)
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the environment did not start")


def test_two_turns(url: str) -> None:
    with KernelEnv(base_url=url).sync() as client:
        assert client.reset(split="train", index=0).observation.prompt == ROW["prompt"]
        first = client.step(KernelAction(completion=WRONG))
        assert (first.reward, first.done, first.observation.status) == (0.0, False, "incorrect")
        assert first.observation.feedback.startswith("incorrect: ")
        second = client.step(KernelAction(completion=f"```python\n{RIGHT}\n```"))
        assert (second.reward, second.done, second.observation.status) == (1.0, True, "correct")
        state = client.state()
        assert (state.step_count, state.best_reward, state.split) == (2, 1.0, "train")


def test_an_answer_without_a_kernel_earns_nothing(url: str) -> None:
    with KernelEnv(base_url=url).sync() as client:
        client.reset()
        result = client.step(KernelAction(completion="I cannot."))
        assert (result.reward, result.observation.status) == (0.0, "malformed")


def test_tasks_are_listed(url: str) -> None:
    path, split = f"{url}/ideatree_kernels", {"split": "train"}
    assert httpx.post(f"{path}/num_tasks", json=split).json()["num_tasks"] == 1
    (task,) = httpx.post(f"{path}/tasks", json=split).json()["tasks"]
    assert task["problem"] == "level1/softmax" and "prompt" not in task
    assert httpx.post(f"{path}/task_range", json={**split, "stop": 0}).json()["tasks"] == []


def test_openenv_validates_the_package_and_the_running_environment(url: str) -> None:
    package = _validated(str(HERE), "--skip-build")
    assert "PASS  static.manifest" in package and "FAIL" not in package, package
    running = _validated("--url", url)
    assert "Verdict: PASS" in running, running


def _validated(*arguments: str) -> str:
    call = [str(COMMAND), "validate", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr
