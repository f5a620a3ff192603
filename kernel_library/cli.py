"""What the library's commands share: which entries they are about."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from evaluators.cause import first_line
from evaluators.cli import UsageError, build, compose_config, one_of
from evaluators.nearest import nearest
from evaluators.problem import DTYPES, LANGUAGES
from kernel_library.entry import Entry, Measurement
from kernel_library.library import FolderLibrary


def settle_filters(name: str, arguments: Sequence[str]) -> DictConfig:
    """The config `name`, which filters entries. Raises UsageError."""
    # `problem` is a group of configs elsewhere, and a name here.
    problem = [each.partition("=")[2] for each in arguments if each.startswith("problem=")]
    config = compose_config(name, [each for each in arguments if not each.startswith("problem=")])
    if problem:
        OmegaConf.update(config, "problem", problem[-1])
    for key, allowed in (("dtype", DTYPES), ("language", LANGUAGES)):
        if config[key] is not None:
            one_of(config, key, allowed)
    return config


def open_library(config: DictConfig) -> tuple[FolderLibrary, list[Entry]]:
    """The library and all its entries. Raises UsageError when its root cannot be read."""
    library: FolderLibrary = build(config.library.kernels)
    try:
        return library, library.entries()
    except OSError as error:
        raise UsageError(f"library.root={config.library.root} cannot be read: {first_line(error)}") from error


def chosen(config: DictConfig, entries: Sequence[Entry]) -> list[tuple[Entry, list[Measurement]]]:
    """The entries that pass the filters, each with its measurements that do."""
    found = []
    for entry in entries:
        fit = all(
            wanted is None or wanted in have
            for wanted, have in (
                (config.op, (entry.op,)),
                (config.dtype, entry.dtypes),
                (config.language, (entry.kernel.language,)),
            )
        )
        measurements = [
            each
            for each in entry.measurements
            if config.problem in (None, each.problem.name)
            and (config.architecture is None or str(config.architecture) == each.architecture)
        ]
        if fit and measurements:
            found.append((entry, measurements))
    return found


def named(id: str, entries: Sequence[Entry]) -> Entry:
    """The entry with this id, or the one whose id begins so. Raises UsageError, with the nearest there is."""
    found = [entry for entry in entries if entry.id == id] or [e for e in entries if e.id.startswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"entry {id} is not the only one; there are {', '.join(each.id for each in found)}")
    near = nearest(id, [entry.id for entry in entries])
    hint = f"; did you mean {near}?" if near else "; python -m kernel_library.list lists them"
    raise UsageError(f"unknown entry {id}{hint}")
