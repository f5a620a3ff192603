"""Compares strategies or other settings: the keys of `ideatree compare` as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from evaluators.app.command import compose_config, say
from evaluators.app.words import overrides
from ideatree.problems import problem_overrides
from ideatree.searches import run_sync, with_changes
from search.app.run_folders import run_folder
from search.compare import __main__ as command
from search.compare.comparison_frames import ComparisonFrames, load_comparison
from search.compare.curves import Searched, read_searches
from search.compare.searching import search_all
from search.compare.summary import write


@dataclass(frozen=True)
class Comparison:
    """A comparison, ended or not.

    Attributes:
        folder: the comparison's folder.
        searches: the searches that have ended.
    """

    folder: Path
    searches: list[Searched] = field(repr=False)

    def frames(self) -> ComparisonFrames:
        """Searches, curves, arms and differences as pandas frames. Needs pandas. Raises OSError before the
        summary files are written: at the end, or with the first report."""
        return load_comparison(self.folder)


def compare(
    problem: str | Path,
    *,
    strategies: Sequence[str] = (),
    arms: Mapping[str, Sequence[str]] | None = None,
    changes: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    show: bool = True,
    **keys: Any,
) -> Comparison:
    """Runs searches with several settings, on the same seeds and budget, and returns the comparison.

    Args:
        problem: the name of a shipped problem, the `Path` of a PyTorch reference, or `landscape` with
            `proposer="landscape"`.
        strategies: strategies to compare, by name.
        arms: other settings to compare: overrides of `ideatree run`, by name.
        changes: other values of the problem's keys, e.g. `{"dtype": "bfloat16"}`.
        folder: the comparison's folder; None: a new one below the key `out`. If it has a part of this
            comparison, only the searches that are missing run.
        show: whether progress and the result are printed to standard output.
        keys: every other key of `ideatree compare`, e.g. `seeds=8` or `budget={"evaluations": 200}`.

    Returns:
        The comparison, with all its searches.

    Raises:
        UsageError: for anything that the command would refuse.
    """
    given = [
        *problem_overrides(problem),
        *overrides({"strategies": list(strategies), "arms": arms or {}, **with_changes(keys, changes)}),
    ]
    config = compose_config(command.CompareConfig, given)
    plan = command.plan(config, given, Path(folder or run_folder(config.out, "compare")))
    console = Console(quiet=not show)
    ended = run_sync(lambda _: search_all(config, plan, console))
    say(console, *write(plan, ended))
    return Comparison(folder=plan.folder, searches=ended)


def open_comparison(folder: str | Path) -> Comparison:
    """Opens the comparison in a folder, ended or not. Raises OSError if there is none."""
    return Comparison(folder=Path(folder), searches=read_searches(Path(folder) / "searches.jsonl"))
