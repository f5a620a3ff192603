"""What the commands share: their frame, composing a config from the command line, and errors of one line.

Bad input is a `UsageError`, raised before anything is started or written; a command prints it and exits
with status 2.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.logging import RichHandler

from evaluators import PACKAGE
from evaluators.cause import first_line
from evaluators.nearest import nearest

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
OPEN_ENDED = ("problem.sizes.", "problem.cpu_sizes.", "choice.weights.")
"""Keys that hold what the user names."""


class UsageError(Exception):
    """The call was wrong; the message is one line that says what, and the nearest valid choice."""


class Main(Protocol):
    """A command; takes the process's arguments where it is given none, and returns its exit status."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """See the class."""
        ...


def command(
    name: str, text: str | None, *told: type[Exception]
) -> Callable[[Callable[[list[str]], int]], Main]:
    """Puts the frame of a command around what it does with its arguments.

    `--help` prints `text`. UsageError, and what is in `told`, is one line on standard error and status 2; an
    interrupt is status 130, and who reads the output and has enough (`| head`) makes it 141.
    """
    of_the_caller: tuple[type[Exception], ...] = (UsageError, *told)

    def framed(body: Callable[[list[str]], int]) -> Main:
        @functools.wraps(body)
        def main(arguments: Sequence[str] | None = None) -> int:
            given = list(sys.argv[1:] if arguments is None else arguments)
            if {"-h", "--help"} & set(given):
                print(text)  # noqa: T201  (what was asked for)
                return 0
            try:
                status = body(given)
                return EXIT_UNREAD if _nobody_reads_output() else status
            except KeyboardInterrupt:
                return EXIT_INTERRUPTED
            except Exception as error:
                if isinstance(error, BrokenPipeError) and _nobody_reads_output():
                    return EXIT_UNREAD
                if not isinstance(error, of_the_caller):
                    raise
                print(f"{name}: {first_line(error)}", file=sys.stderr)  # noqa: T201  (what a command says)
                return EXIT_USAGE

        return main

    return framed


def config_folder() -> Path:
    """`configs/` beside the packages (a checkout) or inside `search` (an installation)."""
    beside = PACKAGE.parent / "configs"
    return beside if (beside / "run.yaml").exists() else PACKAGE.parent / "search" / "configs"


def compose_config(name: str, overrides: Sequence[str]) -> DictConfig:
    """The config `name` with `key=value` overrides. Raises UsageError."""
    folder = config_folder()
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not of the form key=value")
        _check_key(folder, name, key.lstrip("+~"), value)
    for group in _required_groups(folder, name):
        if not any(override.startswith(f"{group}=") for override in overrides):
            raise UsageError(f"{group} is not set; give {group}=… of {', '.join(_options(folder, group))}")
    open_keys = [f"++{o}" if o.startswith(OPEN_ENDED) else o for o in overrides]
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            config: DictConfig = compose(name, open_keys)
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(first_line(error)) from error
    if missing:
        raise UsageError(f"{missing[0]} is not set; give it as {missing[0]}=…")
    return config


def edit_config(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A stored config with further `key=value` overrides of existing keys. Raises UsageError."""
    config = config.copy()
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is not of the form key=value")
        known = list(_leaves(config))
        if key not in known:
            raise UsageError(f"unknown key {key}{_nearest(key, known)}")
        OmegaConf.update(config, key, yaml.safe_load(value))
    return config


def build(config: DictConfig, **more: Any) -> Any:
    """Instantiates the `_target_` of a config. Raises UsageError for what its constructor refuses."""
    try:
        return instantiate(config, _convert_="all", **more)
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise UsageError(first_line(cause)) from error


def choose_device(wanted: str, *, clustered: bool) -> tuple[str, str]:
    """Device to use and why. Raises UsageError when a GPU is asked for where there is none."""
    if clustered:
        return ("cuda" if wanted == "auto" else wanted), "the cluster's"
    import torch

    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UsageError("device is cuda, but torch finds no GPU here; use device=cpu or device=auto")
    if wanted != "auto":
        return wanted, "as asked"
    return ("cuda", "a GPU is there") if present else ("cpu", "torch finds no GPU")


def positive(config: DictConfig, *keys: str, least: int = 1) -> None:
    """Raises UsageError unless every key holds a whole number of at least `least`."""
    for key in keys:
        value = config[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{key} is {value}; it must be a whole number of at least {least}")


def one_of(config: DictConfig, key: str, allowed: Sequence[str]) -> None:
    """Raises UsageError unless the key holds one of the allowed words."""
    value = str(config[key])
    if value not in allowed:
        raise UsageError(
            f"{key} is {value}; it must be one of {', '.join(allowed)}{_nearest(value, allowed)}"
        )


def log_to(console: Console) -> None:
    """Warnings go to the console that also shows the run, so that neither writes into the other."""
    handler = RichHandler(console=console, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", handlers=[handler])


def _nobody_reads_output() -> bool:
    """Whether the reader of standard output is gone; what is still to be written there is lost then."""
    with contextlib.suppress(OSError):  # what is no file has no reader that could go
        output = sys.stdout.fileno()
        ends = select.poll()
        ends.register(output, 0)
        if any(event & select.POLLERR for _, event in ends.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            return True
    return False


def _check_key(folder: Path, name: str, key: str, value: str) -> None:
    if (folder / key).is_dir():
        options = _options(folder, key)
        for each in value.strip("[]").split(","):
            if each.strip() not in options:
                hint = _nearest(each.strip(), options)
                raise UsageError(f"unknown {key} {each.strip()}{hint}; there are {', '.join(options)}")
        return
    groups = [p for p in folder.iterdir() if p.is_dir()]
    files = [folder / f"{name}.yaml", *(f for g in groups for f in g.rglob("*.yaml"))]
    known = {leaf for file in files for leaf in _keys_of(folder, file)}
    parents = {".".join(leaf.split(".")[:n]) for leaf in known for n in range(1, leaf.count(".") + 1)}
    open_ended = key.startswith(OPEN_ENDED)
    if key not in known | parents and not open_ended:
        raise UsageError(f"unknown key {key}{_nearest(key, sorted(known | {g.name for g in groups}))}")


def _options(folder: Path, group: str) -> list[str]:
    return sorted(
        str(p.relative_to(folder / group).with_suffix("")) for p in (folder / group).rglob("*.yaml")
    )


def _required_groups(folder: Path, name: str) -> list[str]:
    loaded = OmegaConf.to_container(OmegaConf.load(folder / f"{name}.yaml"))
    defaults = loaded.get("defaults", []) if isinstance(loaded, dict) else []
    return [
        group
        for entry in defaults
        if isinstance(entry, dict)
        for group, value in entry.items()
        if value == "???"
    ]


def _keys_of(folder: Path, file: Path) -> Iterable[str]:
    """The keys that a file contributes, where its group, or Hydra's header for its package, puts them."""
    parts = file.relative_to(folder).parts
    package = re.match(r"# @package ([\w.]+)", file.read_text())
    place = package[1] if package else parts[0] if len(parts) > 1 else ""
    prefix = f"{place}." if place else ""
    loaded = OmegaConf.load(file)
    assert isinstance(loaded, DictConfig)
    return [prefix + key for key in _leaves(loaded) if not key.startswith("defaults")]


def _leaves(config: DictConfig) -> Iterable[str]:
    """Every key with its path, branches and leaves alike."""
    container = OmegaConf.to_container(config)
    assert isinstance(container, dict)
    for key, value in container.items():
        yield from _paths(str(key), value)


def _paths(name: str, value: Any) -> Iterable[str]:
    yield name
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _paths(f"{name}.{key}", below)


def _nearest(value: str, options: Iterable[str]) -> str:
    by_tail = {option: option for option in options} | {option.split("/")[-1]: option for option in options}
    near = nearest(value, by_tail)
    return f"; did you mean {by_tail[near]}?" if near else ""
