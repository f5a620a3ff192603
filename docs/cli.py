"""Writes the reference page of the commands, docs/reference/cli.md, from their configs.

    python docs/cli.py

Run it after a change to a command's docstring, its config or `configs/`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from evaluators.app.command import Command
from evaluators.app.config import group_defaults, options_of
from evaluators.app.help import FLAGS, KeyHelp, KeySection, sections, synopsis
from ideatree.commands import COMMANDS

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """\
# Commands

You set the keys of a command as `key=value` arguments. A group is a key that chooses one of several configs,
each with its own keys: `strategy=beam strategy.width=2`. `null` stands for no value. `ideatree COMMAND
--help` prints what this page lists, and `ideatree COMMAND GROUP=NAME --help` the keys of another choice.
[Configuration](configuration.md) explains the keys in context."""
COMMON = "The keys of each group's default choice, and keys of several commands."
FOOT = "\n*Written by `python docs/cli.py`; edit the options in the code instead.*"


def page() -> str:
    """The page in Markdown."""
    commands = {name: _command(module) for name, (module, _) in COMMANDS.items()}
    owners = {command.config: name for name, command in commands.items()}
    lines = [HEAD, ""]
    lines += [f"- [`{name}`](#{name}): {text}" for name, (_, text) in COMMANDS.items()]
    common: dict[str, KeySection] = {}
    for name, command in commands.items():
        lines += [
            "",
            f"## {name}",
            "",
            f"`{synopsis(command.name, command.config)}`",
            "",
            _about(command),
            "",
        ]
        links = []
        own: list[KeyHelp] = []
        for each in sections(command.config):
            if each.title.startswith("Keys: set"):
                own += each.keys
            elif each.base in owners:
                links.append(f"[{owners[each.base]}](#{owners[each.base]})")
            elif each.keys:
                title = _title(each)
                common[title] = each if each.base is None else sections(each.base)[0]
                links.append(f"[{title}](#{_anchor(title)})")
        lines += [*_groups(command), *_table(own)]
        lines += ["", f"Further keys: {', '.join(links)}."] if links else []
    lines += ["", "## Flags", "", "| flag | what it does |", "|---|---|"]
    lines += [f"| `{flag}` | {_cell(settings['help'])} |" for flag, settings in FLAGS.items()]
    lines += [
        "",
        "## Common keys",
        "",
        "The keys of each group's default choice, and keys of several commands.",
    ]
    for title in sorted(common, key=lambda each: (not each.startswith("Inherited"), each)):
        lines += ["", f"### {title}", "", *([common[title].about, ""] if common[title].about else [])]
        lines += _table(common[title].keys)
    return "\n".join([*lines, FOOT, ""])


def _command(module: str) -> Command:
    command: Command = importlib.import_module(f"{module}.__main__").main
    return command


def _about(command: Command) -> str:
    """The first paragraph of the command's docstring, without the colon before the examples."""
    return " ".join(command.text.strip().split("\n\n")[0].split()).removesuffix(":").removesuffix(".") + "."


def _title(section: KeySection) -> str:
    """The heading of common keys: `Inherited keys: searches`, `strategy: beam`."""
    title = section.title.replace("=", ": ")
    return title if section.base is not None else title.partition(": ")[2]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _groups(command: Command) -> Iterator[str]:
    groups = group_defaults(command.config)
    if groups:
        yield from ("| group | choices | default |", "|---|---|---|")
    for group, default in groups.items():
        chosen = [default] if isinstance(default, str) else default or []
        choices = ", ".join(f"`{each}`" for each in options_of(group))
        yield f"| `{group}` | {choices} | {', '.join(f'`{each}`' for each in chosen) or 'required'} |"
    if groups:
        yield ""


def _table(keys: Iterable[KeyHelp]) -> Iterator[str]:
    """A row per key; one without a type introduces the keys below it."""
    rows = [
        f"| `{each.key}` | {_cell(each.kind)} | {f'`{_cell(each.default)}`' if each.kind else ''} "
        f"| {_cell(each.help)} |"
        for each in keys
    ]
    if rows:
        yield from ("| key | type | default | what it sets |", "|---|---|---|---|", *rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
