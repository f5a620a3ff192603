"""The frame of every command: a Hydra application whose errors are one line.

Wrong input raises `UsageError` before anything is started or written. The command prints the message and
exits with status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import io
import logging
import os
import select
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.logging import RichHandler

from evaluators.app.completion import completions
from evaluators.app.config import config_folder, expand_choices, hydra_with, register, search_path
from evaluators.app.config_errors import explain
from evaluators.app.help import FLAGS, help_text
from evaluators.app.words import text_of
from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.base.system_error import system_error
from evaluators.base.usage_error import UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
MULTIRUN = "hydra.mode=MULTIRUN"
NO_CHOICE = "Config group override must be a string or a list"
"""How Hydra's ValueError for a group whose value is a number, a boolean or null begins."""


@dataclass(frozen=True, kw_only=True)
class CommandCall:
    """What Hydra composes: the command's config, or a `stored` one, with these overrides."""

    overrides: Sequence[str]
    stored: DictConfig | None = None
    continues: str = ""
    """The argument with the existing folder that the call works in; "" for a call with a new folder."""


class JobFailed(Exception):
    """A job of a sweep ended with this exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class Command:
    """A command: call it with arguments, by default the process's; it returns the exit status."""

    def __init__(
        self,
        name: str,
        config: type[Any],
        text: str,
        body: Callable[[DictConfig], int],
        usage_errors: tuple[type[Exception], ...],
        expand: Callable[[Sequence[str]], CommandCall],
    ) -> None:
        self.name, self.config, self.text = name, config, text
        self._body, self._usage_errors, self._expand = body, usage_errors, expand
        self._statuses: list[int] = []
        self._begun = False
        self._existing: set[Path] = set()
        """The output folders and their parents that existed before the call."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """See the class."""
        prepare_streams()
        try:
            status = self._call(list(sys.argv[1:] if arguments is None else arguments))
            return EXIT_UNREAD if _output_is_closed() else status
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except JobFailed as failed:
            return failed.status
        except Exception as error:
            return self._report(error)

    def _call(self, arguments: list[str]) -> int:
        flags = _parsed(arguments)
        if flags.help:
            chosen = expand_choices(flags.overrides, self.config)
            print(help_text(self.name, self.config, self.text, chosen, flags.config_dir))  # noqa: T201
            return 0
        if flags.shell_completion and "query=bash" in flags.overrides:
            line = os.environ["COMP_LINE"].partition(" ")[2]
            print(" ".join(completions(self.config, line, flags.config_dir)))  # noqa: T201
            return 0
        call = CommandCall(overrides=flags.overrides)
        # Hydra looks for the primary config in one folder only, before it reads the search path.
        primary, further = None, flags.config_dir
        if flags.config_name and flags.config_dir:
            primary, further = os.path.abspath(flags.config_dir), str(config_folder())
        if not flags.shell_completion:
            call = self._expand(flags.overrides)
            sweep = flags.multirun or MULTIRUN in flags.overrides
            words = expand_choices(call.overrides, self.config, sweep=sweep)
            call = replace(call, overrides=[*search_path(further), *words])
        if call.continues and (flags.multirun or MULTIRUN in call.overrides):
            raise UsageError(f"{call.continues} continues one run, --multirun starts new ones; leave one out")
        self._statuses.clear()
        self._begun = False
        self._existing = {each for each in _output_folders(call.overrides) if each.exists()}
        with _composable(self.config, call, primary, flags.config_dir) as (hydra, name):
            self._act(hydra, flags, flags.config_name or name, list(call.overrides))
        return max(self._statuses, default=0)

    def _act(self, hydra: Any, flags: argparse.Namespace, name: str, overrides: list[str]) -> None:
        """Shows what a flag asks for, or runs the job, or the jobs of a sweep."""
        if flags.shell_completion:
            hydra.shell_completion(name, overrides)
        elif flags.cfg:
            hydra.show_cfg(name, overrides, flags.cfg, flags.package, flags.resolve)
        elif flags.info:
            hydra.show_info(flags.info, name, overrides)
        elif flags.multirun or MULTIRUN in overrides:
            hydra.multirun(name, self._job, [*overrides, MULTIRUN])
        else:
            hydra.run(name, self._job, overrides)

    def _job(self, config: DictConfig) -> None:
        """Hydra's task function: runs the body and records its exit status. In a sweep a failure raises
        JobFailed or KeyboardInterrupt."""
        self._begun = True
        try:
            require_all(config)
            status = self._body(config)
        except Exception as error:
            status = self._report(error)
        finally:
            _discard_if_unused(output_folder(), self._existing)
        self._statuses.append(status)
        if HydraConfig.get().mode is RunMode.MULTIRUN and status:
            if status == EXIT_INTERRUPTED:
                raise KeyboardInterrupt
            raise JobFailed(status)

    def _report(self, error: Exception) -> int:
        """Prints a usage error, or an error of the system, such as a full disk, in one line and returns its
        exit status. Raises any other error."""
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return EXIT_UNREAD
        if isinstance(error, self._usage_errors):
            print(f"{self.name}: {first_line(error)}", file=sys.stderr)  # noqa: T201
            return EXIT_USAGE
        why = system_error(error)
        if why is None and not self._begun and isinstance(error, OSError):  # its output folder cannot be made
            why = str(error)
        if why is None:
            raise error
        print(f"{self.name}: {why}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED if self._begun else EXIT_USAGE


def command(
    name: str,
    config: type[Any],
    text: str | None,
    *usage_errors: type[Exception],
    expand: Callable[[Sequence[str]], CommandCall] = lambda overrides: CommandCall(overrides=overrides),
) -> Callable[[Callable[[DictConfig], int]], Command]:
    """Turns a function that takes the composed `config` (a dataclass, see `config.py`) and returns an exit
    status into a command.

    `--help` prints `text`. `expand` rewrites the overrides of the call for Hydra. UsageError and the other
    `usage_errors` print one line on standard error, with status 2, and so do folders that cannot be written.
    An error of the system during the work (a full disk) is one line too, with status 1. An interrupt gives
    status 130. When the reader of standard output has gone (`| head`), the command goes on, and ends with
    status 141. The status of a sweep is the worst of its jobs'; an interrupted job
    ends the sweep.
    """
    register(config)
    return lambda body: Command(name, config, text or "", body, (UsageError, *usage_errors), expand)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags and the overrides of a call. Raises UsageError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, settings in FLAGS.items():
        parser.add_argument(*flag.split(", "), **settings)
    parser.add_argument("overrides", nargs="*", help="key=value")
    try:
        parsed, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from error
    if unknown:
        names = [name for each in FLAGS for name in each.split(", ")]
        raise UsageError(f"unknown flag {unknown[0]}{near(unknown[0], names)}; --help lists the flags")
    if parsed.config_dir and not Path(parsed.config_dir).is_dir():
        raise UsageError(f"--config-dir={parsed.config_dir} is not a folder")
    if parsed.config_dir and any(each.startswith("hydra.searchpath=") for each in parsed.overrides):
        raise UsageError("--config-dir excludes hydra.searchpath=…; list all folders in hydra.searchpath")
    return parsed


def _output_folders(overrides: Sequence[str]) -> list[Path]:
    """The folders into which a call may write output folders, and their parents."""
    chosen = [each.partition("=")[2] for each in overrides if each.startswith(("out=", "hydra.run.dir="))]
    places = [Path(text_of(each)).resolve() for each in ("outputs", *chosen)]
    return [each for place in places for each in (place, *place.parents)]


def _discard_if_unused(folder: Path, existing: set[Path]) -> None:
    """Removes an output folder that has only Hydra's own files, and empty folders above it that did not exist
    before."""
    if [each.name for each in folder.iterdir()] != [".hydra"] or HydraConfig.get().output_subdir is None:
        return
    shutil.rmtree(folder / ".hydra")
    with contextlib.suppress(OSError):  # not empty
        for each in (folder, *folder.parents):
            if each in existing:
                break
            each.rmdir()


@contextlib.contextmanager
def _composable(
    config: type[Any], call: CommandCall, primary: str | None = None, more: str | None = None
) -> Iterator[tuple[Any, str]]:
    """Hydra, and the name of the primary config that it can compose in the block. `primary`: the folder of
    the primary config, by default ours; `more`: the user's own config folder. Raises UsageError for a call
    that cannot be composed."""
    try:
        if call.stored is None:
            with hydra_with(primary) as hydra:
                yield hydra, register(config)
            return
        with tempfile.TemporaryDirectory() as folder, hydra_with(folder) as hydra:
            OmegaConf.save(call.stored, Path(folder) / "config.yaml")
            yield hydra, "config"
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if type(error) is ValueError and not str(error).startswith(NO_CHOICE):
            raise
        if (refusal := _of_a_resolver(error)) is not None:
            raise refusal from error
        known = config if call.stored is None else call.stored
        raise UsageError(explain(error, known, call.overrides, more)) from error


def _of_a_resolver(error: BaseException) -> UsageError | None:
    """The error of one of our resolvers, which OmegaConf has wrapped; None for another error."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, UsageError):
        inner = inner.__context__
    return inner


def _compose(config: type[Any], call: CommandCall) -> DictConfig:
    with _composable(config, call) as (_, name):
        composed: DictConfig = compose(name, list(call.overrides))
    return composed


def compose_config(config: type[Any], overrides: Sequence[str], *, resolve: bool = True) -> DictConfig:
    """A command's config with `key=value` overrides, as the command itself gets it. Without `resolve`
    interpolations stay. Raises UsageError."""
    composed = _compose(config, CommandCall(overrides=expand_choices(overrides, config)))
    if resolve:
        require_all(composed)
    return composed


def compose_stored(stored: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A stored config with `key=value` overrides of its keys. Raises UsageError."""
    composed = _compose(type(None), CommandCall(overrides=expand_choices(overrides), stored=stored))
    require_all(composed)
    return composed


def require_all(config: DictConfig) -> None:
    """Resolves the config. Raises UsageError for a value that is missing or cannot be resolved."""
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise UsageError(first_line(error)) from error
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise UsageError(f"{missing[0]} is not set; give it as {missing[0]}=…")


def output_folder() -> Path:
    """This job's output folder."""
    return Path(HydraConfig.get().runtime.output_dir)


def given_config_folders() -> list[str]:
    """An override for `compose_config`: the config folders given to this job (`--config-dir`,
    `hydra.searchpath`). Empty if there are none."""
    sources = [each for each in HydraConfig.get().runtime.config_sources if each.schema == "file"]
    return search_path(*(each.path for each in sources if Path(each.path) != config_folder()))


def given_overrides() -> list[str]:
    """This job's overrides, as given."""
    return [str(each).lstrip("+") for each in HydraConfig.get().overrides.task]


def build(config: DictConfig, **more: Any) -> Any:
    """Instantiates the `_target_` of a config. Raises UsageError for values that its constructor refuses, and
    the constructor's own error for a fault of it."""
    try:
        return instantiate(config, _convert_="all", **more)
    except InstantiationException as error:
        cause = error.__cause__ or error
        while first_line(cause).endswith(":") and cause.__cause__ is not None:  # only introduces the next one
            cause = cause.__cause__
        raised = _raised(error)
        if not is_refusal(raised):
            raise raised from raised.__cause__
        raise UsageError(first_line(cause)) from error


def _raised(error: BaseException) -> BaseException:
    """What a constructor raised, without Hydra's errors around it."""
    while isinstance(error, HydraException) and error.__cause__ is not None:
        error = error.__cause__
    return error


def is_refusal(error: BaseException) -> bool:
    """Whether a constructor refused a value, or cannot be found or imported. Otherwise it has a fault; also a
    ValueError or TypeError that no `raise` and no called function has raised, as in `a, b = [1]`."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if str(frame.f_globals.get("__name__")).startswith(("hydra.", "omegaconf.")):
        return True
    if isinstance(error, ValueError | TypeError):
        return _instruction(error).startswith(("RAISE", "RERAISE", "CALL"))
    return isinstance(error, UsageError | ImportError | OSError | HydraException)


def _instruction(error: BaseException) -> str:
    """The instruction that raised the error."""
    innermost = error.__traceback__
    assert innermost is not None
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return dis.opname[innermost.tb_frame.f_code.co_code[innermost.tb_lasti]]


def choose_device(wanted: str, *, clustered: bool) -> tuple[str, str]:
    """The device to use, and why. Raises UsageError for `cuda` without a GPU."""
    if clustered:
        return ("cuda" if wanted == "auto" else wanted), "the cluster's"
    if wanted == "cpu":  # without importing torch, which takes seconds
        return wanted, "as asked"
    import torch

    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise UsageError("device is cuda, but torch finds no GPU here; use device=cpu or device=auto")
    if wanted != "auto":
        return wanted, "as asked"
    return ("cuda", "torch finds a GPU") if present else ("cpu", "torch finds no GPU")


def positive(config: DictConfig, *keys: str, least: int = 1) -> None:
    """Raises UsageError unless every key's value is a whole number of at least `least`."""
    for key in keys:
        value = OmegaConf.select(config, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{key} is {value}; it must be a whole number of at least {least}")


def one_of(config: DictConfig, key: str, allowed: Sequence[str]) -> None:
    """Raises UsageError unless the key's value is one of the allowed words."""
    value = str(OmegaConf.select(config, key))
    if value not in allowed:
        raise UsageError(f"{key} is {value}; it must be one of {', '.join(allowed)}{near(value, allowed)}")


def log_to(console: Console) -> None:
    """Logs warnings, and how kernels are confined, to the console that also shows the run, so that the two do
    not interleave."""
    handler = RichHandler(console=console, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", handlers=[handler])
    logging.getLogger("evaluators.isolation").setLevel(logging.INFO)


def say(console: Console, *lines: str, style: str | None = None) -> None:
    """Prints lines verbatim. On a terminal the first one gets the style."""
    for line in lines:
        console.out(line, style=style, highlight=False)
        style = None


def shown(folder: Path) -> str:
    """A folder's path, relative if it is below the current one."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def prepare_streams() -> None:
    """Makes output unable to end the program: streams that are closed become the null device, so that no
    file of ours gets their numbers, characters that an encoding lacks become `?`, and a console whose reader
    has gone becomes quiet."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    Console.on_broken_pipe = _become_quiet  # type: ignore[assignment, method-assign]


def _become_quiet(console: Console) -> None:
    """In place of rich's own way, which ends the process."""
    console.quiet = True


def _output_is_closed() -> bool:
    """Whether the reader of standard output has closed it. Later output is then discarded."""
    with contextlib.suppress(OSError):  # standard output is not a file
        output = sys.stdout.fileno()
        ends = select.poll()
        ends.register(output, 0)
        if any(event & select.POLLERR for _, event in ends.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            return True
    return False
