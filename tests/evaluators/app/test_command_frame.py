"""The frame of every command: exit statuses, errors of one line, flags, sweeps, a closed output."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import (
    command,
    compose_config,
    given_config_folders,
    given_overrides,
    output_folder,
)
from evaluators.app.config import NO_FOLDER, hydra_settings
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError


@dataclass
class ToolConfig:
    """The config of these tests' commands."""

    number: int = option(1, "how many")
    name: str = option("x", "what it is called")
    hydra: Any = hydra_settings(NO_FOLDER)


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (None, 7, ""),
        (UsageError("no such thing"), 2, "tools.make: no such thing\n"),
        (LookupError("first\nsecond"), 2, "tools.make: first\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=repr,
)
def test_the_frame_of_a_command(
    raised: BaseException | None, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[int] = []

    @command("tools.make", ToolConfig, "How to call it", LookupError)
    def main(config: DictConfig) -> int:
        given.append(config.number)
        if raised is not None:
            raise raised
        return 7

    assert main(["number=5"]) == status
    assert (given, tuple(capsys.readouterr())) == ([5], ("", said))
    assert main(["number=5", "--help"]) == main(["-h"]) == 0
    helped = capsys.readouterr().out
    assert helped.startswith("usage: ideatree make [key=value …]\n\nHow to call it\n")
    assert re.search(r"^  number=1 +how many$", helped, re.MULTILINE)
    assert len(given) == 1


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("numbr=1", "unknown key numbr; did you mean number?"),
        ("number=many", "number is many; it must be a whole number"),
        ("number", "'number' is not of the form key=value"),
        ("number=[1", ""),
        ("~size", ""),
    ],
)
def test_an_invalid_override_is_one_line(
    argument: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @command("tools.make", ToolConfig, "")
    def main(config: DictConfig) -> int:
        return 0

    assert main([argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tools.make: {says}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--xyz"], "unknown flag --xyz; --help lists the flags"),
        (["--multrun", "number=1,2"], "unknown flag --multrun; did you mean --multirun?; --help lists"),
        (["--cfg", "nothing"], "argument --cfg: invalid choice: 'nothing'"),
        (["--config-dir", "nowhere"], "--config-dir=nowhere is not a folder"),
        (["--config-dir", ".", "hydra.searchpath=[file:///x]"], "--config-dir excludes hydra.searchpath=…"),
    ],
)
def test_wrong_flags_are_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @command("tools.make", ToolConfig, "")
    def main(config: DictConfig) -> int:
        return 0

    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"tools.make: {says}")


@dataclass
class FolderToolConfig:
    """The config of a command with an output folder."""

    number: int = option(1, "how many")
    out: str = option("outputs", "where folders are made")
    hydra: Any = hydra_settings({"run": {"dir": "${out}/run"}})


@pytest.mark.slow
def test_hydra_writes_the_config_next_to_the_output(tmp_path: Path) -> None:
    @command("tools.make", FolderToolConfig, "")
    def main(config: DictConfig) -> int:
        inner = compose_config(ToolConfig, ["number=7"])
        (output_folder() / "found").write_text(f"{config.number} {inner.number} {given_overrides()}")
        return 0

    folder = tmp_path / "run"
    assert main([f"out={tmp_path}", "number=5"]) == 0
    assert (folder / "found").read_text() == f"5 7 ['out={tmp_path}', 'number=5']"
    assert OmegaConf.load(folder / ".hydra/config.yaml") == {"number": 5, "out": str(tmp_path)}
    assert OmegaConf.load(folder / ".hydra/overrides.yaml") == [f"out={tmp_path}", "number=5"]
    assert (folder / ".hydra/hydra.yaml").exists()


def test_an_output_folder_that_stays_unused_is_removed(tmp_path: Path) -> None:
    @command("tools.make", FolderToolConfig, "")
    def main(config: DictConfig) -> int:
        raise UsageError("no such thing")

    (tmp_path / "mine").mkdir()
    assert main([f"out={tmp_path / 'mine/new'}"]) == 2
    assert [each.name for each in tmp_path.rglob("*")] == ["mine"]


@pytest.mark.slow
def test_a_folder_with_configs_reaches_the_configs_composed_in_the_job(tmp_path: Path) -> None:
    (tmp_path / "folder_tool.yaml").write_text("number: 3\n")
    found: list[list[str]] = []

    @command("tools.make", ToolConfig, "")
    def main(config: DictConfig) -> int:
        found.append(given_config_folders())
        return 0

    place = f"hydra.searchpath=[file://{tmp_path}]"
    assert main(["--config-dir", str(tmp_path)]) == main([place]) == main([]) == 0
    assert found == [[place], [place], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statuses", "status", "jobs"),
    [((0, 0, 0), 0, 3), ((0, 1, 0), 1, 3), ((0, 2, 0), 2, 3), ((0, 130, 0), 130, 2)],
)
def test_the_jobs_of_a_sweep(statuses: tuple[int, ...], status: int, jobs: int, tmp_path: Path) -> None:
    """A failed job does not stop the sweep; an interrupted one does."""
    given: list[int] = []

    @command("tools.make", ToolConfig, "")
    def main(config: DictConfig) -> int:
        given.append(config.number)
        return statuses[config.number]

    assert main(["--multirun", "number=0,1,2", f"hydra.sweep.dir={tmp_path}"]) == status
    assert given == list(range(jobs))


def test_an_unexpected_error_is_raised() -> None:
    @command("tools.make", ToolConfig, "", LookupError)
    def main(config: DictConfig) -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        main([])


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 100_000], ids=["the last line", "in the middle"])
def test_a_closed_output_causes_no_traceback(lines: int) -> None:
    text = f"""
import sys
from tests.evaluators.app.test_command_frame import ToolConfig
from evaluators.app.command import command

@command("tools.make", ToolConfig, "")
def main(config):
    sys.stdin.read()
    for _ in range({lines}):
        print("a line")
    return 0

sys.exit(main())
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", text], text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


WORK = """
import os, sys
from rich.console import Console
from tests.evaluators.app.test_command_frame import FolderToolConfig
from evaluators.app.command import command, log_to, output_folder, say

@command("tools.make", FolderToolConfig, "")
def main(config):
    console = Console()
    log_to(console)
    for number in range(config.number):
        say(console, f"line {number} … × ü")
    (output_folder() / "done").write_text(os.readlink("/proc/self/fd/1"))
    return 0

sys.exit(main())
"""


def work(folder: Path, shell: str = "{}", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of many lines that leaves a file at its end, in a line of shell."""
    made = f"{sys.executable} -c '{WORK}' out={folder} number=20000"
    pipes = {"capture_output": True, "text": True, "encoding": "latin-1"}
    line = f"set -o pipefail; {shell.format(made)}"
    return subprocess.run(["bash", "-c", line], env={**os.environ, **environment}, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
def test_a_command_whose_reader_has_gone_goes_on(tmp_path: Path) -> None:
    ended = work(tmp_path, "{} | head -8")
    assert ended.stderr == ""
    assert ended.stdout.count("\n") == 8
    assert ended.returncode == 141
    assert (tmp_path / "run" / "done").exists()


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_null_device(tmp_path: Path, closed: str) -> None:
    """No file that the command opens may get the number of one of them."""
    ended = work(tmp_path, f"{{}} {closed}")
    assert ended.stderr == ""
    assert ended.returncode == 0
    if ">&-" in closed:
        assert (tmp_path / "run" / "done").read_text() == os.devnull


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_characters_that_an_encoding_lacks_end_nothing(tmp_path: Path, encoding: str) -> None:
    ended = work(tmp_path, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0].encode("latin-1").decode(encoding) in (
        "line 0 … × ü",
        "line 0 ? × ü",
        "line 0 ? ? ?",
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["a file", "below a file", "nowhere", "a long name"])
def test_an_output_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @command("tools.make", FolderToolConfig, "")
    def main(config: DictConfig) -> int:
        raise AssertionError("it has begun")

    (tmp_path / "run").write_text("a file")
    places = {"a file": tmp_path, "below a file": tmp_path / "run", "nowhere": Path("/proc/nowhere")}
    assert main([f"out={places.get(place, tmp_path / ('x' * 300))}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tools.make: ")
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_a_full_disk_is_one_line(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @command("tools.make", FolderToolConfig, "")
    def main(config: DictConfig) -> int:
        raise OSError(number, os.strerror(number), "journal.jsonl")

    assert main([f"out={tmp_path}"]) == 1
    assert capsys.readouterr().err == f"tools.make: journal.jsonl: {os.strerror(number)}\n"


def test_a_file_that_is_missing_is_a_fault_of_the_program(tmp_path: Path) -> None:
    @command("tools.make", FolderToolConfig, "")
    def main(config: DictConfig) -> int:
        (tmp_path / "nothing").read_text()
        return 0

    with pytest.raises(FileNotFoundError):
        main([f"out={tmp_path}"])
