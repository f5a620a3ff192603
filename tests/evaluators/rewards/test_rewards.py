"""The reward server as a command, with real kernels on a CPU."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from evaluators.rewards.__main__ import KEYS
from evaluators.serve.__main__ import main
from tests.evaluators.rewards.test_server import REFERENCE

SCALE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

module = load_inline(
    name="relu",
    cpp_sources='''
#include <torch/extension.h>
torch::Tensor relu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    for (long i = 0; i < x.numel(); ++i) out[i] = in[i] != in[i] || in[i] > 0 ? in[i] : 0;
    return y;
}
''',
    functions=["relu"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.relu(x)
"""
BODY = {"reference": REFERENCE.replace("torch.randn(8)", "torch.randn(64, 1024)"), "completion": SCALE}


class Process:
    """The command in a process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def verify(self, **body: Any) -> dict[str, Any]:
        """The answer to a request."""
        answered = httpx2.post(f"{self.url}/verify", json={**BODY, **body}, timeout=120)
        return {"code": answered.status_code, **answered.json()}


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Process]:
    """The command, ready."""
    call = [sys.executable, "-m", "evaluators.serve", "http=127.0.0.1:0", "device=cpu", f"out={folder}/kept"]
    process = subprocess.Popen([*call, *arguments], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    printed = ""
    try:
        while not (found := re.search(r"http://[\d.:]+", printed)):
            line = process.stderr.readline()
            assert line, printed
            printed += line
        yield Process(process, found[0])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
@pytest.mark.core
def test_it_judges_keeps_and_drains(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        first = server.verify()
        assert (first["code"], first["status"]) == (200, "correct"), first
        gain = min(max(first["components"]["log2_gain"], -0.9), 4)
        assert first["reward"] == pytest.approx((1 + gain) / 5)
        wrong = server.verify(completion=SCALE.replace("in[i] > 0", "in[i] > 1"))
        assert (wrong["status"], wrong["reward"]) == ("incorrect", 0)
        assert wrong["cause"] in wrong["log"]
        with ThreadPoolExecutor() as threads:
            slow = threads.submit(server.verify, completion=SCALE + "\nimport time; time.sleep(3)\n")
            time.sleep(1.0)
            server.process.send_signal(signal.SIGTERM)
            assert slow.result()["code"] == 200, "a request at work is answered before the end"
        assert server.process.wait(30) == 0
    with running(tmp_path) as server:
        again = server.verify()
        assert again == {**first, "known": True}
        server.process.kill()
    lines = (tmp_path / "kept" / "verdicts.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["value"]["status"] == "correct"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["http=8000"], "is not an address"),
        (["http=0.0.0.0:8000"], "can be reached from other machines"),
        (["http=:8000"], "is not an address"),
        (["http=127.0.0.1:8000", "api_keys=missing.txt"], "api_keys=missing.txt cannot be read"),
        (["http=127.0.0.1:8000", "reward=gold"], "reward"),
        (["http=127.0.0.1:8000", "waiting=0"], "waiting"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS, raising=False)
    assert main([*arguments, "device=cpu"]) == 2
    printed = capsys.readouterr().err
    assert why in printed
    assert printed.count("\n") == 1


def test_keys_come_from_a_file_and_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, "no colon")
    assert main(["http=127.0.0.1:0", "device=cpu"]) == 2
    assert "NAME:KEY" in capsys.readouterr().err
    (tmp_path / "keys.txt").write_text("# comment\ntrainer secret more\n")
    monkeypatch.delenv(KEYS)
    assert main(["http=127.0.0.1:0", "device=cpu", f"api_keys={tmp_path}/keys.txt"]) == 2
    assert "a line has 3 words" in capsys.readouterr().err
