"""Helpers for the sandbox tests: run a function in a confined child process and name the errors that it
gets."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evaluators.isolation import confinement, namespaces

SECRET = "sk-planted-for-the-test"
REFUSED = ("EACCES", "EPERM", "EXDEV", "ESRCH", "EROFS", "ENETUNREACH")


def confined(
    body: Callable[[], Any],
    scratch: Path,
    *,
    isolate: bool = True,
    readable: tuple[Path, ...] = (),
    devices: tuple[Path, ...] = (),
    cores: tuple[int, ...] = (),
    cpu_s: int = 30,
) -> tuple[Any, list[str]]:
    """The result of `body` in a confined child, and the mechanisms in force."""
    read, write = os.pipe()

    def child(level: str) -> None:
        os.close(read)
        reached = confinement.confine(
            scratch, readable=readable, devices=devices, cores=cores, cpu_s=cpu_s, max_processes=4096
        )
        try:
            answer = body()
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(write, json.dumps([answer, [*reached, level]]).encode())

    pid = namespaces.spawn(child, isolate=isolate)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        data = answers.read()
    os.waitpid(pid, 0)
    assert data, "the confined process died"
    answer, reached = json.loads(data)
    return answer, reached


@cache
def mechanisms() -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        return tuple(confined(lambda: None, Path(folder))[1])


def needs(*wanted: str) -> None:
    for mechanism in wanted:
        if mechanism not in mechanisms():
            pytest.skip(f"this machine gives no {mechanism} to an unprivileged user")


def attempt(action: Callable[[], object]) -> str:
    """ "done", or the name of the error."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"
