"""The cause of a failure, in one line from any log."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import torch

from evaluators.base.cause import MOST_CHARACTERS, cause_of, first_line, printable
from evaluators.records.evaluation import Evaluation, Status


def raised(act: Callable[[], object]) -> str:
    """The traceback, as a runner sends it."""
    with pytest.raises(BaseException) as caught:
        act()
    return "".join(traceback.format_exception(caught.value))


def chained() -> None:
    try:
        {}["key"]
    except KeyError as error:
        raise RuntimeError("the second one\nwith a second line") from error


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: exec("def f(:"), "SyntaxError: invalid syntax"),
        (lambda: exec("raise SystemExit(3)"), "SystemExit: 3"),
        (lambda: exec("assert False"), "AssertionError"),
        (chained, "RuntimeError: the second one"),
        (
            lambda: torch.ones(2, 3) @ torch.ones(2, 3),
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
        ),
    ],
)
def test_a_traceback_ends_with_the_error(act: Callable[[], object], cause: str) -> None:
    assert cause_of(raised(act)) == cause
    assert cause_of(f"the reference cannot be run:\n{raised(act)}") == f"the reference cannot be run: {cause}"


COMPILED = """Traceback (most recent call last):
  File "/s/kernel.py", line 2, in <module>
    load_inline()
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/s/kernel.py", line 3, in <module>
RuntimeError: Error building extension 'k': [1/2] c++ -MMD -c /s/main.cpp -o main.o
FAILED: main.o
/s/main.cpp: In function 'int f()':
{line}
    3 |     return x;
ninja: build stopped: subcommand failed.
"""


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("/s/main.cpp:3:12: error: 'x' was not declared", "main.cpp:3:12: error: 'x' was not declared"),
        (
            "/s/main.cpp:3:10: fatal error: no.h: No such file",
            "main.cpp:3:10: fatal error: no.h: No such file",
        ),
        (
            '/s/cuda.cu(12): error: identifier "x" is undefined',
            'cuda.cu(12): error: identifier "x" is undefined',
        ),
        ("ptxas fatal   : Unresolved extern function 'f'", "ptxas fatal : Unresolved extern function 'f'"),
        ("/usr/bin/ld: main.o: undefined reference to `g'", "ld: main.o: undefined reference to `g'"),
        (
            "all is well",
            "RuntimeError: Error building extension 'k': [1/2] c++ -MMD -c /s/main.cpp -o main.o",
        ),
    ],
)
def test_a_failed_compilation_gives_its_first_error(line: str, cause: str) -> None:
    assert cause_of(COMPILED.format(line=line)) == cause


def test_the_reason_below_the_code_is_found() -> None:
    log = (
        "Traceback (most recent call last):\n  File 'x', line 1, in visit\n"
        "triton.compiler.errors.CompilationError: at 5:4:\ndef kernel():\n    x = y\n    ^\n"
        "NameError('y is not defined')"
    )
    assert cause_of(log) == "triton.compiler.errors.CompilationError: at 5:4: NameError('y is not defined')"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("", ""),
        (" \n\n", ""),
        ("\n  wrong in 3 of 4 elements\nmore", "wrong in 3 of 4 elements"),
        ("it died of SIGSEGV\nTraceback (most recent call last):\n  x\nValueError: 3", "it died of SIGSEGV"),
        (
            "Traceback (most recent call last):\n  File 'cut off'\n[…]\n  more",
            "Traceback (most recent call last):",
        ),
        ("Traceback (most recent call last):\n  File 'x'\n[…]\n    x\nValueError: 3", "ValueError: 3"),
        ("a\x1b[31m red\tword\x00", "a [31m red word"),
    ],
)
def test_other_logs_begin_with_the_cause(log: str, cause: str) -> None:
    assert cause_of(log) == cause
    assert Evaluation(status=Status.CRASHED, log=log).cause == cause


def test_a_long_cause_is_cut() -> None:
    assert len(cause_of("x" * 10_000)) == MOST_CHARACTERS


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("\n  it is 3\nand more"), "it is 3"), (KeyError(), "KeyError"), (OSError(" \n"), "OSError")],
)
def test_the_first_line_of_an_error_is_not_blank(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_printable_text_is_one_line() -> None:
    assert printable(" a\x1b[31m b\n\tc ") == "a [31m b c"
