"""Calls that resume a run folder or replay a recorded run: the overrides and configs they start from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import CommandCall, compose_config
from evaluators.app.config import quoted
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
"""Of a recorded call: it was about who had the ideas, or about the machine."""


def recorded_run(config: DictConfig) -> RunState | None:
    """What the run that is replayed was, where one is. Raises UsageError and JournalError."""
    if not config.replay.run:
        return None
    try:
        return rebuild(replay(Path(config.replay.run) / "journal.jsonl"))
    except OSError as error:
        raise UsageError(f"replay.run={config.replay.run} cannot be read: {error.strerror}") from error


QUIET = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
"""For a run folder that is there: Hydra writes nothing into it."""


def resume_call(overrides: Sequence[str], key: str, config: type[Any]) -> CommandCall | None:
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
    return CommandCall(
        overrides=[*others, f"hydra.run.dir={quoted(Path(folder).resolve())}", *QUIET], stored=stored
    )


def replay_overrides(arguments: Sequence[str]) -> list[str]:
    """The call of the recorded run, changed by this one's arguments. Raises UsageError."""
    run = value_of(arguments, "replay.run")
    if not run:
        shipped = ", ".join(shipped_recordings())
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


def restore_overrides(overrides: Sequence[str], what: str) -> CommandCall:
    """A call with `resume=<folder>` has the overrides that the `what` in that folder began with. Raises
    UsageError."""
    folder = value_of(overrides, "resume")
    if folder is None:
        return CommandCall(overrides=overrides)
    stored = Path(folder) / ".hydra" / "overrides.yaml"
    if not stored.exists():
        raise UsageError(f"resume={folder}: no {what}'s folder (it has no .hydra/overrides.yaml)")
    others = [each for each in overrides if not each.startswith("resume=")]
    begun = [str(each) for each in OmegaConf.load(stored)]
    return CommandCall(overrides=[*begun, *others, f"hydra.run.dir={quoted(Path(folder).resolve())}", *QUIET])


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
    stored = by_path(read_config(path))
    today = OmegaConf.to_container(compose_config(config, ["problem=level1/conv2d"]))
    assert isinstance(today, dict)
    stored["wandb"] = today["wandb"] | stored["wandb"]
    for name, section in today.items():
        is_group = "group" in config.__dataclass_fields__[name].metadata
        if name in stored and isinstance(section, dict) and not is_group:
            stored[name] = section | stored[name]
    merged: DictConfig = OmegaConf.create(today | stored)
    return merged
