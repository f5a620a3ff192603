"""What `--help` prints: how to call the command, the groups with their choices, and every key with its
default and what it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from evaluators.app.config import config_folder, default_of, group_defaults, options_of

FOOTER = """Flags of Hydra: --cfg job shows the config, --info how it comes about, --multirun key=a,b runs
each, --config-dir DIR adds configs of your own, --hydra-help lists them all."""
HIDDEN = ("defaults", "hydra", "_target_", "_partial_")


def help_text(config: type[Any], text: str, more: str | None = None) -> str:
    """The help of a command with this config; `more`: a folder of the user's with configs."""
    groups = group_defaults(config)
    lines = [text.strip(), ""]
    if groups:
        lines += [
            "== Configuration groups ==",
            "Choose one of each (group=option)",
            "",
        ]
        lines += [f"{name}: {', '.join(options_of(name, more))}" for name in groups] + [""]
    lines += ["== Config ==", "Override anything in the config (key.subkey=value)", ""]
    lines += [line for each in dataclasses.fields(config) for line in _field(each, more)]
    return "\n".join([*lines, "", FOOTER])


def _field(each: dataclasses.Field[Any], more: str | None) -> Iterator[str]:
    if each.name in HIDDEN:
        return
    if "group" in each.metadata:
        yield from _group(each.name, each.metadata["group"], more)
        return
    default, said = default_of(each), each.metadata.get("help", "")
    if dataclasses.is_dataclass(default):
        yield f"{each.name}:{_comment(said)}"
        for inner in dataclasses.fields(default):
            yield from ("  " + line for line in _field(inner, more))
    else:
        value = OmegaConf.to_yaml({each.name: default}, resolve=False).strip()
        yield value.replace("\n", " ") + _comment(said)


def _group(name: str, default: str | Sequence[str] | None, more: str | None) -> Iterator[str]:
    """With the keys of the choice that is the default's."""
    if default is None:
        yield f"{name}: ???{_comment(f'{name}=… must be given')}"
        return
    for choice in [default] if isinstance(default, str) else default:
        lines = list(_choice(name, choice, more))
        nested = not isinstance(default, str)
        yield f"{name}:{_comment(f'{name}={choice}')}"
        yield from ([f"  {choice}:"] if nested else [])
        yield from (("    " if nested else "  ") + line for line in lines)


def _choice(group: str, choice: str, more: str | None) -> Iterator[str]:
    for folder in (config_folder(), *([Path(more)] if more else [])):
        path = folder / group / f"{choice}.yaml"
        if path.exists():
            for line in path.read_text().splitlines():
                if line.strip() and not line.lstrip().startswith((*HIDDEN, "# @package")):
                    yield line
            return
    node = ConfigStore.instance().load(f"{group}/{choice}.yaml").node
    assert isinstance(node, DictConfig)
    record = OmegaConf.get_type(node)
    assert record is not None
    for each in dataclasses.fields(record):
        yield from _field(each, more)


def _comment(text: str) -> str:
    return f"  # {text}" if text else ""
