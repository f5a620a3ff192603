"""Repeats the measurements of the library's cards on this machine:

    ideatree verify
    ideatree verify op=softmax device=cuda
    ideatree verify entry=softmax/triton

An entry is confirmed if its kernel is still correct and, on the device named in its card, not much slower.
The results are written into the entry's folder of `library.root`; the card stays unchanged. `ideatree list`
shows them, and searches do not start from kernels that fail here. The exit status is 0 if all entries are
confirmed, 1 if one is not, 2 for a wrong call, 130 after an interrupt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluators.app.command import build, command, log_to, say
from evaluators.app.config import DEVICE_HELP, RayConfig, group, section
from evaluators.app.device_config import settle_device
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import evaluate
from evaluators.records.problem import DEVICES
from kernel_library.app.entries import (
    FilterConfig,
    check_filters,
    chosen,
    expand_filters,
    named,
    open_library,
    unwritable,
)
from kernel_library.catalogue.entry import Entry, Measurement, RepeatedMeasurement
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.list.__main__ import WIDTH


@dataclass
class LibraryVerifyConfig(FilterConfig):
    """The config of the command."""

    evaluator: Any = group("default")
    pool: Any = group("local")
    entry: str | None = option(None, "only this entry: an id, or op/name for a shipped entry")
    device: str = option("auto", DEVICE_HELP)
    ray: RayConfig = section(RayConfig)


@command("kernel_library.verify", LibraryVerifyConfig, __doc__, expand=expand_filters)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    check_filters(config)
    wanted = str(config.device)
    settle_device(config)
    library, entries = open_library(config)
    some = entries if config.entry is None else [named(str(config.entry), entries)]
    devices = DEVICES if (wanted, config.device) == ("auto", "cuda") else (config.device,)
    return verify(config, library, chosen(config, some), devices, output, errors)


def verify(
    config: DictConfig,
    library: FolderLibrary,
    found: Sequence[tuple[Entry, Sequence[Measurement]]],
    devices: Sequence[str],
    output: Console,
    errors: Console,
) -> int:
    """Repeats the measurements of these devices, and saves and prints the results; returns the exit status.
    Raises UsageError if the root cannot be written."""
    all_of_them = [(entry, each) for entry, measurements in found for each in measurements]
    here = [(entry, each) for entry, each in all_of_them if each.problem.device in devices]
    table = Table("entry", "problem", "dtype", "device", "in the card", "now", "result", box=box.SIMPLE)
    confirmed = 0
    for entry, each in here:
        about = (entry.id, each.problem.name, each.problem.dtype)
        say(errors, " ".join(about))
        then = f"{each.evaluation.speedup:.2f}x"
        try:
            check = _repeat(config, entry, each, errors)
        except UsageError as error:  # this problem cannot run here, but the next one may
            table.add_row(*about, "", then, "", escape(f"not measured: {error}"))
            continue
        try:
            library.save_check(entry, check)
        except OSError as error:
            raise UsageError(unwritable(config, error)) from error
        failure = entry.failure(check)
        confirmed += not failure
        now = f"{check.evaluation.speedup:.2f}x" if check.evaluation.timing else ""
        table.add_row(*about, escape(check.device), then, now, escape(failure or "confirmed"))
    if not output.is_terminal:
        output.width = WIDTH
    if here:
        output.print(table)
    others = len(all_of_them) - len(here)
    skipped = f"; {others} are for other devices" if others else ""
    output.print(f"{confirmed} of {len(here)} confirmed{skipped}")
    return 0 if confirmed == len(here) else 1


def _repeat(
    config: DictConfig, entry: Entry, measurement: Measurement, errors: Console
) -> RepeatedMeasurement:
    """Raises UsageError for a problem that cannot run here."""
    (found,) = asyncio.run(
        evaluate(
            measurement.problem,
            entry.kernel,
            settings=build(config.evaluator),
            host=build(config.pool),
            thorough=True,
            output=Console(quiet=True),
            errors=errors,
        )
    )
    if not found.status.is_of_the_kernel:
        raise UsageError(found.cause)
    return RepeatedMeasurement(
        problem_id=measurement.problem.id, evaluation=found, date=date.today().isoformat()
    )


if __name__ == "__main__":
    sys.exit(main())
