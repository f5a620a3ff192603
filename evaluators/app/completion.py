"""Completions for a word of a command line. Hydra's own completion finds neither choices in a group's
subfolders nor keys while a required group is missing."""

from __future__ import annotations

from typing import Any

from evaluators.app.config_errors import groups_of, known_keys


def completions(config: type[Any], line: str, more: str | None = None) -> list[str]:
    """Completions for the last word of a command line, given without the command's name. `more`: the user's
    own config folder."""
    *before, word = line.split(" ")
    groups = groups_of(config, more)
    key, equals, value = word.lstrip("+").partition("=")
    if equals:
        return [f"{key}={option}" for option in groups.get(key, ()) if option.startswith(value)]
    choices = [each for each in before if each.partition("=")[0] in groups]
    known = known_keys(config, choices, more)
    inner = {each.rpartition(".")[0] for each in known} - set(groups)
    offered = {f"{each}=" if each not in inner else f"{each}." for each in known} | {f"{g}=" for g in groups}
    depth = word.count(".")
    return sorted(each for each in offered if each.startswith(word) and each[:-1].count(".") == depth)
