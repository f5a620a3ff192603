"""Runs KernelBench's evaluation on many kernels, each in a separate process: one half of `harnesses.py`.

    PYTHONPATH=CLONE/src python benchmarks/kernelbench_eval.py JOBS.jsonl RESULTS.jsonl AT_A_TIME TIMEOUT_S

A job is a line of JSON: `name`, `reference` and `kernel` (sources), `backend` and `dtype`. So is a result:
`name`, `accepted`, `speedup` and `words`. The clone's `eval_kernel_against_ref` runs with its scripts'
settings (5 inputs), except that it times 10 calls instead of 100. A kernel that dies or takes longer than
TIMEOUT_S is not accepted. Kernels run unconfined, as in the clone; everything that a kernel started is
killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from evaluators.system import process_tree

CORRECTNESS_CALLS, TIMED_CALLS = 5, 10
LARGEST_FILE = 2**30
FORKING = threading.Lock()
"""Held while forking: a process forked for another job would inherit the pipe whose closing signals a death.
The results file is not open then either, because some kernels write to every open file."""


def main(jobs: Path, results: Path, at_a_time: int, timeout_s: float) -> None:
    """Evaluates all jobs and writes each result immediately."""
    evaluate = imported()

    def one(job: dict[str, Any]) -> None:
        found = {"name": job["name"], **evaluated(job, evaluate, timeout_s)}
        with FORKING, results.open("a") as file:
            file.write(json.dumps(found) + "\n")

    with ThreadPoolExecutor(at_a_time) as threads:
        list(threads.map(one, [json.loads(line) for line in jobs.read_text().splitlines()]))


def imported() -> Any:
    """The clone's function, imported without touching the GPU: its processes are forked from this one."""
    with mock.patch("torch.cuda.is_available", return_value=False):
        return importlib.import_module("kernelbench.eval").eval_kernel_against_ref


def evaluated(job: dict[str, Any], evaluate: Any, timeout_s: float) -> dict[str, Any]:
    """The result of one job, from a process that is killed afterwards with everything it started."""
    with FORKING:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_keep, args=(theirs, job, evaluate))
        child.start()
        theirs.close()
    deadline = time.monotonic() + timeout_s
    answer: dict[str, Any] = {"accepted": False, "speedup": 0.0, "words": "it died"}
    try:
        if ours.poll(max(deadline - time.monotonic(), 0)):
            answer = ours.recv()
        else:
            answer["words"] = f"no result after {timeout_s:.0f} s"
    except (EOFError, OSError):
        pass
    if child.pid is not None:
        process_tree.kill_tree(child.pid)
    child.join()
    return answer


def _keep(pipe: Any, job: dict[str, Any], evaluate: Any) -> None:
    """Evaluates in a child and outlives it, so that orphaned processes can be found through this one."""
    process_tree.become_subreaper()
    os.setsid()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_evaluate, args=(theirs, job, evaluate))
    child.start()
    theirs.close()
    with contextlib.suppress(EOFError, OSError):
        pipe.send(ours.recv())
    process_tree.kill_descendants()


def _evaluate(pipe: Any, job: dict[str, Any], evaluate: Any) -> None:
    """Evaluates in a new folder with a separate extension cache; output is discarded."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["TORCH_EXTENSIONS_DIR"] = f"{folder}/extensions"
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            pipe.send(_answer(job, evaluate))
        except BaseException as error:  # ends this process; includes sys.exit in a kernel
            words = f"{type(error).__name__}: {error}"[:200]
            pipe.send({"accepted": False, "speedup": 0.0, "words": words})


def _answer(job: dict[str, Any], evaluate: Any) -> dict[str, Any]:
    import torch

    found = evaluate(
        original_model_src=job["reference"],
        custom_model_src=job["kernel"],
        num_correct_trials=CORRECTNESS_CALLS,
        num_perf_trials=TIMED_CALLS,
        measure_performance=True,
        build_dir=os.environ["TORCH_EXTENSIONS_DIR"] if job["backend"] == "cuda" else None,
        device=torch.device("cuda:0"),
        backend=job["backend"],
        precision=getattr(torch, job["dtype"]),
    )
    if found is None:
        return {"accepted": False, "speedup": 0.0, "words": "no result"}
    timed = found.runtime > 0 and found.ref_runtime > 0
    return {
        "accepted": bool(found.correctness),
        "speedup": found.ref_runtime / found.runtime if timed else 0.0,
        "words": " ".join(f"{key}: {value}" for key, value in found.metadata.items())[:300],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    sys.stdout.flush()
    os._exit(0)
