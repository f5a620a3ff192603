"""The calls that resume a run folder or replay a recorded run: their overrides and configs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import CommandCall, compose_config
from evaluators.app.words import quoted, text_of
from evaluators.base.usage_error import UsageError
from search.app.overrides import without
from search.app.registry import by_path, read_config
from search.recordings.verdicts import recording_folder, shipped_recordings
from search.records.journal import replay
from search.records.run_state import RunState, rebuild

NOT_REPLAYED = (
    *("proposer", "llm", "choice", "pool", "ray", "wandb"),
    *("out", "report", "resume", "replay", "library", "device"),
)
"""Keys of a recorded call that a replay drops: they are about its proposer or its machine."""
NO_HYDRA_FILES = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
"""Overrides with which Hydra writes nothing into an existing run folder."""


def recorded_run(config: DictConfig) -> RunState | None:
    """The run to replay, if there is one. Raises UsageError and JournalError."""
    if not config.replay.run:
        return None
    try:
        return rebuild(replay(Path(config.replay.run) / "journal.jsonl"))
    except OSError as error:
        raise UsageError(f"replay.run={config.replay.run} cannot be read: {error.strerror}") from error


def resume_call(overrides: Sequence[str], key: str, config: type[Any]) -> CommandCall | None:
    """The call that continues the run folder given by `key`, with that run's config; None if `key` is not
    given. Raises UsageError for a folder without a run, or with one of another command."""
    folder = value_of(overrides, key)
    if folder is None:
        return None
    stored = stored_config(Path(folder), key, config)
    if key not in OmegaConf.load(Path(folder) / ".hydra" / "config.yaml"):
        other = f"ideatree {'run resume' if key == 'run' else 'mcp run'}={folder}"
        raise UsageError(f"{key}={folder}: a run of another command; continue it with {other}")
    stored[key] = folder
    others = [each for each in overrides if not each.startswith(f"{key}=")]
    return CommandCall(overrides=[*others, *_in_folder(folder)], stored=stored)


def replay_overrides(arguments: Sequence[str]) -> list[str]:
    """The recorded run's overrides, changed by the arguments of this call. Raises UsageError."""
    run = value_of(arguments, "replay.run")
    if not run:
        shipped = ", ".join(shipped_recordings())
        raise UsageError(
            f"proposer=replay needs replay.run=…, a recorded run's folder or a shipped recording ({shipped})"
        )
    given = {argument.partition("=")[0].lstrip("+") for argument in arguments}
    folder = recording_folder(run)
    recorded = _first_overrides(folder, f"replay.run={run}: not a run folder")
    kept = without([each.lstrip("+") for each in recorded], *NOT_REPLAYED)
    asked = [f"replay.run={quoted(folder)}" if each.startswith("replay.run=") else each for each in arguments]
    return [*(each for each in kept if each.partition("=")[0] not in given), *asked]


def restore_overrides(overrides: Sequence[str], what: str) -> CommandCall:
    """The call; with `resume=<folder>`, the overrides with which the `what` in that folder began come first.
    Raises UsageError."""
    folder = value_of(overrides, "resume")
    if folder is None:
        return CommandCall(overrides=overrides)
    first = _first_overrides(Path(folder), f"resume={folder}: no {what} in this folder")
    others = [each for each in overrides if not each.startswith("resume=")]
    return CommandCall(overrides=[*first, *others, *_in_folder(folder)])


def _first_overrides(folder: Path, otherwise: str) -> list[str]:
    """The overrides with which the call that made the folder began. Raises UsageError, which says
    `otherwise`."""
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.exists():
        raise UsageError(f"{otherwise} (it has no .hydra/overrides.yaml)")
    return [str(each) for each in OmegaConf.load(stored)]


def _in_folder(folder: str) -> list[str]:
    """Overrides with which a call works in an existing folder."""
    return [f"hydra.run.dir={quoted(Path(folder).resolve())}", *NO_HYDRA_FILES]


def value_of(overrides: Sequence[str], key: str) -> str | None:
    """The last value that the overrides give a key; None if there is none, or if it is empty."""
    values = [each.partition("=")[2] for each in overrides if each.startswith(f"{key}=")]
    value = text_of(values[-1]) if values else None
    return None if value in ("null", "") else value


def stored_config(folder: Path, key: str, config: type[Any]) -> DictConfig:
    """The config of a run folder, which was given by `key`: the run's values, and today's defaults of
    `config` for keys that did not exist then. Raises UsageError for a folder without a run."""
    path = folder / ".hydra" / "config.yaml"
    if not path.exists() or not (folder / "journal.jsonl").exists():
        raise UsageError(f"{key}={folder}: not a run folder (it has no .hydra/config.yaml and journal.jsonl)")
    stored = by_path(read_config(path))
    if stored.get("proposer", {}).get("_target_", "").endswith(".LLMProposer"):
        stored["proposer"].pop("history", None)  # in old files, a copy of the run's key
    today = OmegaConf.to_container(compose_config(config, ["problem=level1/conv2d"]))
    assert isinstance(today, dict)
    stored["wandb"] = today["wandb"] | stored["wandb"]
    for name, section in today.items():
        is_group = "group" in config.__dataclass_fields__[name].metadata
        if name in stored and isinstance(section, dict) and not is_group:
            stored[name] = section | stored[name]
    merged: DictConfig = OmegaConf.create(today | stored)
    return merged
