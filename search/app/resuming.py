"""The calls that resume a run folder or replay a recorded run: their overrides and configs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evaluators.app.command import CommandCall, compose_config
from evaluators.app.config import config_folder, group_defaults, options_of
from evaluators.app.words import quoted, text_of
from evaluators.base.usage_error import UsageError
from search.app.overrides import key_of, without
from search.app.registry import REMEDY, by_path, read_config, read_yaml
from search.recordings.verdicts import recording_folder, shipped_recordings
from search.records.events import RunStarted
from search.records.journal import JOURNAL, recorded_state, replay
from search.records.run_state import RunState

NOT_REPLAYED = (
    *("proposer", "llm", "choice", "prompting", "pool", "ray", "wandb"),
    *("out", "report", "resume", "replay", "library", "device"),
)
"""Keys of a recorded call that a replay drops: they are about its proposer or its machine."""
SOME_PROBLEM = "problem=level1/conv2d"
"""A choice for a group without a default, where only the other keys matter."""
NO_HYDRA_FILES = ("hydra.output_subdir=null", "hydra/job_logging=none", "hydra/hydra_logging=none")
"""Overrides with which Hydra writes nothing into an existing run folder."""


def recorded_run(config: DictConfig) -> RunState | None:
    """The run to replay, if there is one. Raises UsageError and JournalError."""
    if not config.replay.run:
        return None
    try:
        return recorded_state(config.replay.run)
    except OSError as error:
        raise UsageError(f"replay.run={config.replay.run} cannot be read: {error.strerror}") from error


def resume_call(overrides: Sequence[str], key: str, config: type[Any]) -> CommandCall | None:
    """The call that continues the run folder given by `key`, with that run's config; None if `key` is not
    given. Raises UsageError for a folder without a run, or with one of another command."""
    folder = value_of(overrides, key)
    if folder is None:
        return None
    stored = stored_config(Path(folder), key, config)
    if key not in read_yaml(Path(folder) / ".hydra" / "config.yaml", dict):
        other = f"ideatree {'run resume' if key == 'run' else 'mcp run'}={folder}"
        raise UsageError(f"{key}={folder}: a run of another command; continue it with {other}")
    stored[key] = folder
    others = with_choices(stored, [each for each in overrides if not each.startswith(f"{key}=")], config)
    return CommandCall(overrides=[*others, *_in_folder(folder)], stored=stored, continues=f"{key}={folder}")


def with_choices(stored: DictConfig, overrides: Sequence[str], config: type[Any]) -> list[str]:
    """Makes a stored config follow the choices of groups among the overrides (`wandb=off`), and links it
    again, so that a key that others are computed from changes these too. Returns the remaining overrides.
    Raises UsageError for an unknown choice."""
    groups = group_defaults(config)
    choices = [
        each for each in overrides if key_of(each) in groups and key_of(each) == each.partition("=")[0]
    ]
    _link(stored, config)
    if choices:
        own_configs = [each for each in overrides if each.startswith("hydra.searchpath=")]
        problem = [] if any(each.startswith("problem=") for each in choices) else [SOME_PROBLEM]
        chosen = compose_config(config, [*own_configs, *problem, *choices], resolve=False)
        for group in map(key_of, choices):
            _choose(stored, group, chosen[group])
    return [each for each in overrides if each not in choices]


def _choose(stored: DictConfig, group: str, chosen: Any) -> None:
    """Replaces the section of a group, unless the run has this choice already: it keeps its own values."""
    before = stored.get(group)
    if group == "wandb" and before is not None:
        stored.wandb.mode = chosen.mode
    elif _identity(group, before) != _identity(group, chosen):
        OmegaConf.update(stored, group, chosen, merge=False, force_add=True)


def _identity(group: str, section: Any) -> Any:
    """What makes two choices of a group the same: the classes, or the values of one without classes; for
    problems, which share a class, the name."""
    named = section is not None and group == "problem"
    return [section.get("name"), section.get("path")] if named else _targets(section) or section


def _targets(section: Any, place: str = "") -> dict[str, str]:
    """The classes that a section builds, by their places."""
    if OmegaConf.is_config(section):
        section = OmegaConf.to_container(section)
    if not isinstance(section, dict):
        return {}
    found = {place: section["_target_"]} if "_target_" in section else {}
    for key, value in section.items():
        found |= _targets(value, f"{place}.{key}")
    return found


def _link(stored: DictConfig, config: type[Any]) -> None:
    """Puts back the references of today's configs (`ideas: ${ideas}`) where they give the stored values."""
    options = [f"{group}={option}" for group in group_defaults(config) if (option := _option(stored, group))]
    today = compose_config(config, [SOME_PROBLEM, *options], resolve=False)
    for group in (each.partition("=")[0] for each in options):
        for path, reference in _references(OmegaConf.to_container(today[group]), group):
            value = _resolved(stored, path)
            if value is not None:
                linked = stored.copy()
                OmegaConf.update(linked, path, reference, merge=False)
                if _resolved(linked, path) == value:
                    OmegaConf.update(stored, path, reference, merge=False)


def _option(stored: DictConfig, group: str) -> str:
    """The choice of a group that builds what the stored section does; "" if that is the user's own."""
    wanted = _targets(stored.get(group))
    if group == "llm":
        models = [str(name) for name in stored.llm]
        return f"[{','.join(models)}]" if {*models} <= {*options_of(group)} else ""
    for option in options_of(group) if wanted and group != "problem" else ():
        path = config_folder() / group / f"{option}.yaml"
        if path.is_file() and _targets(by_path(read_yaml(path, dict))).items() <= wanted.items():
            return option
    return ""


def _references(section: Any, place: str) -> Iterator[tuple[str, str]]:
    """The references in a section of plain types, with their places."""
    for key, value in section.items() if isinstance(section, dict) else ():
        if isinstance(value, str) and "${" in value:
            yield f"{place}.{key}", value
        yield from _references(value, f"{place}.{key}")


def _resolved(config: DictConfig, path: str) -> Any:
    """The value at a place, references resolved; None without one."""
    try:
        value = OmegaConf.select(config, path)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return None


def replay_overrides(arguments: Sequence[str]) -> list[str]:
    """The recorded run's overrides, changed by the arguments of this call. The limit of rounds is that with
    which the run was last resumed. Raises UsageError."""
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
    return [*(each for each in [*kept, *_last_limit(folder)] if each.partition("=")[0] not in given), *asked]


def _last_limit(folder: Path) -> list[str]:
    """The limit of rounds with which the run in a folder was last resumed, as an override."""
    journal = folder / JOURNAL
    began = [each for each in replay(journal) if isinstance(each, RunStarted)] if journal.exists() else []
    return [f"rounds={each.rounds}" for each in began[-1:] if each.rounds]


def restore_overrides(overrides: Sequence[str], what: str) -> CommandCall:
    """The call; with `resume=<folder>`, the overrides with which the `what` in that folder began come first.
    Raises UsageError."""
    folder = value_of(overrides, "resume")
    if folder is None:
        return CommandCall(overrides=overrides)
    first = _first_overrides(Path(folder), f"resume={folder}: no {what} in this folder")
    others = [each for each in overrides if not each.startswith("resume=")]
    return CommandCall(overrides=[*first, *others, *_in_folder(folder)], continues=f"resume={folder}")


def _first_overrides(folder: Path, otherwise: str) -> list[str]:
    """The overrides with which the call that made the folder began. Raises UsageError, which says
    `otherwise`."""
    stored = folder / ".hydra" / "overrides.yaml"
    if not stored.exists():
        raise UsageError(f"{otherwise} (it has no .hydra/overrides.yaml)")
    return [str(each) for each in read_yaml(stored, list)]


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
    if not path.exists() or not (folder / JOURNAL).exists():
        raise UsageError(f"{key}={folder}: not a run folder (it has no .hydra/config.yaml and journal.jsonl)")
    stored = by_path(read_config(path))
    if "problem" not in stored:
        raise UsageError(f"{path} is damaged: it has no problem; {REMEDY}")
    today = OmegaConf.to_container(compose_config(config, [SOME_PROBLEM]))
    assert isinstance(today, dict)
    for name, section in today.items():
        if isinstance(section, dict) and not isinstance(stored.get(name, section), dict):
            raise UsageError(f"{path} is damaged: {name!s} is {stored[name]!r}, not a section with keys")
    if stored.get("proposer", {}).get("_target_", "").endswith(".LLMProposer"):
        stored["proposer"].pop("history", None)  # in old files, a copy of the run's key
    stored["wandb"] = today["wandb"] | stored["wandb"]
    for name, section in today.items():
        is_group = "group" in config.__dataclass_fields__[name].metadata
        if name in stored and isinstance(section, dict) and not is_group:
            stored[name] = section | stored[name]
    merged: DictConfig = OmegaConf.create(today | stored)
    return merged
