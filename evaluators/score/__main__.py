"""Evaluates a folder of generated kernels, in KernelBench's layout or in BackendBench's, and computes scores:

    ideatree score runs/my_run
    ideatree score runs/my_run thorough=true ks=[1,5] exclude=level1_excluded.json
    ideatree score runs/my_run backend=cute
    ideatree score runs/my_run baseline=results/timing/H100/baseline_time_torch.json
    ideatree score operators=generated_kernels suite=operators/opinfo only=[aten.relu.default]
    ideatree score solutions=~/flashinfer-trace/solutions

`run`, or an argument without a key: a folder of files `level_<l>_problem_<n>_sample_<s>_kernel.py`. Each
evaluation is saved at once as a line of the folder's `evaluations.jsonl`, and a repeated call skips saved
ones. `eval_results.json` has the results in KernelBench's format, `scores.json` the scores. Speedups are over
eager PyTorch in the same session, or over the times in the file `baseline`. `backend` is KernelBench's: the
language that the kernels should be in, by default the one in the folder's `generation_config.yaml`; samples
in another language are judged too, and named. Without either, nothing is expected.

`operators`: a folder of operators' kernels, or `aten` for PyTorch's own. Every version is evaluated on all
cases of its operator (see `operator_score`).

`solutions`: a folder with solutions of FlashInfer Trace or SOL-ExecBench, each of which is evaluated on its
definition; the verdicts are written as traces, too (see `solution_score`).

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
from dataclasses import dataclass, replace
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
from evaluators.app.suite_config import RulesConfig, SuiteProblems, all_of, evaluate_once
from evaluators.app.words import without_key
from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.languages import language_of
from evaluators.base.option import option
from evaluators.base.source_file import read_source
from evaluators.base.usage_error import UsageError
from evaluators.baseline.__main__ import read_times, trials
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel
from evaluators.records.scores import Scored, measures
from evaluators.scheduler.pool import Pool
from evaluators.score.backends import backend_of, by_language, in_other_languages, language_lines
from evaluators.score.operator_score import score_operators
from evaluators.score.solution_score import score_solutions

NAME = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
LIKE = "level_1_problem_23_sample_0_kernel.py"
LOOKS_LIKE_ONE = re.compile(r".*\.py|level_.*_kernel.*")
"""Names of files of which a user may think that they are scored."""
NOT_COMPILED = (Status.COMPILE_ERROR,)


@dataclass
class ScoreConfig:
    """The config of the command."""

    run: str | None = option(None, "folder of generated kernels in KernelBench's layout")
    operators: str | None = option(None, "folder of operators' kernels; aten: PyTorch's own")
    solutions: str | None = option(None, "folder of solutions of FlashInfer Trace or SOL-ExecBench")
    suite: Any = group("operators/opinfo")
    backend: str | None = option(
        None,
        "KernelBench's name of the kernels' language: cuda | triton | cute | tilelang | thunderkittens, or "
        "helion | cutile | gluon | cpp; null: as generation_config.yaml says",
    )
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
    """A sample with its problem's name, its evaluation, and its kernel's language ("" for no kernel)."""

    sample: Generation
    problem: str
    evaluation: Evaluation
    language: str = ""

    @property
    def name(self) -> str:
        """The sample's name in lines for people."""
        return f"{self.problem}, sample {self.sample.sample}"


def expand(overrides: Sequence[str]) -> CommandCall:
    """An argument without a key is the folder."""
    return CommandCall(overrides=without_key(overrides, "run"))


@command("evaluators.score", ScoreConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    if sum(config[name] is not None for name in ("run", "operators", "solutions")) != 1:
        raise UsageError("exactly one folder is needed: run=…, operators=… or solutions=…")
    output = Console()
    if config.run is None:
        settle_device(config)
        score_folder = score_operators if config.operators is not None else score_solutions
        return asyncio.run(score_folder(config, output))
    backend = backend_of(Path(config.run), config.backend)
    samples, strangers = samples_of(Path(config.run))
    if strangers:
        say(output, *(f"skipped: {name} is not named like {LIKE}" for name in strangers))
    times, excluded = _times(config), _excluded(config)
    settle_device(config)
    judged: list[Judged] = []

    def written() -> list[str]:
        done = sorted(judged, key=lambda each: each.sample)
        how: Any = {"times": times, "excluded": excluded, "ks": list(config.ks), "backend": backend}
        return write(Path(config.run), done, **how)

    try:
        asyncio.run(judge_all(config, samples, judged, output))
    except KeyboardInterrupt:
        if judged:
            say(output, *written(), f"{len(judged)} of {len(samples)} samples: repeat the call to continue")
        raise
    say(output, *written())
    return 0 if all(each.evaluation.status.is_of_the_kernel for each in judged) else 1


def samples_of(folder: Path) -> tuple[list[Generation], list[str]]:
    """The kernels of a folder, in order, and the names of files that look like kernels but are none. Raises
    UsageError if there are no kernels, or two for one sample."""
    found: dict[str, Generation] = {}
    strangers = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if matched := NAME.fullmatch(path.name):
            level, number, sample = map(int, matched.groups())
            each = Generation(level=level, number=number, sample=sample, path=path)
            if (other := found.setdefault(each.key, each)) is not each:
                both = f"{other.path.name} and {path.name} are the same sample"
                raise UsageError(f"run={folder}: {both}; remove one")
        elif LOOKS_LIKE_ONE.fullmatch(path.name):
            strangers.append(path.name)
    if not found:
        raise UsageError(f"run={folder} has no files like {LIKE}")
    return sorted(found.values()), strangers


async def judge_all(
    config: DictConfig, samples: Sequence[Generation], judged: list[Judged], output: Console
) -> None:
    """Evaluates the samples, or reads their saved evaluations, and appends each to `judged`. Raises
    UsageError."""
    store = JsonlStore(Path(config.run) / "evaluations.jsonl")
    problems = SuiteProblems(config)
    for each in samples:
        problems.open(each.problem)
    problems.lines()

    async def judge_one(pool: Pool, sample: Generation) -> None:
        name, is_new, language = sample.problem, True, ""
        if (problem := problems.open(name)) is None:
            reason = str(problems.errors[name])
            evaluation = Evaluation(status=Status.UNFIT_REFERENCE, log=reason)
        else:
            name = problem.name
            try:
                source = read_source(sample.path)
                kernel = Kernel(source=source, language=language_of(source))
            except (OSError, ValueError) as error:  # unreadable, not text, or empty
                evaluation = Evaluation(status=Status.COMPILE_ERROR, log=first_line(error))
            else:
                language = kernel.language
                key = f"{sample.key} {problem.id} {kernel.id} {'thorough' if config.thorough else 'quick'}"
                is_new = store.get(key) is None
                evaluation = await evaluate_once(pool, problem, kernel, store, key, thorough=config.thorough)
        judged.append(Judged(sample=sample, problem=name, evaluation=evaluation, language=language))
        if is_new:
            say(output, f"{len(judged)} of {len(samples)}: {one_line(judged[-1])}")

    with Pool(host_of(config)) as pool:
        await all_of(judge_one(pool, each) for each in samples)


def one_line(judged: Judged) -> str:
    """The evaluation of one sample."""
    found = judged.evaluation
    what = f"{judged.name}: {found.status.value}"
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
    backend: str | None = None,
) -> list[str]:
    """Writes `eval_results.json` and `scores.json`; returns the lines of a summary."""
    levels = sorted({each.sample.level for each in judged})
    files = ["scores.json"]
    for level in levels:
        name = "eval_results.json" if len(levels) == 1 else f"eval_results_level{level}.json"
        rows = eval_results(each for each in judged if each.sample.level == level)
        write_atomically(folder / name, json.dumps(rows, indent=4) + "\n")
        files.insert(-1, name)
    left_out = {each.problem: excluded[each.problem] for each in judged if each.problem in excluded}
    left_out |= {
        each.problem: f"the baseline file has no time for {'/'.join(_in_baseline(each.problem))}"
        for each in judged
        if times is not None and _in_baseline(each.problem) not in times
    }
    left_out |= {
        each.problem: each.evaluation.cause
        for each in judged
        if each.evaluation.status is Status.UNFIT_REFERENCE
    }
    not_judged = {
        each.name: each.evaluation.cause
        for each in judged
        if each.evaluation.status is Status.INFRASTRUCTURE_ERROR
    }
    problems = scored(judged, times, {*left_out})
    found = measures(problems, ks=ks) if problems else {}
    counts = _counted(each.evaluation.status.value for each in judged)
    languages = by_language((each.language, each.evaluation) for each in judged)
    body = {
        "problems": len(problems),
        "backend": backend,
        "languages": languages,
        "measures": {name: each.to_json() for name, each in found.items()},
        "left out": left_out,
        "not judged": not_judged,
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
        *language_lines(languages),
        *in_other_languages(backend, ((each.name, each.language) for each in judged)),
        *(f"left out: {name}: {why}" for name, why in left_out.items()),
        *(f"not judged: {name}: {why}" for name, why in not_judged.items()),
        f"{folder}/{', '.join(files)}",
    ]


def scored(
    judged: Iterable[Judged], times: Mapping[tuple[str, str], float] | None, left_out: set[str]
) -> list[Scored]:
    """Each problem's samples with their speedups over eager, or over the `times`. A sample that could not be
    judged counts neither as right nor as wrong."""
    by_problem: dict[str, list[Evaluation]] = {}
    for each in judged:
        if each.problem not in left_out and each.evaluation.status.is_of_the_kernel:
            by_problem.setdefault(each.problem, []).append(each.evaluation)
    return [
        replace(
            Scored.of(problem, evaluations),
            speedups=[_speedup(problem, each, times) for each in evaluations],
        )
        for problem, evaluations in by_problem.items()
    ]


def _speedup(problem: str, found: Evaluation, times: Mapping[tuple[str, str], float] | None) -> float:
    if found.timing is None:
        return 0.0
    if times is None:
        return found.timing.speedup
    return times[_in_baseline(problem)] / found.timing.kernel_ms


def _in_baseline(problem: str) -> tuple[str, str]:
    """The key of a problem in `read_times`."""
    *_, level, name = ("", *problem.split("/"))
    return level, name


def eval_results(judged: Iterable[Judged]) -> dict[str, list[dict[str, Any]]]:
    """The results in the form of KernelBench's file of that name, with times in ms. Like there, samples that
    could not be judged are missing."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in judged:
        if each.evaluation.status is Status.INFRASTRUCTURE_ERROR:
            continue
        found, timing = each.evaluation, each.evaluation.timing
        rows.setdefault(str(each.sample.number), []).append(
            {
                "sample_id": each.sample.sample,
                "compiled": found.status not in NOT_COMPILED,
                "correctness": found.status is Status.CORRECT,
                "metadata": {
                    "status": found.status.value,
                    "cause": found.cause,
                    "language": each.language,
                },
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
