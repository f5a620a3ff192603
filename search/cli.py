"""What the commands that run a search share: run folders, and who watches a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.cli import Call, compose_config, one_of
from evaluators.config import group, quoted
from evaluators.config_errors import UsageError
from evaluators.option import option
from search.journal import Journal, replay
from search.observers.console import console_observer
from search.observers.wandb import MODES, WandbObserver
from search.protocols import Observer
from search.recorded import RECORDINGS, recording_folder
from search.reports.html import missing_packages
from search.reports.observer import ReportObserver
from search.run_folder import RunFolder
from search.run_state import RunState, rebuild

DEVICES = ("auto", "cuda", "cpu")
OUTSTANDING_PER_LANE = 4
MOVED = {
    "evaluators.cluster.RayHost": "evaluators.scheduler.ray_host.RayHost",
    "evaluators.local.LocalHost": "evaluators.scheduler.local_host.LocalHost",
    "evaluators.reference.load_problem": "evaluators.reference.loading.load_problem",
    "evaluators.device.worker.Settings": "evaluators.device.settings.Settings",
    "evaluators.worker.Settings": "evaluators.device.settings.Settings",
}
"""Where the configs of earlier runs found what has another place today."""
RUN_FOLDER = {
    "run": {"dir": "${run_folder:${out},${problem.name},${oc.select:problem.path,null}}"},
    "sweep": {"dir": "${out}/multirun/${now:%Y-%m-%d_%H-%M-%S}", "subdir": "${hydra.job.num}"},
}
"""Hydra's settings for a command that leaves a run folder."""


NOT_REPLAYED = (
    *("proposer", "llm", "choice", "pool", "ray", "wandb"),
    *("out", "report", "resume", "replay", "library", "device"),
)
"""Of a recorded call: it was about who had the ideas, or about the machine."""


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


def shown(folder: Path) -> str:
    """A folder as people call it: below the present one without the way there."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def observers_of(
    config: DictConfig,
    journal: Journal,
    console: Console,
    limits: Mapping[str, Any],
    *,
    recorded: bool = False,
) -> list[Observer]:
    """Those of a run that has this journal, in its folder: its files, the console, its report, and W&B,
    which takes the report as it is then. `limits` are the budget's; `recorded`: see `Progress`."""
    folder, past = journal.path.parent, journal.past
    reports = [ReportObserver(folder)] if config.report and not missing_packages() else []
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


def recorded_run(config: DictConfig) -> RunState | None:
    """What the run that is replayed was, where one is. Raises UsageError and JournalError."""
    if not config.replay.run:
        return None
    try:
        return rebuild(replay(Path(config.replay.run) / "journal.jsonl"))
    except OSError as error:
        raise UsageError(f"replay.run={config.replay.run} cannot be read: {error.strerror}") from error


def key_of(override: str) -> str:
    """The outermost key of an override: `budget` of `budget.calls=3`."""
    return override.partition("=")[0].split(".")[0]


def without(overrides: Sequence[str], *keys: str) -> list[str]:
    """The overrides that change none of these keys, nor anything within them."""
    paths = [each.partition("=")[0] for each in overrides]
    return [
        each
        for each, path in zip(overrides, paths, strict=True)
        if not any(path == key or path.startswith(f"{key}.") for key in keys)
    ]


def arms_of(config: DictConfig) -> dict[str, tuple[str, ...]]:
    """The overrides of each of the config's `arms`, by its name."""
    return {
        str(name): (overrides,) if isinstance(overrides, str) else tuple(map(str, overrides))
        for name, overrides in config.arms.items()
    }


QUIET = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
"""For a run folder that is there: Hydra writes nothing into it."""


def resumed(overrides: Sequence[str], key: str, config: type[Any]) -> Call | None:
    """A call that goes on with the run folder that the key gives, on that run's config; None where no folder
    is given. Raises UsageError where it is no run folder, or another command's."""
    folder = value_of(overrides, key)
    if folder is None:
        return None
    stored = stored_config(Path(folder), key, config)
    if key not in OmegaConf.load(Path(folder) / ".hydra" / "config.yaml"):
        other = "search.run resume" if key == "run" else "search.mcp run"
        raise UsageError(f"{key}={folder}: this run is gone on with by python -m {other}={folder}")
    stored[key] = folder
    others = [each for each in overrides if not each.startswith(f"{key}=")]
    return Call(overrides=[*others, f"hydra.run.dir={quoted(Path(folder).resolve())}", *QUIET], stored=stored)


def as_recorded(arguments: Sequence[str]) -> list[str]:
    """The call of the recorded run, changed by this one's arguments. Raises UsageError."""
    run = value_of(arguments, "replay.run")
    if not run:
        shipped = ", ".join(sorted(each.name for each in RECORDINGS.iterdir()))
        raise UsageError(
            f"proposer=replay needs the recording's folder, or a shipped one's name ({shipped}): replay.run=…"
        )
    given = {argument.partition("=")[0].lstrip("+") for argument in arguments}
    folder = recording_folder(run)
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.exists():
        raise UsageError(f"replay.run={run}: no run folder (it has no .hydra/overrides.yaml)")
    recorded = [str(each).lstrip("+") for each in OmegaConf.load(stored)]
    kept = without(recorded, *NOT_REPLAYED)
    asked = [f"replay.run={folder}" if each.startswith("replay.run=") else each for each in arguments]
    return [*(each for each in kept if each.partition("=")[0] not in given), *asked]


def gone_on_with(overrides: Sequence[str], what: str) -> Call:
    """A call with `resume=<folder>` has the overrides that the `what` in that folder began with. Raises
    UsageError."""
    folder = value_of(overrides, "resume")
    if folder is None:
        return Call(overrides=overrides)
    stored = Path(folder) / ".hydra" / "overrides.yaml"
    if not stored.exists():
        raise UsageError(f"resume={folder}: no {what}'s folder (it has no .hydra/overrides.yaml)")
    others = [each for each in overrides if not each.startswith("resume=")]
    begun = [str(each) for each in OmegaConf.load(stored)]
    return Call(overrides=[*begun, *others, f"hydra.run.dir={quoted(Path(folder).resolve())}", *QUIET])


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """The last value that the overrides give a key; None where they give none."""
    values = [each.partition("=")[2] for each in overrides if each.startswith(f"{key}=")]
    value = values[-1].strip("'\"") if values else None
    return None if value in ("null", "") else value


def stored_config(folder: Path, key: str, config: type[Any]) -> DictConfig:
    """The config of a run folder, which was given by the key: the run's own values, and for what it had not
    yet, today's defaults of `config`. Raises UsageError when it is no run folder."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists() or not (folder / "journal.jsonl").exists():
        raise UsageError(f"{key}={folder}: no run folder (it has no .hydra/config.yaml and journal.jsonl)")
    stored = _renamed(OmegaConf.to_container(OmegaConf.load(path)))
    today = OmegaConf.to_container(compose_config(config, ["problem=level1/conv2d"]))
    assert isinstance(stored, dict) and isinstance(today, dict)
    if not isinstance(mode := stored.get("wandb"), dict):  # it was the mode alone
        stored["wandb"] = {"mode": "off" if mode is False else mode or "auto"}
    stored["wandb"] = today["wandb"] | stored["wandb"]
    for name, section in today.items():
        is_group = "group" in config.__dataclass_fields__[name].metadata
        if name in stored and isinstance(section, dict) and not is_group:
            stored[name] = section | stored[name]
    return OmegaConf.create(today | stored)


def _renamed(value: Any) -> Any:
    """A stored config, or a part of it, with each `_target_` where it is today."""
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: MOVED.get(each, each) if key == "_target_" else _renamed(each) for key, each in value.items()
    }


def keep_config(folder: Path, config: DictConfig) -> None:
    """Writes the config into a new run's folder, as it is after what was chosen by itself. Raises UsageError
    where the folder has a run already."""
    if (folder / "journal.jsonl").exists():
        raise UsageError(f"{shown(folder)} has a run already; resume={shown(folder)} goes on with it")
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")


def _plain(config: DictConfig) -> dict[str, Any]:
    """The config as plain dictionaries and lists."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
