"""The configs of the commands: dataclasses, which Hydra composes with the groups of YAML files in `configs/`.

A command's config is a dataclass `…Config` with fields made by `option`, `section` and `group`. `register`
adds Hydra's list of defaults. Every default has a single place.
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
from evaluators.app.words import Kind, for_hydra, items_of, quoted, text_of
from evaluators.base.option import option
from evaluators.device.settings import Settings

VERSION_BASE = "1.3"
KINDS: dict[Any, Kind] = {
    str: Kind.TEXT,
    str | None: Kind.TEXT,
    list[str]: Kind.TEXTS,
    list[str] | None: Kind.TEXTS,
}
OPEN_ENDED = (
    *("problem.sizes.", "problem.cpu_sizes.", "choice.weights.", "arms."),
    *("model.config.", "model.sizes.", "model.inputs."),
)
"""Keys below which the user chooses the names."""
QUIET: list[Any] = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
"""Turns off Hydra's own log, a file in the output folder: the commands print what matters."""
NO_FOLDER = {"run": {"dir": "."}, "output_subdir": None}
"""Hydra's settings for a command without a run folder."""
DEVICE_HELP = "device to run on: auto | cuda | cpu; auto: a GPU if torch finds one"


def section(config: type[Any]) -> Any:
    """A field that is a nested config."""
    return field(default_factory=config)


def group(default: str | list[str] | None) -> Any:
    """A field filled from a config group: the default choice, or None if the user must choose."""
    return field(default=MISSING, metadata={"group": default})


def hydra_settings(settings: dict[str, Any]) -> Any:
    """The field `hydra`, with the settings that differ from Hydra's defaults."""
    return field(default_factory=lambda: settings)


@dataclass
class RayConfig:
    """Where Ray runs."""

    address: str = option(
        "", 'with pool=ray: the cluster to join, e.g. auto or ray://host:10001; "": a local instance'
    )


def register(config: type[Any]) -> str:
    """Stores a command's config with Hydra and returns its name: `RunConfig` is stored as `run`."""
    name = words_of(config).replace(" ", "_")
    groups = [
        {name: MISSING if default is None else default} for name, default in group_defaults(config).items()
    ]
    defaults = [*groups, *QUIET, "_self_"]
    fields = [("defaults", list[Any], field(default_factory=lambda: defaults))]
    store(dataclasses.make_dataclass(config.__name__, fields, bases=(config,)), name)
    return name


def words_of(config: type[Any]) -> str:
    """The name of a config class in words: `RunFolderConfig` is `run folder`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", config.__name__.removesuffix("Config")).lower()


def group_defaults(config: type[Any]) -> dict[str, str | list[str] | None]:
    """The groups of a command, each with its default choice; None if the user must choose."""
    return {
        each.name: each.metadata["group"] for each in dataclasses.fields(config) if "group" in each.metadata
    }


def search_path(*folders: str | None) -> list[str]:
    """The override with which Hydra also searches these folders for configs; empty if there are none."""
    places = [quoted(f"file://{Path(folder).resolve()}") for folder in folders if folder]
    return [f"hydra.searchpath=[{','.join(places)}]"] if places else []


def store(node: Any, name: str, group: str | None = None) -> None:
    """Stores a config with Hydra."""
    ConfigStore.instance().store(name=name, node=node, group=group)


def config_node(record: type[Any], values: Any = None) -> Any:
    """A config from which `build` makes an instance of the dataclass. It has the same fields, also of nested
    dataclasses, with the values of an instance, by default `record()`."""
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
    """The folder `configs/`, next to the packages in a checkout, inside `search` in an installation."""
    next_to = PACKAGE.parent / "configs"
    return next_to if (next_to / "problem").is_dir() else PACKAGE.parent / "search" / "configs"


def expand_choices(
    overrides: Sequence[str], config: type[Any] | None = None, *, sweep: bool = False
) -> list[str]:
    """The overrides in Hydra's form, quoted where necessary. A problem from a collection
    (`problem=kernelbench/level1/23`) becomes the collection's config and a name, a problem's file
    (`problem=my_model.py`) the config `file` and a path. Keys with names that the user chooses are added to
    the config. `config`: the command's; `sweep`: whether commas separate the values of several jobs."""
    found: list[str] = []
    for each in overrides:
        key, _, value = each.partition("=")
        names = [text_of(name) for name in (items_of(value) if sweep else [value])]
        collection = _collection_of(names) if key == "problem" else ""
        if key == "problem" and all(name.endswith(".py") for name in names):
            found += ["problem=file", f"problem.path={','.join(map(quoted, names))}"]
        elif collection:
            found += [f"problem={collection}", f"problem.name={','.join(map(quoted, names))}"]
        else:
            found.append(each)
    words = for_hydra(found, kinds_of(config) if config else {}, sweep=sweep)
    return [f"++{each}" if f"{each.partition('=')[0]}.".startswith(OPEN_ENDED) else each for each in words]


def kinds_of(config: type[Any], prefix: str = "") -> dict[str, Kind]:
    """What the keys of a command take. Keys of the groups' choices, and those that take anything, are
    missing."""
    hints, found = typing.get_type_hints(config), dict[str, Kind]()
    for each in dataclasses.fields(config):
        name, default = f"{prefix}{each.name}", default_of(each)
        if "group" in each.metadata:
            found[name] = Kind.CHOICE
        elif dataclasses.is_dataclass(default):
            found |= kinds_of(type(default), f"{name}.")
        elif hints[each.name] is not Any:
            found[name] = KINDS.get(hints[each.name], Kind.OTHER)
    return found


def _collection_of(names: Sequence[str]) -> str:
    """The collection that all these names of problems are from; "" if there is none."""
    (collection, *others) = {name.partition("/")[0] for name in names} or {""}
    if others or not all("/" in name for name in names):
        return ""
    return collection if (config_folder() / "problem" / f"{collection}.yaml").is_file() else ""


@contextlib.contextmanager
def hydra_with(folder: str | None = None) -> Iterator[Any]:
    """Initializes Hydra for the block with the configs of this folder, by default ours. Commands compose
    further configs while Hydra runs them, so blocks may be nested, which Hydra itself refuses."""
    hydra = GlobalHydra.instance()
    outer, hydra.hydra = hydra.hydra, None
    try:
        with initialize_config_dir(folder or str(config_folder()), version_base=VERSION_BASE):
            yield hydra.hydra
    finally:
        hydra.hydra = outer


def default_of(each: dataclasses.Field[Any]) -> Any:
    """The default of a field; `MISSING` if it has none."""
    if each.default is not NO_DEFAULT:
        return each.default
    return each.default_factory() if each.default_factory is not NO_DEFAULT else MISSING


def options_of(group: str, more: str | None = None) -> list[str]:
    """The choices of a group, including those in its subfolders; `more`: the user's own config folder."""
    folders = [config_folder() / group, *([Path(more) / group] if more else [])]
    found = {
        str(path.relative_to(folder).with_suffix("")) for folder in folders for path in folder.rglob("*.yaml")
    }
    try:
        stored = ConfigStore.instance().list(group)
    except OSError:  # Hydra raises it for a group without stored configs
        stored = []
    return sorted(found | {each.removesuffix(".yaml") for each in stored})


store(config_node(Settings), "default", group="evaluator")
