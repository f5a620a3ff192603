"""`--help`: how to call a command, its groups with their choices, and every key with its default and its
meaning. The page `docs/reference/cli.md` shows the same."""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import get_annotations
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from evaluators.app.config import config_folder, default_of, group_defaults, options_of, words_of

FLAGS: dict[str, dict[str, Any]] = {
    "--help, -h": {"action": "store_true", "help": "print this help"},
    "--multirun, -m": {"action": "store_true", "help": "run once for each value in key=a,b"},
    "--cfg": {"choices": ("job", "hydra", "all"), "help": "print the config and run nothing: --cfg job"},
    "--resolve": {"action": "store_true", "help": "with --cfg: resolve interpolations"},
    "--package, -p": {"metavar": "KEY", "help": "with --cfg: print this part of the config only"},
    "--info, -i": {
        "nargs": "?",
        "const": "all",
        "choices": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        "help": "print where the config comes from and run nothing: --info defaults",
    },
    "--config-dir, -cd": {"metavar": "DIR", "help": "also search this folder for configs"},
    "--config-name, -cn": {"metavar": "NAME", "help": "primary config, in a folder with --config-dir"},
    "--shell-completion, --shell_completion, -sc": {
        "action": "store_true",
        "help": 'set up completion: eval "$(ideatree -sc install=bash)"',
    },
}
"""The flags of every command, with their settings for argparse."""
SHARED = ("evaluator", "pool", "ray", "library", "wandb")
"""Groups and sections that many commands have; help lists them last."""
REQUIRED = "…"
"""The default of a key that must be given."""
HIDDEN = ("defaults", "hydra", "_target_", "_partial_")


@dataclass(frozen=True, kw_only=True)
class KeyHelp:
    """A key of a config, as users set it: `key=default`."""

    key: str
    kind: str
    default: str
    help: str


@dataclass(frozen=True, kw_only=True)
class KeySection:
    """Some keys under a heading, with a remark. `base`: the config class that they are inherited from."""

    title: str
    keys: Sequence[KeyHelp]
    about: str = ""
    base: type[Any] | None = field(default=None, repr=False)


def help_text(
    name: str, config: type[Any], text: str, overrides: Sequence[str] = (), more: str | None = None
) -> str:
    """The help of a command with this config and the groups' choices in `overrides`; `more`: the user's own
    config folder."""
    groups = group_defaults(config)
    lines = [f"usage: {synopsis(name, config)}", "", text.strip(), ""]
    if groups:
        lines += ["== Groups: choose with GROUP=NAME; GROUP=NAME --help lists the keys of that choice ==", ""]
        for group, default in groups.items():
            lines += _entry(group, f"{', '.join(options_of(group, more))} ({_default(default)})")
        lines += [""]
    for each in sections(config, overrides, more):
        lines += [f"== {each.title} ==", ""]
        lines += [*textwrap.wrap(each.about, _columns()), ""] if each.about else []
        for key in each.keys:
            lines += _entry(f"{key.key}={key.default}" if key.kind else f"{key.key}:", key.help)
        lines += [""] if each.keys else []
    lines += ["== Flags ==", ""]
    for names, settings in FLAGS.items():
        lines += _entry(names.replace("--shell_completion, ", ""), settings["help"])
    return "\n".join(lines)


def synopsis(name: str, config: type[Any]) -> str:
    """The shortest call of the command, with the groups and keys that have no default."""
    required = [group for group, default in group_defaults(config).items() if default is None]
    for each in dataclasses.fields(config):
        if "group" not in each.metadata and each.name not in HIDDEN:
            keys = _keys_of_field(each, config)
            required += [key.key.removesuffix(".name") for key in keys if key.default == REQUIRED]
    values = [f"{each}=…" for each in required]
    return " ".join(["ideatree", name.rpartition(".")[2], *values, "[key=value …]"])


def sections(config: type[Any], overrides: Sequence[str] = (), more: str | None = None) -> list[KeySection]:
    """All keys of a config: the command's own; inherited ones, by the class that defines them; those of its
    groups' choices, in `overrides` or by default; and those that many commands share."""
    fields = {each.name: each for each in dataclasses.fields(config) if each.name not in HIDDEN}
    owner = {name: next(c for c in config.__mro__ if name in get_annotations(c)) for name in fields}
    found: list[KeySection] = []
    for base in [each for each in config.__mro__ if each in owner.values()]:
        keys = [
            key
            for name, each in fields.items()
            if owner[name] is base and name not in SHARED and "group" not in each.metadata
            for key in _keys_of_field(each, base)
        ]
        if keys and base is config:
            found.append(KeySection(title="Keys: set with key=value", keys=keys))
        elif keys:
            found.append(KeySection(title=f"Inherited keys: {words_of(base)}", keys=keys, base=base))
    found += _group_sections(config, overrides, more)
    if "ray" in fields:
        keys = list(_keys_of_field(fields["ray"], config))
        found.append(KeySection(title="Shared keys: ray", keys=keys))
    return found


def _group_sections(config: type[Any], overrides: Sequence[str], more: str | None) -> Iterator[KeySection]:
    """The keys of the groups' choices, in `overrides` or by default; those of shared groups come last."""
    groups = group_defaults(config)
    given = {
        key: value.strip("[]").split(",") for key, _, value in (each.partition("=") for each in overrides)
    }
    for group in sorted(groups, key=lambda name: name in SHARED):
        default = groups[group]
        choices = [default] if isinstance(default, str) else default or []
        for choice in given.get(group, choices):
            if choice in options_of(group, more):
                prefix = f"{group}.{choice}" if isinstance(default, list) else group
                about, keys = _choice(group, choice, prefix, more)
                shared = "Shared keys" if group in SHARED else "Keys"
                yield KeySection(title=f"{shared}: {group}={choice}", keys=keys, about=about)


def _keys_of_field(each: dataclasses.Field[Any], record: type[Any], prefix: str = "") -> Iterator[KeyHelp]:
    name, default = f"{prefix}{each.name}", default_of(each)
    if dataclasses.is_dataclass(default):
        for inner in dataclasses.fields(default):
            yield from _keys_of_field(inner, type(default), f"{name}.")
    else:
        kind = _kind_of_hint(typing.get_type_hints(record)[each.name])
        yield KeyHelp(key=name, kind=kind, default=_written(default), help=each.metadata.get("help", ""))


def _choice(group: str, choice: str, prefix: str, more: str | None) -> tuple[str, list[KeyHelp]]:
    """The remark on a choice of a group, and its keys."""
    for folder in (config_folder(), *([Path(more)] if more else [])):
        path = folder / group / f"{choice}.yaml"
        if path.exists():
            return _in_yaml(path.read_text(encoding="utf-8"), prefix)
    node = ConfigStore.instance().load(f"{group}/{choice}.yaml").node
    assert isinstance(node, DictConfig)
    record = OmegaConf.get_type(node)
    assert record is not None
    keys = [key for each in dataclasses.fields(record) for key in _keys_of_field(each, record, f"{prefix}.")]
    return "", [each for each in keys if not each.key.endswith(HIDDEN)]


def _in_yaml(text: str, prefix: str) -> tuple[str, list[KeyHelp]]:
    """The leading comment of a YAML file, and its keys with the comments behind their values."""
    lines = text.splitlines()
    about = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
    root = yaml.compose(text)
    keys = list(_in_node(root, f"{prefix}.", lines)) if isinstance(root, yaml.MappingNode) else []
    return " ".join(about), keys


def _in_node(node: yaml.MappingNode, prefix: str, lines: Sequence[str]) -> Iterator[KeyHelp]:
    for name, value in node.value:
        if name.value in HIDDEN:
            continue
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style
        end = (name.end_mark if nested or value.end_mark.line > name.end_mark.line else value.end_mark).column
        comment = lines[name.start_mark.line][end:].partition("# ")[2]
        if nested:
            if comment:
                yield KeyHelp(key=f"{prefix}{name.value}", kind="", default="", help=comment)
            yield from _in_node(value, f"{prefix}{name.value}.", lines)
        else:
            default = _without_targets(yaml.safe_load(yaml.serialize(value)))
            kind = "" if default is None else type(default).__name__
            yield KeyHelp(
                key=prefix + name.value, kind=kind or "any", default=_written(default), help=comment
            )


def _without_targets(value: Any) -> Any:
    """A value without the names of classes; only the names, if it consists of classes."""
    if isinstance(value, list):
        return [_without_targets(each) for each in value]
    if isinstance(value, Mapping) and "_target_" in value:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", value["_target_"].rpartition(".")[2]).lower()
    return value


def _kind_of_hint(hint: Any) -> str:
    """A type as users know it: `int`, `str or null`, `list[str]`."""
    if hint is Any:
        return "any"
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return text.replace("typing.", "").replace(" | None", " or null").replace("Any", "any")


def _written(value: Any) -> str:
    """A default as the value of an override."""
    if value is None or value == MISSING:
        return "null" if value is None else REQUIRED
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    return '""' if value == "" else str(value)


def _default(default: str | Sequence[str] | None) -> str:
    if default is None:
        return "required"
    return f"default: {default if isinstance(default, str) else ', '.join(default)}"


def _columns() -> int:
    return min(shutil.get_terminal_size((110, 24)).columns, 120)


def _entry(name: str, text: str, width: int = 32) -> list[str]:
    """A name and its explanation in two columns."""
    space = " " * (width + 2)
    lines = textwrap.wrap(text, _columns(), initial_indent=space, subsequent_indent=space) or [""]
    if len(name) + 2 >= width:
        return [f"  {name}", *filter(None, lines)]
    return [f"  {name:<{width}}{lines[0][len(space) :]}".rstrip(), *lines[1:]]
