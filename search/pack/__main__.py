"""Packs a run into one small file that others can replay, report or continue:

    ideatree pack outputs/level1/conv2d/2026-01-31_12-00-00 out=conv2d.tar.xz
    ideatree run proposer=replay replay.run=conv2d.tar.xz replay.evaluations=true
    ideatree report conv2d.tar.xz out=conv2d.html

The file holds the journal, the calls to models with their texts, and the settings, in which absolute paths
are shortened to their last part. To continue the run elsewhere, unpack the file into a new folder and name
the places that are different there:

    mkdir conv2d && tar -xf conv2d.tar.xz -C conv2d
    ideatree run resume=conv2d pool.path=/shared/queue proposer.models.mailbox.folder=/shared/mail

Exit status 0, or 2 if the call was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to, say
from evaluators.app.config import NO_FOLDER, hydra_settings
from evaluators.app.words import without_key
from evaluators.base.option import option
from search.recordings.archives import pack


@dataclass
class PackConfig:
    """The command's config."""

    run: str = option(MISSING, "the run's folder; the key may be left out")
    out: str = option("run.tar.xz", "the file to write")
    hydra: Any = hydra_settings(NO_FOLDER)


def expand(overrides: Sequence[str]) -> CommandCall:
    """Accepts the run without its key."""
    return CommandCall(overrides=without_key(overrides, "run"))


@command("search.pack", PackConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    size = pack(Path(config.run), Path(config.out))
    say(console, f"{config.out}: {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
