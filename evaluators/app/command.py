"""What the commands share: each is a Hydra application with errors of one line.

Bad input is a `UsageError`, raised before anything is started or written; a command prints it and exits
with status 2.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import hydra
from hydra import compose
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.logging import RichHandler

from evaluators.app.completion import completions
from evaluators.app.config import VERSION_BASE, composing, config_folder, opened, register, search_path
from evaluators.app.config_errors import explained
from evaluators.app.help import help_text
from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141


@dataclass(frozen=True, kw_only=True)
class CommandCall:
    """What Hydra is to compose: the command's config, or a `stored` one, with these overrides."""

    overrides: Sequence[str]
    stored: DictConfig | None = None


class JobFailed(Exception):
    """A job of a sweep ended with this exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class Main(Protocol):
    """A command; takes the process's arguments where it is given none, and returns its exit status."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """See the class."""
        ...


def command(
    name: str,
    config: type[Any],
    text: str | None,
    *told: type[Exception],
    expand: Callable[[Sequence[str]], CommandCall] = lambda overrides: CommandCall(overrides=overrides),
) -> Callable[[Callable[[DictConfig], int]], Main]:
    """Makes a command of a function that takes the composed `config` (a dataclass, see `config.py`) and
    returns an exit status: a Hydra application with all of Hydra's flags.

    `--help` begins with `text`. `expand` turns the overrides of the call into those that Hydra is given.
    UsageError, and what is in `told`, is one line on standard error and status 2; an interrupt is status 130,
    and who reads the output and has enough (`| head`) makes it 141. The status of a sweep is the worst of its
    jobs'; an interrupted job ends it.
    """
    register(config)

    def framed(body: Callable[[DictConfig], int]) -> Main:
        job = _Job(name, body, (UsageError, *told))

        @functools.wraps(body)
        def main(arguments: Sequence[str] | None = None) -> int:
            given = list(sys.argv[1:] if arguments is None else arguments)
            try:
                status = _run(job, config, text or "", given, expand)
                return EXIT_UNREAD if _nobody_reads_output() else status
            except KeyboardInterrupt:
                return EXIT_INTERRUPTED
            except JobFailed as failed:
                return failed.status
            except Exception as error:
                return job.told(error)

        return main

    return framed


class _Job:
    """A command's function, as a task of Hydra's."""

    def __init__(
        self, name: str, body: Callable[[DictConfig], int], of_the_caller: tuple[type[Exception], ...]
    ) -> None:
        self.name, self._body, self._of_the_caller = name, body, of_the_caller
        self.statuses: list[int] = []
        self.there: set[Path] = set()
        """The folder of all output folders and those above it, as far as they were there before the call."""

    def task(self) -> Callable[[DictConfig], None]:
        """Hydra takes the name of the application from where the function stands."""

        @functools.wraps(self._body)
        def run(config: DictConfig) -> None:
            self(config)

        return run

    def __call__(self, config: DictConfig) -> None:
        try:
            require_all(config)
            status = self._body(config)
        except Exception as error:
            status = self.told(error)
        finally:
            _discard_if_unused(output_folder(), self.there)
        self.statuses.append(status)
        if HydraConfig.get().mode is RunMode.MULTIRUN and status:
            if status == EXIT_INTERRUPTED:
                raise KeyboardInterrupt
            raise JobFailed(status)

    def told(self, error: Exception) -> int:
        """Prints what the caller did wrong; returns the exit status. Raises what was not the caller's."""
        if isinstance(error, BrokenPipeError) and _nobody_reads_output():
            return EXIT_UNREAD
        if not isinstance(error, self._of_the_caller):
            raise error
        print(f"{self.name}: {first_line(error)}", file=sys.stderr)  # noqa: T201  (what a command says)
        return EXIT_USAGE


def _run(
    job: _Job,
    config: type[Any],
    text: str,
    arguments: list[str],
    expand: Callable[[Sequence[str]], CommandCall],
) -> int:
    parsed = get_args_parser().parse_intermixed_args(arguments)
    if parsed.help:
        print(help_text(config, text, parsed.config_dir))  # noqa: T201  (what was asked for)
        return 0
    if parsed.shell_completion and "query=bash" in parsed.overrides:
        line = os.environ["COMP_LINE"].partition(" ")[2]
        print(" ".join(completions(config, line, parsed.config_dir)))  # noqa: T201  (what was asked for)
        return 0
    flags = [each for each in arguments if each not in parsed.overrides]
    call = expand(parsed.overrides) if not (parsed.shell_completion or parsed.hydra_help) else None
    call = call or CommandCall(overrides=parsed.overrides)
    call = replace(call, overrides=opened(call.overrides))
    job.statuses.clear()
    job.there = {each for each in _above(call.overrides) if each.exists()}
    with _primary(config, call.stored) as (folder, name):
        application = hydra.main(version_base=VERSION_BASE, config_path=folder, config_name=name)(job.task())
        with (
            mock.patch.object(sys, "argv", [sys.argv[0], *flags, *call.overrides]),
            mock.patch.dict(os.environ, {"HYDRA_FULL_ERROR": "1"}),  # errors are told here
        ):
            try:
                application()
            except SystemExit as done:  # a flag that only shows something
                return int(done.code or 0)
            except (HydraException, OmegaConfBaseException) as error:
                known = config if call.stored is None else call.stored
                raise UsageError(explained(error, known, call.overrides, parsed.config_dir)) from error
    return max(job.statuses, default=0)


def _above(overrides: Sequence[str]) -> list[Path]:
    """The folders that a call may write output folders into, and those above."""
    chosen = [each.partition("=")[2] for each in overrides if each.startswith(("out=", "hydra.run.dir="))]
    places = [Path(each.strip("'")).resolve() for each in ("outputs", *chosen)]
    return [each for place in places for each in (place, *place.parents)]


def _discard_if_unused(folder: Path, there: set[Path]) -> None:
    """Removes an output folder that nobody but Hydra has written to, and the empty ones above it that were
    not `there` before."""
    if HydraConfig.get().output_subdir is None or [each.name for each in folder.iterdir()] != [".hydra"]:
        return
    shutil.rmtree(folder / ".hydra")
    with contextlib.suppress(OSError):  # one that is not empty
        for each in (folder, *folder.parents):
            if each in there:
                break
            each.rmdir()


@contextlib.contextmanager
def _primary(config: type[Any], stored: DictConfig | None) -> Iterator[tuple[str, str]]:
    """The folder and the name of the primary config."""
    if stored is None:
        yield str(config_folder()), register(config)
        return
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(stored, Path(folder) / "config.yaml")
        yield folder, "config"


def compose_config(config: type[Any], overrides: Sequence[str], *, resolve: bool = True) -> DictConfig:
    """A command's config with `key=value` overrides, as the command itself gets it; without `resolve`
    interpolations are left as they are. Raises UsageError."""
    name, overrides = register(config), opened(overrides)
    try:
        with composing():
            composed: DictConfig = compose(name, list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explained(error, config, overrides)) from error
    if resolve:
        require_all(composed)
    return composed


def compose_stored(stored: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A stored config with `key=value` overrides of its keys. Raises UsageError."""
    try:
        with (
            _primary(type(None), stored) as (folder, name),
            composing(folder),
        ):
            composed: DictConfig = compose(name, opened(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explained(error, stored, overrides)) from error
    require_all(composed)
    return composed


def require_all(config: DictConfig) -> None:
    """Resolves the config. Raises UsageError for a value that is missing, or cannot be resolved."""
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise UsageError(first_line(error)) from error
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise UsageError(f"{missing[0]} is not set; give it as {missing[0]}=…")


def output_folder() -> Path:
    """The folder that Hydra has made for this job."""
    return Path(HydraConfig.get().runtime.output_dir)


def given_config_folders() -> list[str]:
    """The folders with configs of the user's own (`--config-dir`) that this job was given, as an override for
    `compose_config`; empty where there is none."""
    sources = HydraConfig.get().runtime.config_sources
    return search_path([each.path for each in sources if each.provider == "command-line"])


def given_overrides() -> list[str]:
    """The overrides of this job, as they were given."""
    return [str(each).lstrip("+") for each in HydraConfig.get().overrides.task]


def build(config: DictConfig, **more: Any) -> Any:
    """Instantiates the `_target_` of a config. Raises UsageError for what its constructor refuses."""
    try:
        return instantiate(config, _convert_="all", **more)
    except InstantiationException as error:
        cause = error.__cause__ or error
        while first_line(cause).endswith(":") and cause.__cause__ is not None:  # it only introduces its own
            cause = cause.__cause__
        raise UsageError(first_line(cause)) from error


def choose_device(wanted: str, *, clustered: bool) -> tuple[str, str]:
    """Device to use and why. Raises UsageError when a GPU is asked for where there is none."""
    if clustered:
        return ("cuda" if wanted == "auto" else wanted), "the cluster's"
    if wanted == "cpu":  # without the time that torch takes to come up
        return wanted, "as asked"
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
    value = str(OmegaConf.select(config, key))
    if value not in allowed:
        raise UsageError(f"{key} is {value}; it must be one of {', '.join(allowed)}{near(value, allowed)}")


def log_to(console: Console) -> None:
    """Warnings go to the console that also shows the run, so that neither writes into the other."""
    handler = RichHandler(console=console, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", handlers=[handler])


def say(console: Console, *lines: str, style: str | None = None) -> None:
    """Prints lines as they are, but for the first one's style on a terminal."""
    for line in lines:
        console.out(line, style=style, highlight=False)
        style = None


def shown(folder: Path) -> str:
    """A folder as people call it: below the present one without the way there."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


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
