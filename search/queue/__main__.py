"""Shows what waits in a queue of device operations, and carries it to machines that do not share the folder:

    ideatree queue status path=/shared/queue
    ideatree queue pack path=/shared/queue out=in.tar
    python -m evaluators.serve archive=in.tar out=out.jsonl seconds=540      on a machine with a device
    ideatree queue unpack path=/shared/queue verdicts=out.jsonl

`pack` writes all pending requests of all searches into one archive: first the problems to open, then the
searches in turn. The requests stay in the queue until they have a verdict. `unpack` stores verdicts. It
refuses by name those that were altered, that belong to another queue, or that come from another kind of
device. Exit status 0; 1: verdicts were refused, or requests cannot be read; 2: the call was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to, one_of, say
from evaluators.app.config import NO_FOLDER, hydra_settings
from evaluators.app.words import without_key
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.queue.archive import import_verdicts, pack, pending_requests
from evaluators.queue.queue_folder import QueueFolder
from search.queue.waiting import total, waiting_searches

ACTIONS = ("status", "pack", "unpack")


@dataclass
class QueueConfig:
    """The command's config."""

    action: str = option(MISSING, "status | pack | unpack; the key may be left out")
    path: str = option(MISSING, "the queue's folder")
    out: str = option("requests.tar", "with pack: the archive to write")
    verdicts: str | None = option(None, "with unpack: the file of verdicts that evaluators.serve wrote")
    runs: str = option("outputs", "with status: folder of the run folders, to show what awaits an answer")
    trusted: bool = option(False, "use the folder although others can write to it")
    hydra: Any = hydra_settings(NO_FOLDER)


def expand(overrides: Sequence[str]) -> CommandCall:
    """Accepts the action without its key."""
    return CommandCall(overrides=without_key(overrides, "action"))


@command("search.queue", QueueConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    one_of(config, "action", ACTIONS)
    if not Path(config.path).is_dir():
        raise UsageError(f"path={config.path} is not a folder; a search with pool=folder makes it")
    folder = QueueFolder(Path(config.path), trusted=config.trusted)
    if config.action == "unpack":
        return _unpack(folder, config, console)
    pending = pending_requests(folder)
    if config.action == "pack":
        try:
            packed = pack(pending.requests, Path(config.out))
        except OSError as error:
            raise UsageError(f"out={config.out} cannot be written: {error.strerror}") from error
        say(console, f"{config.out}: {total(packed)}")
    else:
        for each in waiting_searches(pending, Path(config.runs)):
            say(console, *each.lines())
        say(console, total(pending.requests))
    say(console, *pending.unreadable)
    return 1 if pending.unreadable else 0


def _unpack(folder: QueueFolder, config: DictConfig, console: Console) -> int:
    if config.verdicts is None:
        raise UsageError("unpack needs verdicts=…, the file that evaluators.serve wrote")
    found = import_verdicts(folder, Path(config.verdicts))
    say(console, *(f"refused: {each}" for each in found.refused))
    counts = f"{found.stored} stored, {found.already} known already, {len(found.refused)} refused"
    say(console, f"verdicts: {counts}")
    return 1 if found.refused else 0


if __name__ == "__main__":
    sys.exit(main())
