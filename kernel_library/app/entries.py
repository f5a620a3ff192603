"""Selects the entries that a command of the library uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from evaluators.app.command import CommandCall, build, one_of
from evaluators.app.config import NO_FOLDER, group, hydra_settings
from evaluators.base.cause import first_line
from evaluators.base.languages import LANGUAGES
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import DTYPES
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.library import FolderLibrary, find


@dataclass
class LibraryConfig:
    """The options of every command of the library."""

    library: Any = group("folder")
    out: str = option("outputs", "folder that contains the runs and the library")
    hydra: Any = hydra_settings(NO_FOLDER)


@dataclass
class FilterConfig(LibraryConfig):
    """The options that select entries."""

    op: str | None = option(None, "only entries for this operation, e.g. softmax")
    dtype: str | None = option(None, "only entries that support this dtype")
    language: str | None = option(None, "only entries in this language, e.g. triton")
    architecture: str | None = option(
        None, "only entries measured on this compute capability (e.g. 9.0), or on cpu"
    )
    problem_name: str | None = option(
        None, "only entries measured on this problem, e.g. problem=level1/softmax"
    )


def expand_filters(overrides: Sequence[str]) -> CommandCall:
    """Renames `problem`, which is a config group for Hydra but a name here."""
    return CommandCall(
        overrides=[
            f"problem_name={each.partition('=')[2]}" if each.startswith("problem=") else each
            for each in overrides
        ]
    )


def check_filters(config: DictConfig) -> None:
    """Raises UsageError for an unknown dtype or language."""
    for key, allowed in (("dtype", DTYPES), ("language", tuple(LANGUAGES))):
        if config[key] is not None:
            one_of(config, key, allowed)


def open_library(config: DictConfig) -> tuple[FolderLibrary, list[Entry]]:
    """The library and all its entries. Raises UsageError if its root cannot be read."""
    library: FolderLibrary = build(config.library.kernels)
    try:
        return library, library.entries()
    except OSError as error:
        raise UsageError(f"library.root={config.library.root} cannot be read: {first_line(error)}") from error


def unwritable(config: DictConfig, error: OSError) -> str:
    """The message for a root that cannot be written."""
    return f"library.root={config.library.root} cannot be written: {first_line(error)}"


def chosen(config: DictConfig, entries: Sequence[Entry]) -> list[tuple[Entry, list[Measurement]]]:
    """The entries that pass the filters, each with the measurements that pass."""
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
    """The entry whose id is or begins with `id`. Raises UsageError, with the nearest known id."""
    try:
        return find(id, entries)
    except LookupError as error:
        raise UsageError(error.args[0]) from error
