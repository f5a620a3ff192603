"""Problems and kernels from names, files and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluators.app.command import build, choose_device, compose_config
from evaluators.app.kernel_file import read_kernel
from evaluators.app.words import overrides
from evaluators.base.languages import language_of
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.problem import Kernel, Problem


def load_problem(problem: str | Path, *, device: str = "auto", **changes: Any) -> Problem:
    """Loads a problem.

    Args:
        problem: the name of a shipped problem (`level1/softmax`), or the `Path` of your own reference.
        device: `cuda`, `cpu`, or `auto` for a GPU if there is one.
        **changes: other values for the problem's keys, e.g. `dtype="bfloat16"`, `tolerance="kernelbench"` or
            `sizes={"batch": 8}`.

    Returns:
        The problem.

    Raises:
        UsageError: the name, the file or a value is not valid.
    """
    config = compose_config(EvaluateConfig, [*problem_overrides(problem), "kernel=none"])
    device, _ = choose_device(device, clustered=False)
    found: Problem = build(config.problem, device=device, **changes)
    return found


def problem_overrides(problem: str | Path) -> list[str]:
    """The overrides that choose a shipped problem by its name, or a reference by its file."""
    if isinstance(problem, Path):
        return overrides({"problem": "file", "problem.path": problem})
    return [f"problem={problem}"]


def as_kernel(kernel: str | Path | Kernel) -> Kernel:
    """A kernel from its source or its file; its imports determine the language. Raises UsageError or
    ValueError for an invalid one."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, Path):
        return read_kernel(kernel, "auto")
    return Kernel(source=kernel, language=language_of(kernel))
