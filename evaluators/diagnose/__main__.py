"""Diagnoses one kernel: profiles it, and says what keeps it from being faster:

    ideatree diagnose problem=level1/softmax kernel=my_kernel.py
    ideatree diagnose problem=my_model.py kernel=my_kernel.py profile=trace
    ideatree diagnose problem=level1/softmax kernel=my_kernel.py evaluate=false json=true

First the kernel is evaluated, for its time and for the problem's roofline; then it is profiled apart from any
measurement. `profile` is the highest level to reach: `static` (the compiled code), `trace` (the launches of a
call) or `counters` (the hardware's counters, which need NVIDIA's `ncu` and permission); `auto` takes every
level that works, and the diagnosis says why others do not. The diagnosis goes to standard output, progress to
standard error. Exit status 0: there is a diagnosis; 1: the kernel is not correct or could not be profiled; 2:
the call was wrong; 130: interrupted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app import verdict_report
from evaluators.app.command import build, command, log_to, one_of, say
from evaluators.app.config import DEVICE_HELP, NO_FOLDER, group, hydra_settings
from evaluators.app.device_config import settle_device
from evaluators.app.kernel_file import read_kernel
from evaluators.base.cause import cause_of, first_line
from evaluators.base.languages import LANGUAGES
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.profiling.profiler import AUTO, PROFILES, KernelProfiler, ProfileFailed, ProfileLimits
from evaluators.records.configurations import judged_kernel
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool


@dataclass
class DiagnoseConfig:
    """The config of the command."""

    problem: Any = group(None)
    evaluator: Any = group("default")
    kernel: str = option(MISSING, "file that defines ModelNew")
    language: str = option("auto", "language such as cuda, triton or cute; auto: by the file's imports")
    device: str = option("auto", DEVICE_HELP)
    profile: str = option(AUTO, "highest level to reach: static | trace | counters | auto")
    profile_timeout_s: float = option(240.0, "time limit of each profiled process, in s")
    profile_unconfined: bool = option(
        False, "run a kernel that you trust without the sandbox, if ncu does not work with it"
    )
    evaluate: bool = option(True, "evaluate the kernel first; false: profile it without time and roofline")
    json: bool = option(False, "print the diagnosis as JSON, in the last line of standard output")
    hydra: Any = hydra_settings(NO_FOLDER)


@command("evaluators.diagnose", DiagnoseConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    one_of(config, "language", ("auto", *LANGUAGES))
    one_of(config, "profile", PROFILES[1:])
    settle_device(config)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    settings: Settings = build(config.evaluator)
    try:
        limits = ProfileLimits(
            seconds=float(config.profile_timeout_s), unconfined=bool(config.profile_unconfined)
        )
    except ValueError as error:
        raise UsageError(first_line(error)) from error
    evaluation = None
    if config.evaluate:
        say(errors, f"evaluating on {problem.device}")
        evaluation = asyncio.run(evaluated(problem, kernel, settings))
        if evaluation.status is not Status.CORRECT:
            say(output, *verdict_report.verdict(evaluation, libraries=problem.libraries), style="red")
            return 1
        say(errors, verdict_report.one_line(evaluation))
        kernel = judged_kernel(kernel, evaluation)
    say(errors, f"profiling, profile={config.profile}")
    profiler = KernelProfiler(settings, limits)
    return diagnose(profiler, problem, kernel, evaluation, str(config.profile), config.json, output)


def diagnose(
    profiler: KernelProfiler,
    problem: Problem,
    kernel: Kernel,
    evaluation: Evaluation | None,
    wanted: str,
    as_json: bool,
    output: Console,
) -> int:
    """Profiles the kernel and prints the diagnosis. Returns the exit status. Raises UsageError without a
    device."""
    timing = evaluation.timing if evaluation is not None else None
    try:
        found = profiler.profile(
            problem,
            kernel,
            wanted=wanted,
            roofline=evaluation.roofline if evaluation is not None else None,
            call_ms=timing.kernel_ms if timing is not None else None,
        )
    except ProfileFailed as error:
        say(output, str(error), style="red")
        return 1
    except OSError as error:
        raise UsageError(first_line(error)) from error
    say(output, json.dumps(found.to_json()) if as_json else found.text())
    return 0


async def evaluated(problem: Problem, kernel: Kernel, settings: Settings) -> Evaluation:
    """The kernel's evaluation on this machine. Raises UsageError if the problem cannot be run."""
    with Pool(LocalHost(settings=settings, on_gpu=problem.device == "cuda")) as pool:
        try:
            _, evaluation = await asyncio.gather(pool.describe(problem), pool.evaluate(problem, kernel))
        except WorkerBroken as error:
            raise UsageError(f"{problem.name}: {cause_of(str(error))}") from error
    return evaluation


if __name__ == "__main__":
    sys.exit(main())
