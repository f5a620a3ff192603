"""Every command by one name, from a folder that has modules of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from ideatree import commands


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_command_says_how_it_is_called(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([name, "--help"]) == 0
    module, _ = commands.COMMANDS[name]
    assert f"usage: ideatree {name} " in capsys.readouterr().out
    assert importlib.import_module(f"{module}.__main__").main


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "judge:\n    evaluate  check and time one kernel\n"),
        ([], 2, "usage: ideatree COMMAND"),
        (["evalute"], 2, "unknown command evalute; did you mean evaluate?"),
        (["x"], 2, "unknown command x; ideatree --help lists all commands"),
    ],
)
def test_what_is_asked_for(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(arguments) == status
    found = capsys.readouterr()
    assert said in found.out + found.err


@pytest.mark.slow
def test_a_search_py_in_the_callers_folder_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("raise SystemExit('theirs')")
    program = Path(sys.executable).with_name("ideatree")
    call = [str(program), "list", "op=softmax"]
    found = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert "softmax/triton" in found.stdout
