"""The classes that configs build, by name: a run folder says `_target_: IdeaBranching`, not where that class
is.

`configs/` is the registry: it has every `_target_`, whose last part is the name. A user's own class, which no
shipped config names, keeps its whole path.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evaluators.app.config import config_folder
from evaluators.base.cause import printable
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.timing import Plan

Kind = TypeVar("Kind")

TARGET = re.compile(r"_target_: ([\w.]+)")
OURS = ("search.", "evaluators.", "kernel_library.")
RENAMED = {
    "evaluators.suites.kernelbench.load_problem": "load_kernelbench_problem",
    "evaluators.suites.operators.load_problem": "load_operator",
}
"""Functions that shared a name and were renamed, by their old path."""
REMEDY = "restore it, or start a new run"
"""What to do about a damaged file of a run."""


@cache
def paths() -> dict[str, str]:
    """The dotted path of each class that a shipped config builds, by name."""
    shipped = (
        target for file in config_folder().rglob("*.yaml") for target in TARGET.findall(file.read_text())
    )
    settings = (f"{each.__module__}.{each.__qualname__}" for each in (Settings, Plan))
    return {path.rpartition(".")[2]: path for path in sorted({*shipped, *settings})}


def by_name(config: Any) -> Any:
    """A config of plain types, with names instead of paths."""
    known = {path: name for name, path in paths().items()}
    return _replace(config, lambda target: known.get(target, target))


def by_path(config: Any) -> Any:
    """A config of plain types, with paths instead of names."""
    return _replace(config, lambda target: paths().get(target, target))


def read_config(path: Path) -> dict[str, Any]:
    """A stored config, with names. A file with paths is rewritten once; the original becomes
    `config.yaml.backup`."""
    stored = read_yaml(path, dict)
    migrated = _replace(stored, _name_of)
    if not isinstance(mode := migrated.get("wandb"), dict):  # in old files, this is the mode
        migrated["wandb"] = {"mode": "off" if mode is False else mode or "auto"}
    if migrated != stored:
        with contextlib.suppress(OSError):  # a read-only folder
            shutil.copyfile(path, path.with_name(f"{path.name}.backup"))
            OmegaConf.save(OmegaConf.create(migrated), path)
    return {str(key): value for key, value in migrated.items()}


def read_yaml(path: Path, kind: type[Kind]) -> Kind:
    """The plain types in a YAML file of a run folder. Raises UsageError for a file that is damaged."""
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is damaged: {printable(str(error))}; {REMEDY}") from error
    if not isinstance(content, kind):
        what = "keys with values" if kind is dict else "a list of values"
        raise UsageError(f"{path} is damaged: it must contain {what}; {REMEDY}")
    return content


def _name_of(target: str) -> str:
    """The name of the class that had this path, wherever its module is today."""
    name = RENAMED.get(target, target.rpartition(".")[2])
    return name if target.startswith(OURS) and name in paths() else target


def _replace(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [_replace(each, change) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: change(each) if key == "_target_" and isinstance(each, str) else _replace(each, change)
        for key, each in value.items()
    }
