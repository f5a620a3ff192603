"""Run folders of commands: where they are, which observers watch a run, and what is printed about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import one_of, shown
from evaluators.app.config import group
from evaluators.base.atomic_write import write_atomically
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from search.app.registry import by_name
from search.app.report_packages import missing_packages
from search.engine.run_folder import RunFolder
from search.observers.console import console_observer
from search.observers.wandb import MODES, WandbObserver
from search.protocols import Observer
from search.records.journal import JOURNAL, Journal

DEVICES = ("auto", "cuda", "cpu")
OUTSTANDING_PER_LANE = 4
"""Kernels that may be with the evaluator at a time, per device and core."""
NEW_FOLDER = {"output_subdir": "${new_folder:${oc.select:hydra.runtime.output_dir,null}}"}
"""Hydra's setting for a command that needs a new folder: Hydra's files would replace an earlier run's."""
RUN_FOLDER = {
    **NEW_FOLDER,
    "run": {"dir": "${run_folder:${out},${problem.name},${oc.select:problem.path,null}}"},
    "sweep": {"dir": "${out}/multirun/${now:%Y-%m-%d_%H-%M-%S}", "subdir": "${hydra.job.num}"},
}
"""Hydra's settings for a command that writes a run folder."""


@dataclass
class RunFolderConfig:
    """The keys of every command that runs a search."""

    problem: Any = group(None)
    wandb: Any = group("auto")
    out: str = option("outputs", "folder for new run folders")
    report: bool = option(True, "write report.html into the run folder after each round")


def run_folder(out: str, problem: str, path: str | None = None) -> str:
    """A new run folder, named after the problem and the time. `path`: the file of a user's own problem."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    name = f"{problem}/{Path(path).stem}" if path and problem == "file" else problem
    folder = Path(out) / name / stamp
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stamp}_{number}")
    return str(folder)


def new_folder(folder: str | None) -> str:
    """The name of the folder for Hydra's files in this output folder. Raises UsageError if a run is there."""
    if folder is not None:
        require_new(Path(folder))
    return ".hydra"


def require_new(folder: Path) -> None:
    """Raises UsageError if the folder has a run."""
    if (folder / JOURNAL).exists():
        raise UsageError(f"{shown(folder)} already has a run; continue it with resume={shown(folder)}")


OmegaConf.register_new_resolver("run_folder", run_folder, replace=True, use_cache=True)
OmegaConf.register_new_resolver("new_folder", new_folder, replace=True)


def check_wandb(config: DictConfig) -> None:
    """Raises UsageError for an unknown mode of W&B."""
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
    """The observers of the run with this journal: the files in its folder, the console, the report, and W&B,
    which comes last because it uploads the report. `limits` are the budget's; `report` makes the observer
    that writes a folder's report; `recorded`: see `Progress`."""
    folder, past = journal.path.parent, journal.past
    reports = [report(folder)] if config.report and not missing_packages() else []
    return [
        RunFolder(folder, past),
        *([] if console.quiet else [console_observer(console, **limits, recorded=recorded, past=past)]),
        *reports,
        WandbObserver(run_dir=folder, **config.wandb, config=_plain(config), past=past),
    ]


def start_lines(config: DictConfig, folder: Path) -> list[str]:
    """The lines printed at the start of a run: where to follow it."""
    lines = [f"run folder: {shown(folder)}"]
    if config.report and (missing := missing_packages()):
        lines.append(_no_report(missing))
    elif config.report:
        lines.append(f"report: {shown(folder / 'report.html')}, written after each round")
    if "mailbox" in (config.proposer.get("models") or {}):
        questions = Path(config.proposer.models.mailbox.get("folder") or folder / "mailbox")
        lines.append(f"mailbox: {shown(questions)}, where questions appear as files")
    return lines


def end_lines(folder: Path) -> list[str]:
    """The lines printed at the end of a run: where its files are."""
    report = folder / "report.html"
    lines = [f"run folder: {shown(folder)}"]
    return [*lines, f"report: {shown(report)}"] if report.exists() else lines


def page_at_the_end(write: Callable[[Path], Path], folder: Path, wanted: bool) -> list[str]:
    """Writes a folder's report if it is wanted and its packages are installed; returns the line to print."""
    if not wanted:
        return []
    if missing := missing_packages():
        return [_no_report(missing)]
    return [f"report: {shown(write(folder))}"]


def _no_report(missing: Sequence[str]) -> str:
    return f"report: not written, it needs {' and '.join(missing)}: pip install -e '.[report]'"


def keep_config(folder: Path, config: DictConfig) -> None:
    """Writes a new run's config, with the defaults that were chosen, into its folder. Raises UsageError if
    the folder already has a run."""
    require_new(folder)
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    stored = OmegaConf.create(by_name(OmegaConf.to_container(config)))
    write_atomically(folder / ".hydra" / "config.yaml", OmegaConf.to_yaml(stored))


def refuse_if_begun(file: Path, what: str) -> None:
    """Raises UsageError for a new call in a folder where another one has begun: it would mix the two. `file`
    has its results."""
    begins = HydraConfig.get().output_subdir is not None
    if begins and file.exists() and file.stat().st_size:
        place = shown(file.parent)
        raise UsageError(f"{place} already has a {what}; continue it with resume={place}")


def _plain(config: DictConfig) -> dict[str, Any]:
    """The config as plain dictionaries and lists."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
