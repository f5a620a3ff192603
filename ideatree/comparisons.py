"""Compares strategies, or anything that can be set: the command `search.compare`, with its keys as
arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from evaluators.app.command import compose_config, say
from ideatree.searches import overrides, problem_overrides, run_sync, with_changes
from search.app.run_folders import run_folder
from search.compare import __main__ as command
from search.compare.comparison_frames import ComparisonFrames, load_comparison
from search.compare.curves import Searched, read_searches
from search.compare.searching import search_all
from search.compare.summary import write


@dataclass(frozen=True)
class Comparison:
    """What a comparison's folder holds."""

    folder: Path
    searches: list[Searched] = field(repr=False)

    def frames(self) -> ComparisonFrames:
        """Searches, curves, arms and differences as pandas frames. Needs pandas. Raises OSError while the
        comparison has not ended."""
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
    """Searches with each of several settings, with the same seeds and budget, and returns the comparison.

    `problem`: the name of a shipped one, the `Path` of a reference, or `landscape`, with
    `proposer="landscape"`. `strategies`: choices of that group; `arms`: anything else, overrides by name.
    `changes`: other values of the problem's keys. `folder`: the comparison's, by default a new one below
    `out`; one that has a part of this comparison is gone on with. `show`: what is found, on standard output.
    `keys`: every other key of the command, e.g. `seeds=8`, `budget={"evaluations": 200}`. Raises UsageError
    for what the command would refuse.
    """
    given = [
        *problem_overrides(problem),
        *overrides({"strategies": list(strategies), "arms": arms or {}, **with_changes(keys, changes)}),
    ]
    config = compose_config(command.CompareConfig, given)
    plan = command.plan(config, given, Path(folder or run_folder(config.out, "compare")))
    console = Console(quiet=not show)
    ended = run_sync(lambda _: search_all(plan, console))
    say(console, *write(plan, ended))
    return Comparison(folder=plan.folder, searches=ended)


def open_comparison(folder: str | Path) -> Comparison:
    """The comparison in a folder, ended or not. Raises OSError where there is none."""
    return Comparison(folder=Path(folder), searches=read_searches(Path(folder) / "searches.jsonl"))
