"""Times eager PyTorch and `torch.compile` on the problems of a suite, on this machine:

    ideatree baseline suite=kernelbench/level1
    ideatree baseline suite=kernelbench/level1 only=[23,40] compiled=false out=results/timing/h200

Each reference is timed as a kernel for itself, like any kernel. The interval of its speedup over itself
should contain 1.00 and shows how reliable the other times are. Each measurement is saved at once as a line of
`<out>/baselines.jsonl`, and a repeated call skips saved ones. `baseline_time_torch.json` and
`baseline_time_torch_compile_inductor_<mode>.json` have the times in KernelBench's format, with versions,
intervals and the GPU's clocks before and after. A time that varied too much (see `is_steady`) is measured
once more and saved only if it is then steady. Exit status 0: all were measured; 1: one could not be; 2: the
call was wrong.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import build, command, log_to, say
from evaluators.app.device_config import settle_device
from evaluators.app.suite_config import SuiteConfig, SuiteProblems, for_each_problem
from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.option import option
from evaluators.records.evaluation import CLOCKS_AFTER, CLOCKS_BEFORE, Evaluation, Status, Timing
from evaluators.records.problem import Problem, reference_kernel
from evaluators.records.timing import interval, is_steady
from evaluators.scheduler.pool import Pool
from evaluators.system.nvml import GpuState

VERSIONS = ("torch", "cuda", "architecture", "isolation")


@dataclass
class BaselineConfig(SuiteConfig):
    """The config of the command."""

    compiled: bool = option(True, "also time torch.compile, which takes about a minute per problem")
    out: str = option("outputs/baseline", "folder of the results")


@command("evaluators.baseline", BaselineConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    settle_device(config)
    return asyncio.run(measure_all(config, Console()))


async def measure_all(config: DictConfig, output: Console) -> int:
    """Measures the problems without a saved measurement, one per device at a time, and writes the files.
    Returns the exit status. Raises UsageError."""
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    store = JsonlStore(folder / "baselines.jsonl")
    settings = build(config.evaluator)
    mode = settings.compile_mode if config.compiled else ""
    problems = SuiteProblems(config)
    found: dict[str, Evaluation] = {}

    async def measure_one(pool: Pool, place: str) -> None:
        if (opened := problems.open(place)) is None:
            return
        problem = replace(opened, allow_degenerate=True, libraries="any", floor=False)
        key = f"{problem.id} {mode}"
        known = store.get(key)
        if known is None:
            evaluation = await pool.evaluate(problem, reference_kernel(problem), thorough=bool(mode))
            if is_unsteady(evaluation):
                say(output, one_line(problem, evaluation))
                evaluation = await pool.evaluate(problem, reference_kernel(problem), thorough=bool(mode))
            if evaluation.status.is_of_the_kernel and not is_unsteady(evaluation):
                store.put(key, evaluation.to_json())
        else:
            evaluation = Evaluation.from_json(known)
        found[problem.name] = evaluation
        write(folder, found, mode)
        say(output, one_line(problem, evaluation))

    settings = replace(settings, compile_mode=mode)
    await for_each_problem(build(config.suite), config, settings, measure_one)
    unopened = problems.lines()
    say(output, *write(folder, found, mode), *unopened)
    steady = all(each.status is Status.CORRECT and not is_unsteady(each) for each in found.values())
    return 0 if steady and not unopened else 1


def is_unsteady(found: Evaluation) -> bool:
    """Whether it has times, but unreliable ones."""
    return found.timing is not None and not is_steady(found.timing)


def one_line(problem: Problem, found: Evaluation) -> str:
    """The measurement of one problem."""
    if (timing := found.timing) is None:
        return f"{problem.name}: not measured: {found.status.value}: {found.cause}"
    against = f"against itself {timing.speedup:.3f} [{timing.speedup_low:.3f}, {timing.speedup_high:.3f}]"
    compiled = f", torch.compile {timing.compile_ms:.4g} ms" if timing.compile_ms is not None else ""
    if is_unsteady(found):
        return f"{problem.name}: times vary too much, not saved; stop other programs here; {against}"
    return f"{problem.name}: eager {timing.eager_ms:.4g} ms{compiled}; {against}; {found.device_s:.1f} s"


def write(folder: Path, found: Mapping[str, Evaluation], compile_mode: str) -> list[str]:
    """Writes the files in KernelBench's format; returns the lines of a summary."""
    timed = {name: each for name, each in found.items() if each.timing is not None and not is_unsteady(each)}
    files = {"baseline_time_torch.json": {name: eager_times(each) for name, each in timed.items()}}
    compiled = {name: compiled_time(each) for name, each in timed.items()}
    compiled = {name: each for name, each in compiled.items() if each}
    if compiled:
        files[f"baseline_time_torch_compile_inductor_{compile_mode}.json"] = compiled
    for name, times in files.items():
        write_atomically(folder / name, json.dumps(by_level(times), indent=2) + "\n")
    containing = sum(
        each.timing.speedup_low <= 1 <= each.timing.speedup_high for each in timed.values() if each.timing
    )
    return [
        "",
        f"{len(found)} problems: {len(timed)} measured; the interval against itself contains 1.00 in "
        f"{containing}",
        f"files: {', '.join(str(folder / name) for name in files)}",
    ]


def eager_times(found: Evaluation) -> dict[str, Any]:
    """Eager PyTorch's times in ms, as in KernelBench's files, and the interval of the median."""
    assert found.timing is not None
    samples = list(found.timing.eager_samples_ms) or [found.timing.eager_ms]
    median, low, high = interval(samples) if len(samples) > 1 else (samples[0],) * 3
    return {
        **trials(samples, found.environment.get("device", "")),
        "versions": _versions(found),
        "clocks": clocks(found),
        "median": median,
        "median_low": low,
        "median_high": high,
    }


def compiled_time(found: Evaluation) -> dict[str, Any]:
    """`torch.compile`'s time in ms; empty if it was not timed or could not run the reference."""
    timing: Timing | None = found.timing
    if timing is None or timing.compile_ms is None:
        return {}
    return {
        **trials([timing.compile_ms], found.environment.get("device", "")),
        "versions": _versions(found),
        "clocks": clocks(found),
        "median": timing.compile_ms,
    }


def clocks(found: Evaluation) -> dict[str, dict[str, Any]]:
    """The GPU's clocks, temperature and power before and after the measurement (see `GpuState`); None for
    unknown ones."""
    keys = {"before": CLOCKS_BEFORE, "after": CLOCKS_AFTER}
    return {when: asdict(GpuState.from_text(found.environment.get(key, ""))) for when, key in keys.items()}


def trials(samples: Sequence[float], device: str) -> dict[str, Any]:
    """Times in ms in the form of KernelBench's files."""
    return {
        "mean": statistics.fmean(samples),
        "std": statistics.stdev(samples) if len(samples) > 1 else 0.0,
        "min": min(samples),
        "max": max(samples),
        "num_trials": len(samples),
        "hardware": device,
        "device": device,
    }


def by_level(times: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The times by level and file, as in KernelBench's files: `{"level1": {"23_Softmax.py": …}}`."""
    levels: dict[str, dict[str, Any]] = {}
    for name, time in times.items():
        *_, level, last = ("", *name.split("/"))
        levels.setdefault(level, {})[f"{last}.py"] = time
    return levels


def read_times(path: Path) -> dict[tuple[str, str], float]:
    """The mean times in ms of a file in KernelBench's format, by level and problem (without `.py`). Raises
    OSError, and ValueError for a file in another format."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return {
            (level, name.removesuffix(".py")): float(time["mean"])
            for level, times in body.items()
            for name, time in times.items()
            if time is not None
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no baselines in KernelBench's format: {first_line(error)}") from error


def _versions(found: Evaluation) -> dict[str, str]:
    return {name: found.environment[name] for name in VERSIONS if name in found.environment}


if __name__ == "__main__":
    sys.exit(main())
