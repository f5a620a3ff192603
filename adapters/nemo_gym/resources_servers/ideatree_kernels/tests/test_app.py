"""NeMo Gym's app and its session contract, against a real reward server on a CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from ideatree_client.testing import RIGHT, TASK, WRONG, running_server
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.episode_types import EpisodeId, TaskId
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract
from resources_servers.ideatree_kernels.app import NO_VERDICT, KernelsConfig, KernelsResourcesServer
from resources_servers.ideatree_kernels.create_dataset import row_of
from resources_servers.ideatree_kernels.task_data import TaskData

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("server")) as address:
        yield address


def app_for(url: str, **changes: Any) -> Any:
    place = {"host": "127.0.0.1", "port": 8080, "entrypoint": "app.py", "name": "ideatree_kernels"}
    config = KernelsConfig(**place, url=url, reward="correctness", **changes)
    return KernelsResourcesServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()


def rollout(text: str) -> dict[str, Any]:
    """A row with the answer of a model, as an agent sends it."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    response = {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "scripted",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
    }
    row = row_of({"prompt": [{"role": "user", "content": "softmax"}], "request": json.dumps(TASK)})
    return {**row, "response": response}


def test_rewards(url: str) -> None:
    with TestClient(app_for(url)) as client:
        right, wrong, none = (
            client.post("/verify", json=rollout(text)).json()
            for text in (f"```python\n{RIGHT}\n```", WRONG, "I cannot.")
        )
    assert (right["reward"], right["status"], right["mask_sample"]) == (1.0, "correct", False)
    assert (wrong["reward"], wrong["status"], wrong["mask_sample"]) == (0.0, "incorrect", False)
    assert (none["reward"], none["status"], none["mask_sample"]) == (0.0, "malformed", False)
    assert right["failure_kind"] is None and wrong["log"]


def test_what_could_not_be_judged_is_masked() -> None:
    with TestClient(app_for("http://127.0.0.1:9", patience_s=1.0)) as client:
        answer = client.post("/verify", json=rollout(RIGHT)).json()
    assert (answer["reward"], answer["mask_sample"], answer["failure_kind"]) == (0.0, True, NO_VERDICT)
    assert "cannot be reached" in answer["failure_reason"]


def test_the_metrics_are_over_what_was_judged(url: str) -> None:
    with TestClient(app_for(url)) as client:
        answers = [client.post("/verify", json=rollout(text)).json() for text in (RIGHT, WRONG)]
        for number, each in enumerate(answers):
            each.update(_ng_task_index=0, _ng_rollout_index=number)
        found = client.post("/aggregate_metrics", json={"verify_responses": answers})
    assert found.status_code == 200
    assert "0.5" in found.text


def test_the_session_contract_holds(url: str) -> None:
    seed = ResourcesSeedSessionRequest(
        resources_session_id="s1",
        episode_id=EpisodeId(rollout_id="r1"),
        task_id=TaskId(taskset="kernels", task_id="softmax"),
        task_data={},
    )
    check_resources_session_contract(app_for(url), seed, keeps_state=False)


def test_the_examples_are_rows() -> None:
    rows = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 5
    for row in rows:
        assert row["responses_create_params"]["input"][-1]["role"] == "user"
        assert "problem" in json.loads(TaskData(**row).request)
