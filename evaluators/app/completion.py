"""What a shell may complete a word of a command with. Hydra's own completion knows no choices in folders of a
group, and no keys before all groups that must be given are."""

from __future__ import annotations

from typing import Any

from evaluators.app.config_errors import groups_of, known_keys


def completions(config: type[Any], line: str, more: str | None = None) -> list[str]:
    """For the last word of a command line after the command's name; `more`: a folder of the user's with
    configs."""
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
