"""`vf-eval` runs the taskset with a scripted model and a real reward server on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ideatree_client.testing import RIGHT, TASK, WRONG, running_server

REPLIES = {"write right": f"```python\n{RIGHT}\n```", "write wrong": WRONG, "write nothing": "No."}


class Model(BaseHTTPRequestHandler):
    """Streams as OpenAI's protocol does, and answers each prompt with its reply."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = json.dumps(body["messages"])
        reply = next(text for prompt, text in REPLIES.items() if prompt in asked)
        chunk: dict[str, Any] = {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "scripted",
        }
        deltas = [({"role": "assistant", "content": reply}, None), ({}, "stop")]
        chunks = [
            {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
            for delta, reason in deltas
        ]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        chunks.append({**chunk, "choices": [], "usage": usage})
        sent = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(sent.encode())))
        self.end_headers()
        self.wfile.write(sent.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()


def test_the_evaluation_command_gets_the_rewards(model: str, tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": prompt}], "request": json.dumps(TASK), "problem": prompt}
        for prompt in REPLIES
    ]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with running_server(tmp_path) as url:
        call = [Path(sys.executable).with_name("vf-eval"), "ideatree-kernels", "-m", "scripted", "--no-push"]
        call += [
            "--env.agent.harness.id",
            "null",
            "--env.agent.runtime.type",
            "subprocess",
            "--client.base-url",
            model,
            "--client.api-key-var",
            "KEY",
        ]
        call += ["--env.taskset.tasks", tasks, "--env.taskset.task.url", url]
        call += ["--env.taskset.task.policy", "correctness", "-o", tmp_path / "outputs"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # uv is there
        environment = {**os.environ, "KEY": "none", "HF_HUB_OFFLINE": "1", "PATH": path}
        done = subprocess.run(
            [str(each) for each in call],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    (file,) = (tmp_path / "outputs").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rewards = {
        each["task"]["data"]["name"]: each["traces"][0].get("rewards", {}).get("kernel") for each in episodes
    }
    assert {name: reward and reward["score"] for name, reward in rewards.items()} == {
        "write right": 1.0,
        "write wrong": 0.0,
        "write nothing": 0.0,
    }, done.stdout + done.stderr
