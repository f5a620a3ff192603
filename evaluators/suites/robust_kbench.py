"""robust-kbench's tasks, from a clone in the folder that the environment variable ROBUST_KBENCH_ROOT names.

A task is a folder with `func_forward.py`, whose `Model` and `get_inputs` take the sizes as arguments, and
`config_forward.json`, which lists the sizes; `config_backward.json` lists those of the backward pass, if the
task has one. Here each is a problem in our format, in which the sizes are module globals: the first of the
single settings is timed, and the kernel must be right for all the others. The tasks that are KernelBench's
problems are left out: `suite=kernelbench/level1` has them.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.base.nearest import nearest
from evaluators.records.problem import Problem
from evaluators.reference.loading import BadReference, make_problem, read_reference
from evaluators.suites.suite import SuiteEntry, SuiteMissing

ROOT = "ROBUST_KBENCH_ROOT"
REPOSITORY = "SakanaAI/robust-kbench"
NAME, TRAINING = "robust_kbench/", "training/"
REFERENCE, CONFIG = "func_forward.py", "config_{}.json"
Sizes = dict[str, Any]


def load_robust_kbench_problem(name: str, **rules: Any) -> Problem:
    """The problem `robust_kbench/<task>`, or `robust_kbench/training/<task>`, which is judged with its
    backward pass. `rules` are arguments of `evaluators.reference.loading.make_problem`. Raises SuiteMissing
    if there is no clone, and BadReference if it has no such task."""
    plain = name.removeprefix(NAME)
    train, task = plain.startswith(TRAINING), plain.removeprefix(TRAINING)
    known = tasks(train=train)
    if task not in known:
        near = nearest(task, known)
        hint = f"; did you mean {near}?" if near else f"; it has {', '.join(known)}"
        raise BadReference(f"robust-kbench has no task {task}{' with a backward pass' * train}{hint}")
    source = read_reference(folder() / task / REFERENCE)
    first, *others = settings(folder() / task / CONFIG.format("backward" if train else "forward"))
    cases = [{}, *({"sizes": each, "weight": 0} for each in others)] if others else []
    given = rules.get("cases")
    return make_problem(
        source + tail(source, first, where=name),
        where=name,
        name=f"{NAME}{TRAINING * train}{task}",
        **{
            **rules,
            "backward": train or rules.get("backward", False),
            "cases": cases if given is None else given,
        },
    )


def folder() -> Path:
    """The folder of the tasks. Raises SuiteMissing."""
    root = os.environ.get(ROOT, "")
    found = Path(root).expanduser() / "tasks"
    if not (root and found.is_dir()):
        raise SuiteMissing(
            f"robust-kbench is not available: clone github.com/{REPOSITORY} and set {ROOT} to its folder"
        )
    return found


def tasks(*, train: bool) -> list[str]:
    """The names of the tasks; with `train`, of those that have a backward pass. Raises SuiteMissing."""
    config = CONFIG.format("backward" if train else "forward")
    return sorted(
        each.name for each in folder().iterdir() if (each / config).is_file() and (each / REFERENCE).is_file()
    )


def settings(config: Path) -> list[Sizes]:
    """The sizes that a config lists, each once: the combinations of its single settings, then those of its
    multiple ones, in which the shared sizes take precedence. Raises BadReference."""
    try:
        known = json.loads(config.read_text(encoding="utf-8"))
        found = [
            {**init, **inputs, **shared}
            for kind in ("single", "multi")
            for init, inputs, shared in itertools.product(
                *(known[f"{kind}_{what}_configs"] for what in ("init", "input", "shared"))
            )
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadReference(f"{config} is no config of robust-kbench: {error!r}") from error
    return [each for number, each in enumerate(found) if each not in found[:number]]


def tail(source: str, sizes: Mapping[str, Any], *, where: str) -> str:
    """Source that makes the task's `get_inputs` and `Model` take their sizes from module globals. Raises
    BadReference."""
    inputs, init = _parameters(source, where)
    globals_ = "".join(f"{name} = {value!r}\n" for name, value in sizes.items())
    called = ", ".join(f"{name}={name}" for name in inputs if name in sizes)
    given = ", ".join(f"{name!r}: {name}" for name in init if name in sizes)
    return (
        f"\n\n{globals_}\n_sized_inputs = get_inputs\n\n\n"
        f"def get_inputs():\n    return _sized_inputs({called})\n\n\n"
        f"def get_init_inputs():\n    return {{{given}}}\n"
    )


def _parameters(source: str, where: str) -> tuple[list[str], list[str]]:
    """The names of the parameters of `get_inputs` and of `Model.__init__`. Raises BadReference."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BadReference(f"{where} is not Python: line {error.lineno}: {error.msg}") from error
    model = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Model"]
    inside = [*tree.body, *(node for each in model for node in each.body)]
    found = {
        each.name: [argument.arg for argument in (*each.args.args, *each.args.kwonlyargs)]
        for each in inside
        if isinstance(each, ast.FunctionDef)
    }
    return found.get("get_inputs", []), found.get("__init__", [])


class RobustKBench:
    """The suite of all tasks, or with `train` of those with a backward pass, which is judged, too."""

    def __init__(self, name: str, *, train: bool = False) -> None:
        self.name, self._train = name, train

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        prefix = NAME + TRAINING * self._train
        return [SuiteEntry(problem=prefix + task) for task in tasks(train=self._train)]
