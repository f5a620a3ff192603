"""One entry of the library, its card and its source, from the command line:

    python -m kernel_library.show softmax/triton
    python -m kernel_library.show 3f9ab2 library.root=s3://bucket/library

The beginning of an id is enough. Exit status 0, or 2 when the call was wrong.
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

    entry: str = option(MISSING, "its id, or the beginning of it; op/name of a shipped one")


def expand(overrides: Sequence[str]) -> CommandCall:
    """An entry stands alone, without its key. Raises UsageError unless there is one."""
    ids = [each for each in overrides if "=" not in each]
    others = [each for each in overrides if "=" in each]
    if len(ids) + sum(each.startswith("entry=") for each in others) != 1:
        raise UsageError("give one entry: its id, or op/name of a shipped one")
    return CommandCall(overrides=[*others, *(f"entry='{each}'" for each in ids)])


@command("kernel_library.show", LibraryShowConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    _, entries = open_library(config)
    print(text(named(config.entry, entries)))  # noqa: T201  (what the command is for)
    return 0


def text(entry: Entry) -> str:
    """All that is known of the entry, then its source."""
    lines = [f"# {entry.id}", "", cards.dump(entry)]
    for check in entry.checks:
        lines += [f"# verified on {check.device}, {check.date}: {entry.outcome(check) or 'holds'}", ""]
    if entry.at_shapes:
        lines += ["# shapes.csv", "", shape_table.dump(entry.at_shapes)]
    return "\n".join([*lines, "# kernel.py", "", entry.kernel.source])


if __name__ == "__main__":
    sys.exit(main())
