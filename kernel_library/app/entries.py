"""What the library's commands share: which entries they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import CommandCall, build, one_of
from evaluators.app.config import NO_FOLDER, group, hydra_settings
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import DTYPES, LANGUAGES
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.library import FolderLibrary, find


@dataclass
class LibraryConfig:
    """What every command of the library has."""

    library: Any = group("folder")
    out: str = option("outputs", "where run folders are made, and the library's")
    hydra: Any = hydra_settings(NO_FOLDER)


@dataclass
class FilterConfig(LibraryConfig):
    """Which entries a command is about."""

    op: str | None = option(None, "only entries of this family, e.g. softmax")
    dtype: str | None = option(None, "only those that are right at it")
    language: str | None = option(None, "cpp | cuda | triton")
    architecture: str | None = option(
        None, "only those measured on it: a compute capability such as 9.0, or cpu"
    )
    problem_name: str | None = option(None, "only those measured for it, e.g. problem=level1/softmax")


def expand_filters(overrides: Sequence[str]) -> CommandCall:
    """`problem` is a group of configs for Hydra, and a name here."""
    return CommandCall(
        overrides=[
            f"problem_name={each.partition('=')[2]}" if each.startswith("problem=") else each
            for each in overrides
        ]
    )


def check_filters(config: DictConfig) -> None:
    """Raises UsageError for a word that is none of those that there are."""
    for key, allowed in (("dtype", DTYPES), ("language", LANGUAGES)):
        if config[key] is not None:
            one_of(config, key, allowed)


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
            if config.problem_name in (None, each.problem.name)
            and (config.architecture is None or config.architecture == each.architecture)
        ]
        if fit and measurements:
            found.append((entry, measurements))
    return found


def named(id: str, entries: Sequence[Entry]) -> Entry:
    """The entry with this id, or the one whose id begins so. Raises UsageError, with the nearest there is."""
    try:
        return find(id, entries)
    except LookupError as error:
        raise UsageError(error.args[0]) from error
