"""Makes training data from runs and the kernel library, including failures:

    ideatree harvest format=sft out=datasets/sft
    ideatree harvest format=preference out=datasets/pairs runs=[outputs,/data/outputs]
    ideatree harvest format=trajectory out=datasets/rl decontaminate=kernelbench

Formats: sft, improvement, preference, repair, trajectory, idea, rl, kernelbook.
`datasets.load_dataset(out)` opens the dataset; docs/guides/harvest.md describes its columns.
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
    """The shares of the splits."""

    validation: float = option(0.05, "share of the problems in the validation split")
    test: float = option(0.05, "share of the problems in the test split; the rest is for training")


@dataclass
class DuplicatesConfig:
    """What counts as a duplicate."""

    threshold: float = option(
        0.95, "least Jaccard index of token 5-grams at which rows are duplicates; 1: only equal rows"
    )


@dataclass
class HarvestConfig:
    """The config of the command."""

    format: Any = group(None)
    decontaminate: Any = group("none")
    out: str = option(MISSING, "folder of the dataset, which must not exist yet")
    runs: Any = option(["outputs"], "folders to read; every run below them counts")
    libraries: Any = option(["outputs/library"], "kernel libraries to read; a missing one is empty")
    license: str = option("unknown", "license of your references and of kernels that models wrote, per row")
    splits: SplitsConfig = section(SplitsConfig)
    duplicates: DuplicatesConfig = section(DuplicatesConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@command("search.harvest", HarvestConfig, __doc__, HarvestError, OSError)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console(stderr=True)
    log_to(console)
    check(config)
    for line in harvest(config, given_overrides(), functools.partial(track, console=console)):
        print(line)  # noqa: T201  (a command's output)
    return 0


def check(config: DictConfig) -> None:
    """Raises UsageError for an invalid config."""
    shares = (config.splits.validation, config.splits.test)
    if not all(isinstance(share, int | float) and share >= 0 for share in shares) or sum(shares) >= 1:
        raise UsageError(f"splits are {shares}; they must be at least 0 and leave a share for training")
    for key in ("duplicates", "decontaminate"):
        threshold = config[key].threshold
        if not (isinstance(threshold, int | float) and 0 < threshold <= 1):
            raise UsageError(f"{key}.threshold is {threshold}; it must be above 0 and at most 1")
    for package in ("pyarrow", "datasketch"):
        if find_spec(package) is None:
            raise UsageError(f"ideatree harvest needs {package}; pip install -e '.[harvest]'")
    if Path(config.out).exists():
        raise UsageError(f"out={config.out} exists already; choose another folder or remove it")


def harvest(config: DictConfig, arguments: Sequence[str], track: Track[Any]) -> list[str]:
    """Reads runs and libraries, removes duplicates and benchmark problems, and writes the dataset; returns
    the lines to print. Raises UsageError and HarvestError."""
    format: Format = build(config.format)
    forbidden = _benchmarks(config)
    corpus = _corpus(config, track)
    keys = _benchmark_problems(corpus, forbidden, config.decontaminate.threshold)
    corpus = corpus.without(keys)
    no_rows: Counter[str] = Counter()
    found = sorted(format.rows(corpus, no_rows), key=_rank)
    rows, exact, near = without_duplicates(found, config.duplicates.threshold, track)
    reasons = "".join(f", {why} {n}" for why, n in sorted(Counter(keys.values()).items()))
    left_out = (
        f"Left out: exact duplicates {exact}, near duplicates {near}, problems of benchmarks {len(keys)}"
    )
    left_out += f" ({reasons[2:]})" if reasons else ""
    left_out += "".join(f", {why} {n}" for why, n in sorted(no_rows.items())) + "."
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
    """The runs and library entries of the config's folders. Raises HarvestError if there are none."""
    runs = read_runs(_several(config.runs), config.license, track)
    entries = read_library(_several(config.libraries))
    if not runs and not entries:
        places = ", ".join(_several(config.runs))
        raise HarvestError(f"no run was found below {places}; give runs=<folders with runs below them>")
    return Corpus(runs=runs, from_library=solutions_of(entries, runs, config.license))


def _benchmarks(config: DictConfig) -> list[Benchmark]:
    chosen, found = config.decontaminate, []
    if chosen.benchmark:
        found.append(benchmarks.shipped(chosen.benchmark))
    if chosen.path:
        found.append(benchmarks.in_folder(Path(chosen.path)))
    return found


def _benchmark_problems(corpus: Corpus, forbidden: Sequence[Benchmark], threshold: float) -> dict[str, str]:
    """The keys of the problems that belong to a benchmark, each with the reason."""
    found: dict[str, str] = {}
    for problem in corpus.problems():
        for benchmark in forbidden:
            if why := benchmark.why(problem, threshold):
                found.setdefault(fingerprint(problem.source), why)
    return found


def _several(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, ListConfig) else [str(value)]


def _rank(row: Row) -> tuple[Any, ...]:
    """Sort key: by problem, the best rows first, and a run's row before the library's copy of it."""
    return row.problem_key, -row.worth, row.values["entry"], row.values["run"], row.values["variants"]


if __name__ == "__main__":
    sys.exit(main())
