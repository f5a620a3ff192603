"""Why Hydra cannot compose a call, in one line with the nearest valid choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from evaluators.app.config import OPEN_ENDED, group_defaults, hydra_with, options_of, register, search_path
from evaluators.app.words import items_of, text_of
from evaluators.base.cause import first_line
from evaluators.base.nearest import near

KINDS = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "bool": "true or false",
    "String": "text",
}


def explain(
    error: Exception, config: type[Any] | DictConfig, overrides: Sequence[str], more: str | None = None
) -> str:
    """Why `config` (a command's dataclass, or a stored config) could not be composed with the overrides.
    `more`: the user's own config folder."""
    groups = {} if isinstance(config, DictConfig) else groups_of(config, more)
    given = list(_given(overrides))
    for override, key, value in given:
        if value is None:
            return f"{override!r} is not of the form key=value"
        for each in items_of(value.strip("[]")) if key in groups else ():
            if (choice := text_of(each)) not in groups[key]:
                known = ", ".join(groups[key])
                return f"unknown {key} {choice}{near(choice, groups[key])}; choose from {known}"
    choices = [override for override, key, _ in given if key in groups]
    keys = {*known_keys(config, choices, more), *groups}
    for _, key, _ in given:
        if key not in keys and not key.startswith(OPEN_ENDED):
            return f"unknown key {key}{near(key, sorted(keys))}"
    for group in _required(config):
        if group not in (key for _, key, _ in given):
            return f"{group} is not set; give {group}=…, one of {', '.join(groups[group])}"
    if missing := re.search(r"Missing mandatory value: ([\w.]+)", str(error)):
        return f"{missing[1]} is not set; give it as {missing[1]}=…"
    return _several_values(error) or _wrong_type(error) or first_line(error)


def keys_of(config: DictConfig) -> list[str]:
    """The path of every key, sections included."""
    container = OmegaConf.to_container(config)
    assert isinstance(container, dict)
    return [each for key, value in container.items() for each in _paths(str(key), value)]


def _given(overrides: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """The overrides of the config, without Hydra's own, each with its key and value."""
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        key = key.partition("@")[0]
        if not override.startswith("~") and not key.startswith("hydra"):
            yield override, key, value if equals else None


def groups_of(config: type[Any], more: str | None = None) -> dict[str, list[str]]:
    """The groups of a command, each with its choices."""
    return {name: options_of(name, more) for name in group_defaults(config)}


def _required(config: type[Any] | DictConfig) -> list[str]:
    if isinstance(config, DictConfig):
        return []
    return [name for name, default in group_defaults(config).items() if default is None]


def known_keys(config: type[Any] | DictConfig, choices: Sequence[str], more: str | None = None) -> list[str]:
    """The keys that exist with these choices of groups."""
    if isinstance(config, DictConfig):
        return keys_of(config)
    made = {choice.lstrip("+").partition("=")[0] for choice in choices}
    others = [f"{group}={options_of(group, more)[0]}" for group in _required(config) if group not in made]
    with hydra_with():
        return keys_of(compose(register(config), [*search_path(more), *choices, *others]))


def _several_values(error: BaseException) -> str:
    """The message for a value with commas; "" for another error."""
    if (several := re.match(r"Ambiguous value for argument '[+]*(.+?)=(.*)'", str(error))) is None:
        return ""
    key, values = several.groups()
    return f"{key} has several values; a list is {key}=[{values}], and --multirun runs once for each value"


def _wrong_type(error: BaseException) -> str:
    """The message for a value that is not of its key's type; "" for another error."""
    merging = re.match(r"Error merging override [+]*(\S+?)=(.*)", str(error))
    kind = re.search(r"(?:converted to|not a valid) (\w+)", f"{error}\n{error.__cause__}")
    if merging is None or kind is None:
        return ""
    return f"{merging[1]} is {merging[2]}; it must be {KINDS.get(kind[1], kind[1])}"


def _paths(name: str, value: Any) -> Iterator[str]:
    yield name
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _paths(f"{name}.{key}", below)
