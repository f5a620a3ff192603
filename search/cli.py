"""What the commands that run a search share: run folders, and who watches a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.cli import UsageError, one_of
from evaluators.problem import Problem
from search.journal import Journal
from search.observers.console import console_observer
from search.observers.wandb import MODES, WandbObserver
from search.protocols import Observer
from search.run_folder import RunFolder

DEVICES = ("auto", "cuda", "cpu")
OUTSTANDING_PER_LANE = 4
MOVED = {
    "evaluators.cluster.RayHost": "evaluators.scheduler.ray_host.RayHost",
    "evaluators.local.LocalHost": "evaluators.scheduler.local_host.LocalHost",
    "evaluators.reference.load_problem": "evaluators.reference.loading.load_problem",
    "evaluators.worker.Settings": "evaluators.device.worker.Settings",
}
"""Where the configs of earlier runs found what has another place today."""


def check_wandb(config: DictConfig) -> None:
    """Raises UsageError for a mode that is none."""
    if config.wandb is not False:  # YAML reads an unquoted off as false
        one_of(config, "wandb", MODES)


def observers_of(
    config: DictConfig,
    journal: Journal,
    console: Console,
    limits: Mapping[str, Any],
    *,
    recorded: bool = False,
) -> list[Observer]:
    """Those of a run that has this journal, in its folder: its files, the console, W&B. `limits` are the
    budget's; `recorded`: see `Progress`."""
    folder, past = journal.path.parent, journal.past
    return [
        RunFolder(folder, past),
        console_observer(console, **limits, recorded=recorded, past=past),
        WandbObserver(run_dir=folder, mode=config.wandb, config=_plain(config), past=past),
    ]


def stored_config(folder: Path, key: str) -> DictConfig:
    """The config of a run folder, which was given by the key. Raises UsageError when it is none."""
    stored = folder / ".hydra" / "config.yaml"
    if not stored.exists() or not (folder / "journal.jsonl").exists():
        raise UsageError(f"{key}={folder}: no run folder (it has no .hydra/config.yaml and journal.jsonl)")
    config = OmegaConf.create(_renamed(OmegaConf.to_container(OmegaConf.load(stored))))
    assert isinstance(config, DictConfig)
    return config


def _renamed(value: Any) -> Any:
    """A stored config, or a part of it, with each `_target_` where it is today."""
    if isinstance(value, list):
        return [_renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: MOVED.get(each, each) if key == "_target_" else _renamed(each) for key, each in value.items()
    }


def new_folder(config: DictConfig, problem: Problem, arguments: Sequence[str]) -> Path:
    """Makes a run's folder, with its config and call in it."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(config.out) / problem.name / stamp
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stamp}_{number}")
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(arguments)), folder / ".hydra" / "overrides.yaml")
    return folder


def _plain(config: DictConfig) -> dict[str, Any]:
    """The config as plain dictionaries and lists."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
