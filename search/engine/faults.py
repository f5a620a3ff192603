"""Names the plug-in at fault when an error ends a search.

A search calls strategies, proposers, model providers, libraries and pools that others may have written. They
all run inside the engine's tasks, so an error's traceback tells them apart.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from evaluators.base.cause import printable
from evaluators.base.system_error import system_error
from evaluators.base.usage_error import UsageError


@dataclass(frozen=True, kw_only=True)
class PlugIn:
    """A part that a search was given: its kind ("strategy"), and the name and module of its class."""

    kind: str
    name: str
    module: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.module})"


def plug_in(kind: str, part: object) -> PlugIn:
    """The plug-in that an object is."""
    return PlugIn(kind=kind, name=type(part).__name__, module=type(part).__module__)


def fault(error: BaseException, plug_ins: Sequence[PlugIn] = ()) -> str:
    """The error in one line: the plug-in that raised it, if one did, then its type and message."""
    said = system_error(error) or f"{type(error).__name__}: {error}".removesuffix(": ")
    found = plug_in_of(error, plug_ins)
    return printable(said if found is None else f"{found}: {said}")


def plug_in_of(error: BaseException, plug_ins: Sequence[PlugIn]) -> PlugIn | None:
    """The plug-in that the innermost of the traceback's functions belongs to: as a method of its class or,
    failing that, as a function of its module. None if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    by_class = {(each.module, each.name): each for each in plug_ins}
    by_module = {each.module: each for each in plug_ins}
    classes = (by_class[owner] for frame in frames for owner in _owners(frame) if owner in by_class)
    modules = (by_module[module] for frame in frames if (module := _module(frame)) in by_module)
    return next(classes, None) or next(modules, None)


def _owners(frame: FrameType) -> Iterator[tuple[str, str]]:
    """The class whose method the frame runs: that of `self`, and the one that the method was written in."""
    if "self" in frame.f_locals:
        owner = type(frame.f_locals["self"])
        yield owner.__module__, owner.__name__
    yield _module(frame), frame.f_code.co_qualname.partition(".")[0]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@contextlib.contextmanager
def naming(plug_ins: Sequence[PlugIn]) -> Iterator[None]:
    """An unexpected error in the block ends with a line about the plug-in that raised it, below its
    traceback."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if (found := plug_in_of(error, plug_ins)) is not None:
            error.add_note(f"{found} failed")
        raise
