"""Training data out of runs and the kernel library, failures included:

    python -m search.harvest format=sft out=datasets/sft
    python -m search.harvest format=preference out=datasets/pairs runs=[outputs,/data/outputs]
    python -m search.harvest format=trajectory out=datasets/rl decontaminate=kernelbench

Formats: sft, improvement, preference, repair, trajectory, kernelbook. `datasets.load_dataset(out)` opens what
is written; docs/harvest.md says what the columns are.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, ListConfig
from rich.console import Console
from rich.progress import track

from evaluators.app.command import build, command, given_overrides, log_to
from evaluators.app.config import NO_FOLDER, group, hydra_settings, section
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.harvest import benchmarks
from search.harvest.benchmarks import Benchmark
from search.harvest.corpus import Corpus, HarvestError, Track, read_library, read_runs, solutions_of
from search.harvest.dataset import SPLITS, split_of, write
from search.harvest.duplicates import without_duplicates
from search.harvest.format import Format
from search.harvest.identity import fingerprint
from search.harvest.rows import Row


@dataclass
class SplitsConfig:
    """Shares of the problems."""

    validation: float = option(0.05, "of the problems")
    test: float = option(0.05, "of the problems; the rest is for training")


@dataclass
class DuplicatesConfig:
    """What is a duplicate."""

    threshold: float = option(
        0.95, "Jaccard index of token 5-grams from which rows are duplicates; 1: only equal ones"
    )


@dataclass
class HarvestConfig:
    """The config of the command."""

    format: Any = group(None)
    decontaminate: Any = group("none")
    out: str = option(MISSING, "the dataset's folder, which must not be there yet")
    runs: Any = option(["outputs"], "folders: every run below them")
    libraries: Any = option(["outputs/library"], "roots of kernel libraries; one that is not there is empty")
    license: str = option(
        "unknown", "of references of your own and of kernels that models wrote: the rows say so"
    )
    splits: SplitsConfig = section(SplitsConfig)
    duplicates: DuplicatesConfig = section(DuplicatesConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@command("search.harvest", HarvestConfig, __doc__, HarvestError, OSError)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console(stderr=True)
    log_to(console)
    check(config)
    for line in harvest(config, given_overrides(), functools.partial(track, console=console)):
        print(line)  # noqa: T201  (what a command says)
    return 0


def check(config: DictConfig) -> None:
    """Raises UsageError for what cannot be harvested so."""
    shares = (config.splits.validation, config.splits.test)
    if not all(isinstance(share, int | float) and share >= 0 for share in shares) or sum(shares) >= 1:
        raise UsageError(f"splits are {shares}; they must be shares from 0 on that leave some for training")
    for key in ("duplicates", "decontaminate"):
        threshold = config[key].threshold
        if not (isinstance(threshold, int | float) and 0 < threshold <= 1):
            raise UsageError(f"{key}.threshold is {threshold}; it must lie between 0 and 1")
    for package in ("pyarrow", "datasketch"):
        if find_spec(package) is None:
            raise UsageError(f"search.harvest needs {package}; pip install 'ideatree[harvest]'")
    if Path(config.out).exists():
        raise UsageError(f"out={config.out} is there already; give another folder, or remove it")


def harvest(config: DictConfig, arguments: Sequence[str], track: Track[Any]) -> list[str]:
    """Reads, sorts out and writes; returns what there is to say of it. Raises UsageError and HarvestError."""
    format: Format = build(config.format)
    forbidden = _benchmarks(config)
    corpus = _corpus(config, track)
    keys = _benchmark_problems(corpus, forbidden, config.decontaminate.threshold)
    corpus = corpus.without(keys)
    found = sorted(format.rows(corpus), key=_rank)
    rows, exact, near = without_duplicates(found, config.duplicates.threshold, track)
    reasons = "".join(f", {why} {n}" for why, n in sorted(Counter(keys.values()).items()))
    left_out = (
        f"Left out: exact duplicates {exact}, near duplicates {near}, problems of benchmarks {len(keys)}"
    )
    left_out += f" ({reasons[2:]})." if reasons else "."
    if not rows:
        read = f"runs {len(corpus.runs)}, library entries {len(corpus.from_library)}"
        raise HarvestError(f"nothing to write: no row of format {format.name} ({read}). {left_out}")
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    for row in rows:
        splits[split_of(row.problem_key, config.splits.validation, config.splits.test)].append(row)
    call = shlex.join(["python", "-m", "search.harvest", *(a for a in arguments if a[:4] != "out=")])
    write(Path(config.out), format, splits, [left_out, f"Made by `{call}`."])
    sizes = ", ".join(f"{name} {len(splits[name])}" for name in SPLITS)
    problems = len({row.problem_key for row in rows})
    return [f"{config.out}: rows {len(rows)} ({sizes}), problems {problems}", left_out]


def _corpus(config: DictConfig, track: Track[Any]) -> Corpus:
    """What there is below the folders. Raises HarvestError where that is nothing."""
    runs = read_runs(_several(config.runs), config.license, track)
    entries = read_library(_several(config.libraries))
    if not runs and not entries:
        places = ", ".join(_several(config.runs))
        raise HarvestError(f"there is no run below {places}; give runs=<folders with runs below them>")
    return Corpus(runs=runs, from_library=solutions_of(entries, runs, config.license))


def _benchmarks(config: DictConfig) -> list[Benchmark]:
    chosen, found = config.decontaminate, []
    if chosen.benchmark:
        found.append(benchmarks.shipped(chosen.benchmark))
    if chosen.path:
        found.append(benchmarks.in_folder(Path(chosen.path)))
    return found


def _benchmark_problems(corpus: Corpus, forbidden: Sequence[Benchmark], threshold: float) -> dict[str, str]:
    """Why not, by the key of the problem, for each that is one of a benchmark's."""
    found: dict[str, str] = {}
    for problem in corpus.problems():
        for benchmark in forbidden:
            if why := benchmark.why(problem, threshold):
                found.setdefault(fingerprint(problem.source), why)
    return found


def _several(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, ListConfig) else [str(value)]


def _rank(row: Row) -> tuple[Any, ...]:
    """One problem after the other, the best rows first, and a run's before the library's copy of it."""
    return row.problem_key, -row.worth, row.values["entry"], row.values["run"], row.values["variants"]


if __name__ == "__main__":
    sys.exit(main())
