"""Searches for a faster kernel for one problem:

    ideatree run problem=level1/conv2d rounds=13 branch=8
    ideatree run problem=my_model.py
    ideatree run problem=level1/conv2d proposer=llm llm=openai budget.dollars=5
    ideatree run proposer=replay replay.run=search/recordings/conv2d_h200
    ideatree run resume=outputs/level1/conv2d/2026-01-31_12-00-00

Exit status: 0 when the search ended at its limits, 1 when it failed, 2 when the call was wrong, 130 when it
was interrupted. With `until=blocked`, 3 when it waits for answers (`proposer=mailbox`) or for verdicts
(`pool=folder`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
    EXIT_INTERRUPTED,
    CommandCall,
    command,
    given_overrides,
    log_to,
    output_folder,
    say,
)
from search.app.resuming import replay_overrides, resume_call
from search.engine.outside_watch import BLOCKED
from search.records.events import RunFinished
from search.records.journal import JournalError
from search.run.config import RunConfig
from search.run.launch import search, settle
from search.run.specification import specification

EXIT_BLOCKED = 3


def expand(overrides: Sequence[str]) -> CommandCall:
    """The call with what it resumes or replays: a resumed run's own config, a recorded run's overrides.
    Raises UsageError."""
    if (call := resume_call(overrides, "resume", RunConfig)) is not None:
        return call
    return CommandCall(overrides=replay_overrides(overrides) if "proposer=replay" in overrides else overrides)


@command("search.run", RunConfig, __doc__, JournalError, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(console)
    recording, chosen = settle(config, given_overrides())
    say(console, *chosen)
    spec = specification(config, recording=recording)
    return _status(asyncio.run(search(spec, output_folder(), console)))


def _status(finished: RunFinished) -> int:
    if finished.reason.startswith("error"):
        return 1
    return {"interrupted": EXIT_INTERRUPTED, BLOCKED: EXIT_BLOCKED}.get(finished.reason, 0)


if __name__ == "__main__":
    sys.exit(main())
