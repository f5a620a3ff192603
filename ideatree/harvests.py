"""Writes training data: the command `ideatree harvest` as a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.app.command import compose_config
from evaluators.app.words import overrides
from search.harvest import __main__ as command


def harvest(
    format: str,
    *,
    out: str | Path,
    runs: Sequence[str | Path] = ("outputs",),
    libraries: Sequence[str | Path] = ("outputs/library",),
    options: Mapping[str, Any] | None = None,
    show: bool = True,
    **keys: Any,
) -> Path:
    """Writes a dataset of runs and libraries, which `datasets.load_dataset(str(out))` opens.

    Args:
        format: `sft`, `improvement`, `preference`, `repair`, `trajectory`, `idea`, `rl` or `kernelbook`.
        out: the folder to write, which must not exist yet.
        runs: folders that contain runs, at any depth.
        libraries: roots of kernel libraries.
        options: the format's keys, e.g. `{"min_speedup": 0}`.
        show: print the number of rows and what was left out.
        **keys: other keys of the command, e.g. `license="mit"`.

    Returns:
        The folder `out`.

    Raises:
        UsageError: an argument is not valid.
        HarvestError: the dataset would be empty, or its sources cannot be used.
    """
    given = [
        f"format={format}",
        *overrides({"out": out, "runs": list(runs), "libraries": list(libraries)}),
        *overrides({"format": options or {}, **keys}),
    ]
    config = compose_config(command.HarvestConfig, given)
    command.check(config)
    for line in command.harvest(config, given, lambda sequence, _: sequence):
        if show:
            print(line)  # noqa: T201
    return Path(out)
