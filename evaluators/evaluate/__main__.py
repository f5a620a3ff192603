"""Builds, checks and times one kernel, and prints the verdict:

    ideatree evaluate problem=level1/softmax kernel=my_kernel.py
    ideatree evaluate problem=my_model.py kernel=my_kernel.py repeat=5
    ideatree evaluate problem=level1/softmax kernel=my_kernel.py json=true

The verdict goes to standard output, progress to standard error. Exit status 0: the kernel is correct in every
evaluation (`repeat` sets their number); 1: it is not; 2: the call was wrong; 130: interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app import verdict_report as report
from evaluators.app.command import build, command, log_to, one_of, positive, say
from evaluators.app.config import DEVICE_HELP, NO_FOLDER, RayConfig, group, hydra_settings, section
from evaluators.app.device_config import require_host, settle_device
from evaluators.app.kernel_file import read_kernel
from evaluators.base.cause import cause_of, first_line
from evaluators.base.languages import LANGUAGES
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.host import Host
from evaluators.scheduler.pool import Pool

EVERY_S = 5.0
"""Seconds between progress lines during a long stage."""


@dataclass
class EvaluateConfig:
    """The config of the command."""

    problem: Any = group(None)
    evaluator: Any = group("default")
    pool: Any = group("local")
    kernel: str = option(MISSING, "file that defines ModelNew")
    language: str = option("auto", "language such as cuda, triton or cute; auto: by the file's imports")
    device: str = option("auto", DEVICE_HELP)
    thorough: bool = option(True, "measure longer and time torch.compile; false: measure as a search does")
    repeat: int = option(1, "evaluations to run, each in new processes")
    json: bool = option(False, "print the evaluation as JSON, in the last line of standard output")
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@command("evaluators.evaluate", EvaluateConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    settle(config, errors)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    found = asyncio.run(
        evaluate(
            problem,
            kernel,
            settings=build(config.evaluator),
            host=build(config.pool),
            thorough=config.thorough,
            repeat=config.repeat,
            as_json=config.json,
            output=output,
            errors=errors,
        )
    )
    return 0 if all(each.status is Status.CORRECT for each in found) else 1


def settle(config: DictConfig, errors: Console) -> None:
    """Checks the config and chooses the device. Raises UsageError."""
    one_of(config, "language", ("auto", *LANGUAGES))
    positive(config, "repeat")
    wanted = str(config.device)
    why = settle_device(config)
    if wanted == "auto":
        say(errors, f"device: {config.device}, {why} (device=… to change)")


async def evaluate(
    problem: Problem,
    kernel: Kernel,
    *,
    settings: Settings,
    host: Callable[..., Host],
    thorough: bool,
    output: Console,
    errors: Console,
    repeat: int = 1,
    as_json: bool = False,
) -> list[Evaluation]:
    """Evaluates `repeat` times, each time in new processes. Prints each verdict to `output` and the progress
    to `errors`. `host` makes the host of the processes (see `configs/pool/`).

    Raises UsageError if the problem cannot be run. Cancelling ends all processes at once.
    """
    found: list[Evaluation] = []
    for number in range(1, repeat + 1):
        async with _progress(errors) as on_stage:
            evaluation = await _evaluate_once(problem, kernel, settings, host, thorough, on_stage)
        found.append(evaluation)
        style = "green" if evaluation.status is Status.CORRECT else "red"
        if as_json:
            say(output, json.dumps(evaluation.to_json()))
        elif repeat == 1:
            say(output, *report.verdict(evaluation, libraries=problem.libraries), style=style)
        else:
            say(output, f"{number}: {report.one_line(evaluation)}", style=style)
    if repeat > 1 and not as_json:
        say(output, *report.summary(found))
    return found


async def _evaluate_once(
    problem: Problem,
    kernel: Kernel,
    settings: Settings,
    host: Callable[..., Host],
    thorough: bool,
    on_stage: Callable[[str], None],
) -> Evaluation:
    try:
        pool = Pool(require_host(host(settings=settings, on_gpu=problem.device == "cuda")))
    except (ValueError, ConnectionError) as error:
        raise UsageError(first_line(error)) from error
    with pool:
        on_stage(f"opening {problem.name} on {problem.device}")
        try:
            _, evaluation = await asyncio.gather(
                pool.describe(problem), pool.evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)
            )
        except WorkerBroken as error:
            raise UsageError(f"{problem.name}: {cause_of(str(error))}") from error
    return evaluation


@contextlib.asynccontextmanager
async def _progress(errors: Console) -> AsyncIterator[Callable[[str], None]]:
    """Shows the current stage and its duration. Gives a function to call with each new stage."""
    stage, since = "starting", time.monotonic()

    def enter(name: str) -> None:
        nonlocal stage, since
        stage, since = name, time.monotonic()
        if not errors.is_terminal:
            say(errors, f"{stage} …")

    async def show() -> None:
        while True:
            await asyncio.sleep(0.2 if errors.is_terminal else EVERY_S)
            text = f"{stage} … {time.monotonic() - since:.0f} s"
            if errors.is_terminal:
                status.update(text)
            else:
                say(errors, text)

    with errors.status("starting") as status:
        showing = asyncio.create_task(show())
        try:
            yield enter
        finally:
            showing.cancel()


if __name__ == "__main__":
    sys.exit(main())
