"""The configs of the commands: dataclasses, from which Hydra's structured configs are made, so that a default
has one place; and the groups of YAML files in `configs/`.

A command's config is a dataclass `…Config`, whose fields are made by `option`, `section` and `group`;
`register` adds Hydra's list of defaults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import MISSING

from evaluators import PACKAGE
from evaluators.base.option import option
from evaluators.device.settings import Settings

VERSION_BASE = "1.3"
OPEN_ENDED = (
    *("problem.sizes.", "problem.cpu_sizes.", "choice.weights.", "arms."),
    *("model.config.", "model.sizes.", "model.inputs."),
)
"""Keys that hold what the user names."""
QUIET: list[Any] = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
"""Hydra's own log is a file in the output folder; the commands say what there is to say."""
NO_FOLDER = {"run": {"dir": "."}, "output_subdir": None}
"""Hydra's settings for a command that leaves no run folder."""


def section(config: type[Any]) -> Any:
    """A field that is a config of its own."""
    return field(default_factory=config)


def group(default: str | list[str] | None) -> Any:
    """A field that a group of configs fills: this choice of it, or None where it must be given."""
    return field(default=MISSING, metadata={"group": default})


def hydra_settings(settings: dict[str, Any]) -> Any:
    """The field `hydra`, with what is not as Hydra has it."""
    return field(default_factory=lambda: settings)


@dataclass
class RayConfig:
    """Where Ray runs."""

    address: str = option(
        "",
        'with pool=ray; "": a local instance, otherwise the cluster to join, e.g. auto or ray://host:10001',
    )


def register(config: type[Any]) -> str:
    """Stores a command's config with Hydra, under its name: `RunConfig` is `run`. Returns the name."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", config.__name__.removesuffix("Config")).lower()
    groups = [
        {name: MISSING if default is None else default} for name, default in group_defaults(config).items()
    ]
    defaults = [*groups, *QUIET, "_self_"]
    fields = [("defaults", list[Any], field(default_factory=lambda: defaults))]
    store(dataclasses.make_dataclass(config.__name__, fields, bases=(config,)), name)
    return name


def group_defaults(config: type[Any]) -> dict[str, str | list[str] | None]:
    """The groups of a command, each with its default choice; None where it must be given."""
    return {
        each.name: each.metadata["group"] for each in dataclasses.fields(config) if "group" in each.metadata
    }


def search_path(folders: Sequence[str]) -> list[str]:
    """The override by which Hydra finds the configs of these folders, too; empty for none."""
    places = ",".join(quoted(f"file://{Path(folder).resolve()}") for folder in folders)
    return [f"hydra.searchpath=[{places}]"] if folders else []


def quoted(value: Any) -> str:
    """A text as Hydra reads it back, whatever is in it; as it stands where nothing else is meant by it."""
    text = str(value)
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text.lower() not in (
        "true",
        "false",
        "null",
        "nan",
        "inf",
    ):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def store(node: Any, name: str, group: str | None = None) -> None:
    """Stores a config with Hydra."""
    ConfigStore.instance().store(name=name, node=node, group=group)


def config_node(record: type[Any], values: Any = None) -> Any:
    """A config of which `build` makes an instance of the dataclass: the same fields, with the values of an
    instance, or the class's defaults; and so for the instances in it."""
    values = record() if values is None else values
    types = typing.get_type_hints(record)
    fields: list[Any] = [("_target_", str, f"{record.__module__}.{record.__qualname__}")]
    for each in dataclasses.fields(record):
        value = getattr(values, each.name)
        if dataclasses.is_dataclass(value):
            node = config_node(type(value), value)
            fields.append((each.name, node, field(default_factory=node, metadata=each.metadata)))
        else:
            fields.append((each.name, types[each.name], field(default=value, metadata=each.metadata)))
    return dataclasses.make_dataclass(record.__name__, fields)


def config_folder() -> Path:
    """`configs/` beside the packages (a checkout) or inside `search` (an installation)."""
    beside = PACKAGE.parent / "configs"
    return beside if (beside / "problem").is_dir() else PACKAGE.parent / "search" / "configs"


def opened(overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra takes them: keys that the user names are added, a problem of a collection
    (`problem=kernelbench/level1/23`) is its config and its name, and one by its file (`problem=my_model.py`)
    its config and its path."""
    found: list[str] = []
    for each in overrides:
        collection, names = _in_a_collection(each)
        if each.startswith("problem=") and each.endswith(".py"):
            found += ["problem=file", f"problem.path={quoted(each.removeprefix('problem='))}"]
        else:
            found += [f"problem={collection}", f"problem.name={names}"] if collection else [each]
    return [f"++{each}" if f"{each.partition('=')[0]}.".startswith(OPEN_ENDED) else each for each in found]


def _in_a_collection(override: str) -> tuple[str, str]:
    """The config of the collection that the problems of `problem=…` are of, and their names; or "" twice."""
    key, _, value = override.partition("=")
    names = value.split(",")
    (collection, *others) = {name.partition("/")[0] for name in names}
    if key != "problem" or others or not all("/" in name for name in names):
        return "", ""
    is_one = (config_folder() / "problem" / f"{collection}.yaml").is_file()
    return (collection, value) if is_one else ("", "")


@contextlib.contextmanager
def composing(folder: str | None = None) -> Iterator[None]:
    """`hydra.compose` finds the configs of this folder, or ours, in the block, also within a Hydra
    application, which goes on as it was."""
    hydra = GlobalHydra.instance()
    application = hydra.hydra
    hydra.clear()
    try:
        with initialize_config_dir(folder or str(config_folder()), version_base=VERSION_BASE):
            yield
    finally:
        hydra.hydra = application


def default_of(each: dataclasses.Field[Any]) -> Any:
    """The default of a field; `MISSING` where it has none."""
    if each.default is not NO_DEFAULT:
        return each.default
    return each.default_factory() if each.default_factory is not NO_DEFAULT else MISSING


def options_of(group: str, more: str | None = None) -> list[str]:
    """The choices of a group, those below its folders too; `more`: a folder of the user's with configs."""
    folders = [config_folder() / group, *([Path(more) / group] if more else [])]
    found = {
        str(path.relative_to(folder).with_suffix("")) for folder in folders for path in folder.rglob("*.yaml")
    }
    try:
        stored = ConfigStore.instance().list(group)
    except OSError:  # Hydra's way to say that there are none
        stored = []
    return sorted(found | {each.removesuffix(".yaml") for each in stored})


store(config_node(Settings), "default", group="evaluator")
