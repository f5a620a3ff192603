"""Text of others in a comment: Python reads nothing in it, and a terminal neither."""

from __future__ import annotations

import tokenize
from io import BytesIO

import pytest

from evaluators.base.source_comment import WIDTH, source_comment

SOURCE = "x = 'ß'\n"


@pytest.mark.parametrize(
    "text",
    [
        "Use delta encoding: store differences",
        "coding: latin-1",
        "-*- coding: rot13 -*-",
        "vim: set fileencoding=utf-16 :",
        "encoding=utf-7 " * 40,
        "recoding:coding:coding= x",
        "a\x00b\x1b[31mred\x1b[0m\x07",
        "right \u202e to left \u2066 and \u200b nothing",
        "a line\nclass ModelNew: pass\r\x0c\x0b\u2028import os\x85raise SystemExit",
        "a lone \udc80 surrogate",
        "x" * 1000,
        "",
    ],
)
def test_no_text_changes_the_code_below_it(text: str) -> None:
    comment = source_comment(text)
    assert all(line.startswith("# ") and line[2:].isprintable() for line in comment.splitlines())
    assert all(len(line) <= 2 * WIDTH for line in comment.splitlines())
    data = (comment + SOURCE).encode()
    assert tokenize.detect_encoding(BytesIO(data).readline)[0] == "utf-8"
    found: dict[str, str] = {}
    exec(compile(data, "kernel.py", "exec"), found)
    assert found["x"] == "ß"


def test_the_text_stays_readable() -> None:
    said = source_comment("Use delta encoding: store differences")
    assert said == "# Use delta encoding : store differences\n"
