"""Times one probe: a kernel that is built and timed as any other, but whose outputs are not compared:

    ideatree probe problem=level1/softmax kernel=no_stores.py
    ideatree probe problem=my_model.py kernel=empty_launch.py json=true

A probe tells what limits a kernel: leave out its stores, its loads or its arithmetic, and see how much time
is left. It defines `ModelNew` as a kernel does, and may return anything. A probe may take timestamps: it
returns them as an int64 tensor of shape (workers, marks) and names the marks in `PROBE_MARKS = ["load", …]`.
The result then has a timeline. A probe's time says nothing about correctness.

The result goes to standard output, progress to standard error. Exit status 0: the probe has a time; 1: it has
none; 2: the call was wrong; 130: interrupted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import build, command, log_to, one_of, say
from evaluators.app.config import DEVICE_HELP, NO_FOLDER, RayConfig, group, hydra_settings, section
from evaluators.app.device_config import settle_device
from evaluators.app.kernel_file import read_kernel
from evaluators.app.verdict_report import cut
from evaluators.base.cause import cause_of, first_line
from evaluators.base.languages import LANGUAGES
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.records.probe import Probe, ProbeStatus
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.host import Host
from evaluators.scheduler.pool import Pool


@dataclass
class ProbeConfig:
    """The config of the command."""

    problem: Any = group(None)
    evaluator: Any = group("default")
    pool: Any = group("local")
    kernel: str = option(MISSING, "file that defines ModelNew")
    language: str = option("auto", "language such as cuda, triton or cute; auto: by the file's imports")
    device: str = option("auto", DEVICE_HELP)
    json: bool = option(False, "print the result as JSON, in the last line of standard output")
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@command("evaluators.probe", ProbeConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    one_of(config, "language", ("auto", *LANGUAGES))
    settle_device(config)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    settings: Settings = build(config.evaluator)
    found = asyncio.run(probed(problem, kernel, settings, build(config.pool), errors))
    timed = found.status is ProbeStatus.TIMED
    if config.json:
        say(output, json.dumps(found.to_json()))
    else:
        log = [] if timed else ["log:", *(f"  {line}" for line in cut(found.log.strip()))]
        say(output, f"{found.text()}\n(a probe: its outputs were not compared)", *log)
    return 0 if timed else 1


async def probed(
    problem: Problem, kernel: Kernel, settings: Settings, host: Callable[..., Host], errors: Console
) -> Probe:
    """The result of a probe; each stage goes to `errors`. `host` makes the host of the processes (see
    `configs/pool/`). Raises UsageError if the problem cannot be run or is not timed."""
    try:
        pool = Pool(host(settings=settings, on_gpu=problem.device == "cuda"))
    except (ValueError, ConnectionError) as error:
        raise UsageError(first_line(error)) from error
    with pool:
        say(errors, f"opening {problem.name} on {problem.device}")
        try:
            await pool.describe(problem)
            return await pool.probe(problem, kernel, on_stage=lambda stage: say(errors, f"{stage} …"))
        except (WorkerBroken, ValueError) as error:
            raise UsageError(f"{problem.name}: {cause_of(str(error))}") from error


if __name__ == "__main__":
    sys.exit(main())
