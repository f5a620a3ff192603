"""Runs searches: the command `search.run`, with its keys as arguments and parts of it as objects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal
from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import compose_config, compose_stored
from evaluators.app.config import quoted
from ideatree.runs import Run, open_run
from search.app.resuming import stored_config
from search.app.run_folders import run_folder
from search.protocols import Proposer, Strategy
from search.run import launch
from search.run.__main__ import expand
from search.run.config import RunConfig
from search.run.launch import settle

Result = TypeVar("Result")


def search(
    problem: str | Path,
    *,
    strategy: str | Strategy = "idea_branching",
    proposer: str | Proposer = "playbook",
    changes: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    show: bool = True,
    **keys: Any,
) -> Run:
    """Searches for a faster kernel and returns the run.

    `problem`: the name of a shipped one, or the `Path` of a reference. `strategy` and `proposer`: a choice of
    that group, or an object of one's own (such a run cannot be resumed from the command line). `changes`:
    other values of the problem's keys, e.g. `{"dtype": "bfloat16"}`. `folder`: the run's; by default a new
    one below `out`. `show`: what goes on, on standard output. `keys`: every other key
    of the command, e.g. `rounds=3`, `budget={"seconds": 600}`, `llm=["openai", "google"]`, `wandb="off"`.

    An interrupt closes the run in order, but for notebooks, where it ends at once; `resume` goes on with it.
    Raises UsageError for what the command would refuse.
    """
    return run_sync(
        lambda signals: _search(
            problem, strategy, proposer, folder, show, with_changes(keys, changes), signals=signals
        )
    )


async def search_async(
    problem: str | Path,
    *,
    strategy: str | Strategy = "idea_branching",
    proposer: str | Proposer = "playbook",
    changes: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    show: bool = True,
    **keys: Any,
) -> Run:
    """`search` for a program with an event loop. When it is cancelled, the run ends at once."""
    return await _search(
        problem, strategy, proposer, folder, show, with_changes(keys, changes), signals=False
    )


def resume(folder: str | Path, *, show: bool = True, **keys: Any) -> Run:
    """Goes on with the run in the folder; `keys` as for `search`, e.g. `rounds=20`. Raises UsageError."""
    return run_sync(lambda signals: _resume(folder, show, keys, signals=signals))


async def resume_async(folder: str | Path, *, show: bool = True, **keys: Any) -> Run:
    """`resume` for a program with an event loop."""
    return await _resume(folder, show, keys, signals=False)


def run_sync(searching: Callable[[bool], Coroutine[Any, Any, Result]]) -> Result:
    """What comes of the coroutine that `searching` makes, in this thread where no loop runs in it. It is told
    whether it may handle signals."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(searching(threading.current_thread() is threading.main_thread()))
    with start_blocking_portal() as portal:
        found: Result = portal.call(searching, False)
    return found


def with_changes(keys: Mapping[str, Any], changes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The keys, with the changes of the problem among them."""
    return {**keys, **({"problem": changes} if changes else {})}


async def _search(
    problem: str | Path,
    strategy: str | Strategy,
    proposer: str | Proposer,
    folder: str | Path | None,
    show: bool,
    keys: Mapping[str, Any],
    *,
    signals: bool,
) -> Run:
    parts = {"strategy": strategy, "proposer": proposer}
    chosen = problem_overrides(problem)
    chosen += [f"{name}={part}" for name, part in parts.items() if isinstance(part, str)]
    call = expand([*chosen, *overrides(keys)])
    config = compose_config(RunConfig, call.overrides)
    place = Path(folder or run_folder(config.out, config.problem.name, config.problem.path))
    objects = {name: part for name, part in parts.items() if not isinstance(part, str)}
    return await _run(config, place, chosen, show, signals, objects)


async def _resume(folder: str | Path, show: bool, keys: Mapping[str, Any], *, signals: bool) -> Run:
    stored = stored_config(Path(folder), "resume", RunConfig)
    stored.resume = str(folder)
    config = compose_stored(stored, overrides(keys))
    return await _run(config, Path(folder), [], show, signals, {})


async def _run(
    config: DictConfig,
    folder: Path,
    given: Sequence[str],
    show: bool,
    signals: bool,
    objects: Mapping[str, Any],
) -> Run:
    console = Console(quiet=not show)
    recording, _ = settle(config, given)
    await launch.search(config, folder, recording, console, signals=signals, **objects)
    return open_run(folder)


def problem_overrides(problem: str | Path) -> list[str]:
    """A shipped problem by its name, or a reference by its file."""
    if isinstance(problem, Path):
        return ["problem=file", f"problem.path={quoted(problem)}"]
    return [f"problem={problem}"]


def overrides(keys: Mapping[str, Any], place: str = "") -> list[str]:
    """Keyword arguments as the command's overrides; the keys of a mapping are those below its own."""
    found: list[str] = []
    for key, value in keys.items():
        if isinstance(value, Mapping):
            found += overrides(value, f"{place}{key}.")
        else:
            found.append(f"{place}{key}={_written(value)}")
    return found


def _written(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return quoted(value)
    if isinstance(value, Sequence):
        return f"[{','.join(map(_written, value))}]"
    return str(value)
