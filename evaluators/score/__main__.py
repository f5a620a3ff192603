"""Evaluates a folder of generated kernels, in KernelBench's layout or in BackendBench's, and computes scores:

    ideatree score runs/my_run
    ideatree score runs/my_run thorough=true ks=[1,5] exclude=level1_excluded.json
    ideatree score runs/my_run baseline=results/timing/H100/baseline_time_torch.json
    ideatree score operators=generated_kernels suite=operators/opinfo only=[aten.relu.default]

`run`, or an argument without a key: a folder of files `level_<l>_problem_<n>_sample_<s>_kernel.py`. Each
evaluation is saved at once as a line of the folder's `evaluations.jsonl`, and a repeated call skips saved
ones. `eval_results.json` has the results in KernelBench's format, `scores.json` the scores. Speedups are over
eager PyTorch in the same session, or over the times in the file `baseline`.

`operators`: a folder of operators' kernels, or `aten` for PyTorch's own. Every version is evaluated on all
cases of its operator (see `operator_score`).

Exit status 0: all were evaluated; 1: one could not be; 2: the call was wrong; 130: interrupted, and the files
have the evaluations so far.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to, say
from evaluators.app.config import (
    DEVICE_HELP,
    NO_FOLDER,
    RayConfig,
    group,
    hydra_settings,
    section,
)
from evaluators.app.device_config import host_of, settle_device
from evaluators.app.suite_config import RulesConfig, evaluate_once, open_problem
from evaluators.app.words import without_key
from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.baseline.__main__ import read_times, trials
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem, language_of
from evaluators.records.scores import Scored, measures
from evaluators.scheduler.pool import Pool
from evaluators.score.operator_score import score_operators

NAME = re.compile(r"level_(\d)_problem_(\d+)_sample_(\d+)_kernel\.py")
NOT_COMPILED = (Status.COMPILE_ERROR,)


@dataclass
class ScoreConfig:
    """The config of the command."""

    run: str | None = option(None, "folder of generated kernels in KernelBench's layout")
    operators: str | None = option(None, "folder of operators' kernels; aten: PyTorch's own")
    suite: Any = group("operators/opinfo")
    only: list[str] = option([], "operators to score, e.g. [aten.relu.default]; []: all")
    problem: RulesConfig = section(RulesConfig)
    evaluator: Any = group("default")
    pool: Any = group("local")
    device: str = option("auto", DEVICE_HELP)
    thorough: bool = option(False, "measure longer and time torch.compile")
    baseline: str | None = option(
        None, "file of baseline times in KernelBench's format; null: eager in the same session"
    )
    exclude: str | None = option(None, "file by `ideatree audit` of problems to exclude from scores")
    ks: list[int] = option([1], "values of k in pass@k")
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@dataclass(frozen=True, kw_only=True, order=True)
class Generation:
    """One generated kernel's file."""

    level: int
    number: int
    sample: int
    path: Path

    @property
    def problem(self) -> str:
        """The problem as in `problem=…`."""
        return f"kernelbench/level{self.level}/{self.number}"

    @property
    def key(self) -> str:
        """The part of the store's key that names the sample."""
        return f"{self.level}/{self.number}/{self.sample}"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A sample with its problem's name and its evaluation."""

    sample: Generation
    problem: str
    evaluation: Evaluation


def expand(overrides: Sequence[str]) -> CommandCall:
    """An argument without a key is the folder."""
    return CommandCall(overrides=without_key(overrides, "run"))


@command("evaluators.score", ScoreConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    if (config.run is None) == (config.operators is None):
        raise UsageError("exactly one folder is needed: run=… or operators=…")
    output = Console()
    if config.operators is not None:
        settle_device(config)
        return asyncio.run(score_operators(config, output))
    samples = samples_of(Path(config.run))
    times, excluded = _times(config), _excluded(config)
    settle_device(config)
    judged: list[Judged] = []

    def written() -> list[str]:
        done = sorted(judged, key=lambda each: each.sample)
        return write(Path(config.run), done, times=times, excluded=excluded, ks=list(config.ks))

    try:
        asyncio.run(judge_all(config, samples, judged, output))
    except KeyboardInterrupt:
        if judged:
            say(output, *written(), f"{len(judged)} of {len(samples)} samples: repeat the call to continue")
        raise
    say(output, *written())
    return 0 if all(each.evaluation.status.is_of_the_kernel for each in judged) else 1


def samples_of(folder: Path) -> list[Generation]:
    """The kernels of a folder, in order. Raises UsageError if there are none."""
    found = [
        Generation(level=int(matched[1]), number=int(matched[2]), sample=int(matched[3]), path=path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (matched := NAME.fullmatch(path.name))
    ]
    if not found:
        raise UsageError(f"run={folder} has no files like level_1_problem_23_sample_0_kernel.py")
    return sorted(found)


async def judge_all(
    config: DictConfig, samples: Sequence[Generation], judged: list[Judged], output: Console
) -> None:
    """Evaluates the samples, or reads their saved evaluations, and appends each to `judged`. Raises
    UsageError."""
    store = JsonlStore(Path(config.run) / "evaluations.jsonl")
    problems: dict[str, Problem] = {}
    for each in samples:
        if each.problem not in problems:
            problems[each.problem] = open_problem(each.problem, device=config.device, rules=config.problem)

    async def judge_one(pool: Pool, sample: Generation) -> None:
        problem = problems[sample.problem]
        source = sample.path.read_text(encoding="utf-8", errors="replace")
        evaluation, is_new = Evaluation(status=Status.COMPILE_ERROR, log="the file is empty"), True
        if source.strip():
            kernel = Kernel(source=source, language=language_of(source))
            key = f"{sample.key} {problem.id} {kernel.id} {'thorough' if config.thorough else 'quick'}"
            is_new = store.get(key) is None
            evaluation = await evaluate_once(pool, problem, kernel, store, key, thorough=config.thorough)
        judged.append(Judged(sample=sample, problem=problem.name, evaluation=evaluation))
        if is_new:
            say(output, f"{len(judged)} of {len(samples)}: {one_line(judged[-1])}")

    with Pool(host_of(config)) as pool:
        await asyncio.gather(*(judge_one(pool, each) for each in samples))


def one_line(judged: Judged) -> str:
    """The evaluation of one sample."""
    found = judged.evaluation
    what = f"{judged.problem}, sample {judged.sample.sample}: {found.status.value}"
    if found.timing is not None:
        timing = found.timing
        return f"{what}, {timing.speedup:.2f}x [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
    return f"{what}: {found.cause}"


def write(
    folder: Path,
    judged: Sequence[Judged],
    *,
    times: Mapping[tuple[str, str], float] | None,
    excluded: Mapping[str, str],
    ks: Sequence[int],
) -> list[str]:
    """Writes `eval_results.json` and `scores.json`; returns the lines of a summary."""
    levels = sorted({each.sample.level for each in judged})
    for level in levels:
        name = "eval_results.json" if len(levels) == 1 else f"eval_results_level{level}.json"
        rows = eval_results(each for each in judged if each.sample.level == level)
        write_atomically(folder / name, json.dumps(rows, indent=4) + "\n")
    left_out = {each.problem: excluded[each.problem] for each in judged if each.problem in excluded}
    unfit = {
        each.problem: each.evaluation.cause
        for each in judged
        if each.evaluation.status is Status.UNFIT_REFERENCE
    }
    problems = scored(judged, times, {*left_out, *unfit})
    found = measures(problems, ks=ks) if problems else {}
    left_out |= unfit
    counts = _counted(each.evaluation.status.value for each in judged)
    body = {
        "problems": len(problems),
        "measures": {name: asdict(each) for name, each in found.items()},
        "left out": left_out,
        "statuses": counts,
        "causes": _counted(
            f"{each.evaluation.status.value}: {each.evaluation.cause}"
            for each in judged
            if each.evaluation.cause
        ),
    }
    write_atomically(folder / "scores.json", json.dumps(body, indent=1) + "\n")
    lines = [f"{name:<16}{each}" for name, each in found.items()]
    statuses = ", ".join(f"{status} {count}" for status, count in counts.items())
    return [
        "",
        f"{len(judged)} samples of {len(problems)} problems ({statuses})",
        *lines,
        *(f"left out: {name}: {why}" for name, why in left_out.items()),
        f"{folder}/eval_results.json, scores.json",
    ]


def scored(
    judged: Iterable[Judged], times: Mapping[tuple[str, str], float] | None, left_out: set[str]
) -> list[Scored]:
    """Each problem's samples with their speedups over eager, or over the `times`."""
    by_problem: dict[str, list[Evaluation]] = {}
    for each in judged:
        if each.problem not in left_out:
            by_problem.setdefault(each.problem, []).append(each.evaluation)
    return [
        Scored(
            problem=problem,
            speedups=[_speedup(problem, each, times) for each in evaluations],
            compiled=[each.status not in NOT_COMPILED for each in evaluations],
        )
        for problem, evaluations in by_problem.items()
    ]


def _speedup(problem: str, found: Evaluation, times: Mapping[tuple[str, str], float] | None) -> float:
    if found.timing is None:
        return 0.0
    if times is None:
        return found.timing.speedup
    *_, level, name = problem.split("/")
    if (level, name) not in times:
        raise UsageError(f"the baseline file has no time for {level}/{name}")
    return times[level, name] / found.timing.kernel_ms


def eval_results(judged: Iterable[Judged]) -> dict[str, list[dict[str, Any]]]:
    """The results in the form of KernelBench's file of that name, with times in ms."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in judged:
        found, timing = each.evaluation, each.evaluation.timing
        rows.setdefault(str(each.sample.number), []).append(
            {
                "sample_id": each.sample.sample,
                "compiled": found.status not in NOT_COMPILED,
                "correctness": found.status is Status.CORRECT,
                "metadata": {"status": found.status.value, "cause": found.cause},
                "runtime": timing.kernel_ms if timing else -1.0,
                "runtime_stats": _stats(timing, found.environment.get("device", "")) if timing else {},
            }
        )
    return dict(sorted(rows.items(), key=lambda each: int(each[0])))


def _stats(timing: Timing, hardware: str) -> dict[str, Any]:
    samples = list(timing.kernel_samples_ms) or [timing.kernel_ms]
    return trials(samples, hardware)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _times(config: DictConfig) -> Mapping[tuple[str, str], float] | None:
    if config.baseline is None:
        return None
    try:
        return read_times(Path(config.baseline))
    except OSError as error:
        raise UsageError(f"baseline={config.baseline} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(first_line(error)) from error


def _excluded(config: DictConfig) -> Mapping[str, str]:
    if config.exclude is None:
        return {}
    try:
        found = json.loads(Path(config.exclude).read_text(encoding="utf-8"))
        return {str(name): str(why) for name, why in found.items()}
    except OSError as error:
        raise UsageError(f"exclude={config.exclude} cannot be read: {error.strerror}") from error
    except (AttributeError, ValueError) as error:
        raise UsageError(f"exclude={config.exclude} was not written by ideatree audit") from error


if __name__ == "__main__":
    sys.exit(main())
