"""SkyRL-Gym makes the environment and steps it against a real reward server on a CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ideatree_skyrl
import pytest
import skyrl_gym
from ideatree_client.testing import RIGHT, TASK, WRONG, running_server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


def made(url: str, **config: Any) -> Any:
    env_config = {"url": url, "reward": "correctness", **config}
    return skyrl_gym.make(ideatree_skyrl.NAME, env_config=env_config, extras={"request": json.dumps(TASK)})


def test_one_turn(url: str) -> None:
    environment = made(url)
    prompt = [{"role": "user", "content": "softmax"}]
    assert environment.init(prompt) == (prompt, {})
    step = environment.step(f"```python\n{RIGHT}\n```")
    assert (step["reward"], step["done"], step["observations"]) == (1.0, True, [])
    assert step["metadata"]["status"] == "correct"
    refused = made(url).step("I cannot.")
    assert (refused["reward"], refused["done"], refused["metadata"]["status"]) == (0.0, True, "malformed")


def test_several_turns(url: str) -> None:
    environment = made(url, max_turns=3)
    first = environment.step(WRONG)
    assert (first["reward"], first["done"]) == (0.0, False)
    assert first["observations"][0]["content"].startswith("incorrect: ")
    second = environment.step(RIGHT)
    assert (second["reward"], second["done"]) == (1.0, True)
    metrics = environment.get_metrics()
    assert metrics == {"best_reward": 1.0, "turns": 2}
    assert environment.aggregate_metrics([metrics, metrics])["turns"] == 2
