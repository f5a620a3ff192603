"""A command of its own that is interrupted when it has written its report."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60.0


def interrupted(folder: Path, module: str, *arguments: str) -> tuple[int, str]:
    """Starts the command; when its report is there takes it away, and interrupts the one process. Returns
    its exit status, and what it has said."""
    report = folder / "report.html"
    call = [sys.executable, "-m", module, *arguments, f"hydra.run.dir={folder}"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not report.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        report.unlink(missing_ok=True)
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return process.returncode, said
