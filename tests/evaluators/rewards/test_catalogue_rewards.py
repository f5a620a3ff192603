"""The whole catalogue of cheats and honest kernels through a running reward server, on a CPU."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import httpx2
import pytest

from evaluators.rewards.policies.log_speedup import LogSpeedupReward
from evaluators.rewards.requested_problems import CHANGES
from tests.evaluators.catalogue import NO_GAIN, Fixture, fixtures
from tests.evaluators.catalogue.problems import problem
from tests.evaluators.rewards.verdicts import correct

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

FIXTURES = sorted((each for each in fixtures() if "cpu" in each.devices), key=lambda each: each.problem)
CHEATS = [each for each in FIXTURES if each.group not in ("honest", "not_stopped")]
HONEST = [each for each in FIXTURES if each.group == "honest"]
SETTINGS = (
    *("evaluator.timeout_s=60", "evaluator.max_calls=32", "evaluator.threads=1", "evaluator.compile_mode="),
    *("evaluator.plan.block_ms=8", "evaluator.plan.precision=0.1", "evaluator.plan.max_s=0.5"),
)
NOTHING_GAINED = LogSpeedupReward().reward(correct(1.15), None).value
"""What the largest speedup earns that the catalogue does not count as one."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("rewards")
    call = [sys.executable, "-m", "evaluators.serve", "http=127.0.0.1:0", "device=cpu", *SETTINGS]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*call, f"out={folder}"], stderr=log)
    while not (found := re.search(r"http://[\d.:]+", (folder / "log").read_text())):
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    with httpx2.Client(base_url=found[0], timeout=600) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def verified(client: httpx2.Client, fixture: Fixture) -> dict[str, Any]:
    """The server's answer to a fixture's kernel in a model's words."""
    asked = problem(fixture.problem, "cpu")
    told = {**asdict(asked), "sizes": dict(asked.overrides)}
    keys = {name: told[name] for name in CHANGES if told.get(name)}
    body = {
        "reference": asked.source,
        "problem_keys": keys,
        "completion": f"This is faster:\n\n```python\n{fixture.source}\n```\n",
    }
    for _ in range(4):
        response = client.post("/verify", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        if not answer["retryable"]:
            break
    return answer


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda each: each.id)
def test_a_cheat_earns_nothing(client: httpx2.Client, cheat: Fixture) -> None:
    """One with right outputs, of which the judge leaves no gain, may earn what an honest copy would."""
    answer = verified(client, cheat)
    most = NOTHING_GAINED if NO_GAIN in cheat.verdicts else 0.0
    assert answer["reward"] is not None and answer["reward"] <= most, answer


@pytest.mark.parametrize("kernel", HONEST, ids=lambda each: each.id)
def test_an_honest_kernel_earns_something(client: httpx2.Client, kernel: Fixture) -> None:
    answer = verified(client, kernel)
    assert answer["status"] == "correct" and answer["reward"] > 0, answer
