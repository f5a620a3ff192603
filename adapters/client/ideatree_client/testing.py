"""A reward server for the tests of adapters."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
"""The repository."""
PYTHON = os.environ.get("IDEATREE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
"""A Python with Ideatree."""
RUNNING = os.environ.get("IDEATREE_URL", "")
"""The address of a server that runs already."""
BRIEFLY = ("evaluator.plan.max_s=0.2", "evaluator.max_calls=16", "evaluator.compile_mode=")
RIGHT = (ROOT / "kernel_library/seeds/softmax/cpp/kernel.py").read_text(encoding="utf-8")
WRONG = f"""{RIGHT.replace("class ModelNew", "class Right").strip()}


class ModelNew(Right):
    def forward(self, x):
        return super().forward(x) * 1.01
"""
TASK = {"problem": "level1/softmax", "problem_keys": {"sizes": {"batch": 16, "features": 2048}}}
"""The fields of a request for which `RIGHT` is correct and `WRONG` is not."""


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """The address of a server on a CPU, whose files are in the folder; `IDEATREE_URL` if that is set."""
    if RUNNING:
        yield RUNNING
        return
    call = [PYTHON, "-m", "evaluators.serve", "http=127.0.0.1:0", "device=cpu", *BRIEFLY]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(call, cwd=folder, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        while not (found := re.search(r"http://[\d.:]+", (folder / "log").read_text())):
            if process.poll() is not None:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.1)
        yield found[0]
    finally:
        process.terminate()
        process.wait()
