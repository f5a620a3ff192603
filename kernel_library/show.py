"""One entry of the library, its card and its source, from the command line:

    python -m kernel_library.show softmax/online
    python -m kernel_library.show 3f9ab2 library.root=s3://bucket/library

The beginning of an id is enough. Exit status 0, or 2 when the call was wrong.
"""

from __future__ import annotations

import sys

from rich.console import Console

from evaluators.cli import UsageError, command, compose_config, log_to
from kernel_library import cards
from kernel_library.cli import named, open_library
from kernel_library.entry import Entry


@command("kernel_library.show", __doc__)
def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    ids = [each for each in arguments if "=" not in each]
    if len(ids) != 1:
        raise UsageError("give one entry: its id, or op/name of a shipped one")
    config = compose_config("library_show", [each for each in arguments if "=" in each])
    _, entries = open_library(config)
    print(text(named(ids[0], entries)))  # noqa: T201  (what the command is for)
    return 0


def text(entry: Entry) -> str:
    """All that is known of the entry, then its source."""
    lines = [f"# {entry.id}", "", cards.dump(entry)]
    for check in entry.checks:
        lines += [f"# verified on {check.device}, {check.date}: {entry.outcome(check) or 'holds'}", ""]
    return "\n".join([*lines, "# kernel.py", "", entry.kernel.source])


if __name__ == "__main__":
    sys.exit(main())
