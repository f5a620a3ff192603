"""KernelBench's half of `benchmarks/throughput.py`: runs the clone's own script on the samples."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.throughput_halves import Done, Half, Options, Sample

LEVELS = {"cuda": 1, "triton": 2}
"""KernelBench's level for each language: a run of its script has one level and one backend."""
UNUSED = ("modal", "litellm", "openai")
STAND_IN = "import sys\nfrom unittest.mock import MagicMock\n\nsys.modules[__name__] = MagicMock()\n"
READY, BEGUN, ENDED = "Start evaluation on", "[Curr Batch]", "[Curr batch] Evaluation took"
"""What KernelBench writes before the builds and around each evaluation; a progress bar may precede it."""


def lay_out(work: Path, kernelbench: Path, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """A folder in which the script of the clone finds exactly these kernels, each as the one sample of a
    problem of its own: (language, samples in the order of their numbers)."""
    for folder in ("src", "scripts"):
        shutil.copytree(kernelbench / folder, work / folder)
    runs = {}
    for language, level in LEVELS.items():
        chosen = [sample for sample in samples if sample.kernel.language == language]
        if not chosen:
            continue
        runs[language] = chosen
        problems, kernels = work / "KernelBench" / f"level{level}", work / "runs" / language
        problems.mkdir(parents=True)
        kernels.mkdir(parents=True)
        for number, sample in enumerate(chosen, 1):
            shutil.copy(sample.reference, problems / f"{number}_{sample.reference.name}")
            kernel = kernels / f"level_{level}_problem_{number}_sample_0_kernel.py"
            kernel.write_text(sample.kernel.source)
    stand_ins = work / "stand_ins"
    stand_ins.mkdir()
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            (stand_ins / f"{name}.py").write_text(STAND_IN)
    return runs


def run_kernelbench(samples: Sequence[Sample], options: Options, half: Half) -> None:
    """Runs the script once per language and adds its verdicts to `half`."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for language, chosen in lay_out(work, Path(options.kernelbench), samples).items():
            moments, wall_s = run_script(work, language, options, options.limit_s - half.wall_s)
            results = read_results(work / "runs" / language / "eval_results.json")
            for number, (begun_s, ended_s) in enumerate(moments.evaluations, 1):
                correct, words = results.get(number, (False, "no result"))
                half.done[chosen[number - 1].name] = Done(
                    correct=correct,
                    words=words,
                    at_s=half.wall_s + ended_s,
                    device_s=ended_s - begun_s,
                )
            half.ready_s += moments.ready_s
            half.wall_s += wall_s


@dataclass
class Moments:
    """Times from the script's output, in seconds since its start."""

    ready_s: float = 0.0
    evaluations: list[tuple[float, float]] = field(default_factory=list)
    _begun_s: float = 0.0

    def note(self, line: str, now_s: float) -> None:
        """Reads a line that was just printed."""
        if READY in line:
            self.ready_s = now_s
        elif BEGUN in line:
            self._begun_s = now_s
        elif ENDED in line:
            self.evaluations.append((self._begun_s, now_s))


def run_script(work: Path, language: str, options: Options, limit_s: float) -> tuple[Moments, float]:
    """KernelBench's script on one language; it is killed, with all that it started, after `limit_s`. Returns
    what its output told and its wall time in seconds."""
    on_cores = language == "cuda"  # it cannot build Triton kernels in advance
    command = [
        *(sys.executable, "scripts/eval_from_generations.py"),
        *(f"run_name={language}", f"level={LEVELS[language]}", f"backend={language}", "dataset_src=local"),
        *("num_gpu_devices=1", f"timeout={options.their_timeout_s:g}", "gpu_arch=['Hopper']"),
        *(f"build_cache={on_cores}", f"num_cpu_workers={options.cores}"),
    ]
    path = os.pathsep.join([f"{work}/src", f"{work}/stand_ins", os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    moments = Moments()
    last: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            moments.note(line, time.monotonic() - began)
            last = [*last[-40:], line]
        code = process.wait()
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    wall_s = time.monotonic() - began
    if code:
        how = f"stopped after {limit_s:.0f} s" if code == -signal.SIGKILL else f"exit status {code}"
        print(f"KernelBench's script ({language}): {how}; its last lines:\n{''.join(last)}")
    return moments, wall_s


def read_results(file: Path) -> dict[int, tuple[bool, str]]:
    """Verdicts and words by problem number, as far as the script got."""
    if not file.exists():
        return {}
    return {
        int(number): (bool(found[0]["correctness"]), _words_of_theirs(found[0]))
        for number, found in json.loads(file.read_text()).items()
    }


def _words_of_theirs(found: dict[str, Any]) -> str:
    if found["correctness"]:
        return f"correct, {found['runtime']:.3f} ms"
    why = [v for k, v in found["metadata"].items() if re.search("error|issue", k) and "name" not in k]
    words = f"{'compiled' if found['compiled'] else 'not compiled'}: {why[0] if why else ''}"
    return " ".join(words.split())[:60]
