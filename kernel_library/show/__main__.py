"""Prints one entry of the library: its card and its source:

    ideatree show softmax/triton
    ideatree show 3f9ab2 library.root=s3://bucket/library

The beginning of an id is enough. The exit status is 0, or 2 for a wrong call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from kernel_library.app.entries import LibraryConfig, named, open_library
from kernel_library.catalogue import cards, shape_table
from kernel_library.catalogue.entry import Entry


@dataclass
class LibraryShowConfig(LibraryConfig):
    """The config of the command."""

    entry: str = option(MISSING, "the entry's id or its beginning; op/name for a shipped entry")


def expand(overrides: Sequence[str]) -> CommandCall:
    """Accepts an entry without its key. Raises UsageError unless there is exactly one."""
    ids = [each for each in overrides if "=" not in each]
    others = [each for each in overrides if "=" in each]
    if len(ids) + sum(each.startswith("entry=") for each in others) != 1:
        raise UsageError("give one entry: its id, or op/name for a shipped entry")
    return CommandCall(overrides=[*others, *(f"entry='{each}'" for each in ids)])


@command("kernel_library.show", LibraryShowConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    log_to(Console(stderr=True))
    _, entries = open_library(config)
    print(text(named(config.entry, entries)))  # noqa: T201  (the command's output)
    return 0


def text(entry: Entry) -> str:
    """The entry's card, checks, shape table and source."""
    lines = [f"# {entry.id}", "", cards.dump(entry)]
    for check in entry.checks:
        lines += [f"# verified on {check.device}, {check.date}: {entry.failure(check) or 'confirmed'}", ""]
    if entry.at_shapes:
        lines += ["# shapes.csv", "", shape_table.dump(entry.at_shapes)]
    return "\n".join([*lines, "# kernel.py", "", entry.kernel.source])


if __name__ == "__main__":
    sys.exit(main())
