"""Where commands put their runs, which observers watch a run, and what they print about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import one_of, shown
from evaluators.app.config import group
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.registry import by_name
from search.app.report_packages import missing_packages
from search.engine.run_folder import RunFolder
from search.observers.console import console_observer
from search.observers.wandb import MODES, WandbObserver
from search.protocols import Observer
from search.records.journal import Journal

DEVICES = ("auto", "cuda", "cpu")


OUTSTANDING_PER_LANE = 4


RUN_FOLDER = {
    "run": {"dir": "${run_folder:${out},${problem.name},${oc.select:problem.path,null}}"},
    "sweep": {"dir": "${out}/multirun/${now:%Y-%m-%d_%H-%M-%S}", "subdir": "${hydra.job.num}"},
}
"""Hydra's settings for a command that leaves a run folder."""


@dataclass
class RunFolderConfig:
    """What every command that runs a search has."""

    problem: Any = group(None)
    wandb: Any = group("auto")
    out: str = option("outputs", "where run folders are made")
    report: bool = option(True, "keep report.html in the run folder fresh, round by round")


def run_folder(out: str, problem: str, path: str | None = None) -> str:
    """A folder for a run that begins now and that is not there yet; `path`: the file of the problem, where it
    is one of the user's."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    name = f"{problem}/{Path(path).stem}" if path and problem == "file" else problem
    folder = Path(out) / name / stamp
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stamp}_{number}")
    return str(folder)


OmegaConf.register_new_resolver("run_folder", run_folder, replace=True, use_cache=True)


def check_wandb(config: DictConfig) -> None:
    """Raises UsageError for a mode that is none."""
    one_of(config, "wandb.mode", MODES)


def observers_of(
    config: DictConfig,
    journal: Journal,
    console: Console,
    limits: Mapping[str, Any],
    *,
    report: Callable[[Path], Observer],
    recorded: bool = False,
) -> list[Observer]:
    """Those of a run that has this journal, in its folder: its files, the console, its report, and W&B,
    which takes the report as it is then. `limits` are the budget's; `report` makes the
    observer of a folder's report; `recorded`: see `Progress`."""
    folder, past = journal.path.parent, journal.past
    reports = [report(folder)] if config.report and not missing_packages() else []
    return [
        RunFolder(folder, past),
        *([] if console.quiet else [console_observer(console, **limits, recorded=recorded, past=past)]),
        *reports,
        WandbObserver(run_dir=folder, **config.wandb, config=_plain(config), past=past),
    ]


def places(config: DictConfig, folder: Path) -> list[str]:
    """Where to look while the run goes on."""
    lines = [f"run folder: {shown(folder)}"]
    if config.report and (missing := missing_packages()):
        lines.append(f"report: none, it needs {' and '.join(missing)}: pip install 'ideatree[report]'")
    elif config.report:
        lines.append(f"report: {shown(folder / 'report.html')}, written whenever a round closes")
    if config.proposer.get("name") == "mailbox":
        lines.append(f"mailbox: {shown(folder / 'mailbox')}, where questions appear as files")
    return lines


def places_at_the_end(folder: Path) -> list[str]:
    """What the run has left, and where."""
    report = folder / "report.html"
    lines = [f"run folder: {shown(folder)}"]
    return [*lines, f"report: {shown(report)}"] if report.exists() else lines


def page_at_the_end(write: Callable[[Path], Path], folder: Path, wanted: bool) -> list[str]:
    """Writes a folder's page, where it is wanted and can be; returns what is to be said of it."""
    if not wanted:
        return []
    if missing := missing_packages():
        return [f"report: none, it needs {' and '.join(missing)}: pip install 'ideatree[report]'"]
    return [f"report: {shown(write(folder))}"]


def keep_config(folder: Path, config: DictConfig) -> None:
    """Writes the config into a new run's folder, as it is after what was chosen by itself. Raises UsageError
    where the folder has a run already."""
    if (folder / "journal.jsonl").exists():
        raise UsageError(f"{shown(folder)} has a run already; resume={shown(folder)} goes on with it")
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    OmegaConf.save(
        OmegaConf.create(by_name(OmegaConf.to_container(config))), folder / ".hydra" / "config.yaml"
    )


def _plain(config: DictConfig) -> dict[str, Any]:
    """The config as plain dictionaries and lists."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
