"""Problems and kernels as Python programs give them: by name, as a file, or made already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluators.app.command import build, choose_device, compose_config
from evaluators.app.config import quoted
from evaluators.evaluate.__main__ import EvaluateConfig, read_kernel
from evaluators.records.problem import Kernel, Problem, language_of


def load_problem(problem: str | Path, *, device: str = "auto", **changes: Any) -> Problem:
    """A problem that is shipped, by its name (`level1/softmax`), or a reference of one's own, by its `Path`.

    `device`: `cuda`, `cpu`, or `auto`, a GPU where there is one. `changes`: other values of the keys that
    the problem's config has, e.g. `dtype="bfloat16"`, `tolerance="kernelbench"` or `sizes={"batch": 8}`.
    Raises UsageError for a name, a file or a value that is none.
    """
    chosen = [f"problem={problem}"]
    if isinstance(problem, Path):
        chosen = ["problem=file", f"problem.path={quoted(problem)}"]
    config = compose_config(EvaluateConfig, [*chosen, "kernel=none"])
    device, _ = choose_device(device, clustered=False)
    found: Problem = build(config.problem, device=device, **changes)
    return found


def as_kernel(kernel: str | Path | Kernel) -> Kernel:
    """A kernel, by its source or its file; the language is told by what it imports. Raises UsageError or
    ValueError for what is none."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, Path):
        return read_kernel(kernel, "auto")
    return Kernel(source=kernel, language=language_of(kernel))
