"""Models and observers to order for the engine, runs that are stopped, journals that are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search.records.events import Event, RunFinished
from search.records.journal import Journal
from search.records.model_calls import CallFailed, Purpose, Question
from search.records.run_state import RunState
from tests.search.fakes import Recorder, ScriptedModel, build, code_answer, ideas_answer, state_of


def scripted(**more: Any) -> ScriptedModel:
    """A model with something new for every question."""
    asked = iter(range(10**6))

    def answer(question: Question) -> str | CallFailed:
        number = next(asked)
        if question.purpose is not Purpose.IDEAS:
            return code_answer(number)
        assert question.schema is not None
        (seed,) = question.schema["properties"]["ideas"]["items"]["properties"]["seed"]["enum"]
        return ideas_answer(
            *(f"idea {number} {word}" for word in ("red", "green", "blue", "grey")), seed=seed
        )

    return ScriptedModel(answer, **more)


class Nosy(Recorder):
    """Does something at the n-th event of a kind."""

    def __init__(self, kind: type[Event], n: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.kind, self.left, self.act = kind, n, act

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if isinstance(event, self.kind):
            self.left -= 1
            if self.left == 0:
                self.act()


def stopped(path: Path, *, kind: type[Event], n: int, **parts: Any) -> RunFinished:
    """A run that is asked to stop at the n-th event of a kind."""
    with Journal(path) as journal:
        engine = build(journal, **parts)
        engine.session.observers = (Nosy(kind, n, lambda: engine.request_stop("interrupted")),)
        return asyncio.run(engine.run())


def cut(source: Path, target: Path, lines: int) -> RunState:
    """A journal of the first lines of another; returns what it says."""
    target.write_text("".join(source.read_text().splitlines(keepends=True)[:lines]))
    return state_of(target)
