"""Runs searches: the keys of `ideatree run` as arguments, a strategy or a proposer also as an object."""

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
from evaluators.app.words import overrides
from ideatree.problems import problem_overrides
from ideatree.runs import Run, open_run
from search.app.resuming import stored_config, with_choices
from search.app.run_folders import run_folder
from search.protocols import Proposer, Strategy
from search.run import launch
from search.run.__main__ import expand
from search.run.config import RunConfig
from search.run.specification import specification

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

    Ctrl-C ends the run cleanly, except in notebooks, where it stops immediately. Use `resume` to continue it.

    Args:
        problem: the name of a shipped problem, or the `Path` of a PyTorch reference.
        strategy: the name of a strategy, or an object. A run with an object cannot be resumed from the
            command line.
        proposer: the name of a proposer, or an object, as above.
        changes: other values of the problem's keys, e.g. `{"dtype": "bfloat16"}`.
        folder: the run folder; None: a new one below the key `out`.
        show: whether progress is printed to standard output.
        keys: every other key of `ideatree run`, e.g. `rounds=3`, `budget={"seconds": 600}`,
            `llm=["openai", "google"]` or `wandb="off"`.

    Returns:
        The run, ended or interrupted.

    Raises:
        UsageError: for anything that the command would refuse.
    """
    given = with_changes(keys, changes)
    return run_sync(
        lambda signals: _search(problem, strategy, proposer, folder, show, given, signals=signals)
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
    """`search` for a program with an event loop. Cancelling it stops the run immediately."""
    given = with_changes(keys, changes)
    return await _search(problem, strategy, proposer, folder, show, given, signals=False)


def resume(folder: str | Path, *, show: bool = True, **keys: Any) -> Run:
    """Continues the run in a folder and returns it.

    Args:
        folder: the run folder.
        show: whether progress is printed to standard output.
        keys: keys that change, as for `search`, e.g. `rounds=20`.

    Raises:
        UsageError: for a folder without a run, and anything that the command would refuse.
    """
    return run_sync(lambda signals: _resume(folder, show, keys, signals=signals))


async def resume_async(folder: str | Path, *, show: bool = True, **keys: Any) -> Run:
    """`resume` for a program with an event loop."""
    return await _resume(folder, show, keys, signals=False)


def run_sync(searching: Callable[[bool], Coroutine[Any, Any, Result]]) -> Result:
    """Runs the coroutine that `searching` makes: in this thread, or in another one if a loop already runs in
    this one. `searching` gets whether it may handle signals."""
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
    names = {name: part for name, part in parts.items() if isinstance(part, str)}
    chosen = [*problem_overrides(problem), *overrides(names)]
    config = compose_config(RunConfig, expand([*chosen, *overrides(keys)]).overrides)
    place = Path(folder or run_folder(config.out, config.problem.name, config.problem.path))
    objects = {name: part for name, part in parts.items() if name not in names}
    return await _run(config, place, chosen, show, signals, objects)


async def _resume(folder: str | Path, show: bool, keys: Mapping[str, Any], *, signals: bool) -> Run:
    stored = stored_config(Path(folder), "resume", RunConfig)
    stored.resume = str(folder)
    config = compose_stored(stored, with_choices(stored, overrides(keys), RunConfig))
    return await _run(config, Path(folder), [], show, signals, {})


async def _run(
    config: DictConfig,
    folder: Path,
    given: Sequence[str],
    show: bool,
    signals: bool,
    objects: Mapping[str, Any],
) -> Run:
    recording, _ = launch.settle(config, given)
    spec = specification(config, recording=recording, **objects)
    await launch.search(spec, folder, Console(quiet=not show), signals=signals)
    return open_run(folder)
