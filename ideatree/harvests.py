"""Makes training data: the command `search.harvest`, with its keys as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.app.command import compose_config
from ideatree.searches import overrides
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
    """Writes a dataset into the folder `out`, which must not be there yet, and returns it;
    `datasets.load_dataset(str(out))` opens it.

    `format`: `sft`, `improvement`, `preference`, `repair`, `trajectory` or `kernelbook`; `options`: its keys,
    e.g. `{"min_speedup": 0}`. `runs`: folders with runs below them; `libraries`: roots of kernel libraries.
    `show`: how many rows there are and what was left out, on standard output. `keys`: every other key of the
    command, e.g. `license="mit"`. Raises UsageError and HarvestError for what the command would refuse.
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
