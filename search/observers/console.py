"""A run as a live view on a terminal: closed rounds scroll by, current work stays visible."""

from __future__ import annotations

import atexit
import sys
import threading
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from search.observers import wording
from search.observers.live_view import closing_view, live_view, round_line
from search.observers.plain import PlainConsole
from search.observers.run_progress import Progress
from search.protocols import Observer
from search.records.events import Event, RoundClosed, RoundReflected, RunFinished, RunStarted

FRAMES_PER_S = 4
"""Enough for the spinners. Drawing a view takes about 5 ms, on the CPU that may be timing kernels."""


def console_observer(to: Console | IO[str] | None = None, **progress: Any) -> Observer:
    """The live view if `to` (None: standard output) is a terminal that supports it, otherwise plain lines.

    `progress` are the arguments of `Progress`: the budget's limits and the events of the past.
    """
    target = sys.stdout if to is None else to
    console = target if isinstance(target, Console) else Console(file=target)
    terminal = console.is_terminal if isinstance(target, Console) else target.isatty()
    if terminal and not console.is_dumb_terminal and console.encoding.startswith("utf"):
        return LiveConsole(console=console, **progress)
    return PlainConsole(stream=console.file, **progress)


class LiveConsole:
    """Draws the run on `console` while it lasts, and its closing table at the end.

    Give the same console to a `rich.logging.RichHandler`, so that log lines scroll by above the view.
    `progress` are the arguments of `Progress`.
    """

    def __init__(self, *, console: Console, **progress: Any) -> None:
        self._console = console
        self._progress = Progress(**progress)
        # rich draws from its own thread and holds its own lock when it asks for the view. This lock is never
        # held while printing; otherwise the two threads could wait for each other.
        self._lock = threading.Lock()
        self._live: Live | None = None

    def on_event(self, event: Event) -> None:
        """Shows the changes that the event makes."""
        with self._lock:
            self._progress.apply(event)
            lines = self._lines_that_stay(event)
        if isinstance(event, RunStarted):
            self._start()
        for line in lines:
            self._console.print(line, no_wrap=True, overflow="ellipsis")
        if isinstance(event, RunFinished):
            self._finish()

    def close(self) -> None:
        """Restores the terminal. Shows the closing table of a run that ended without a RunFinished event."""
        self._finish()

    def _lines_that_stay(self, event: Event) -> list[RenderableType]:
        progress = self._progress
        if isinstance(event, RoundClosed):
            return [round_line(progress, progress.rounds[event.round], self._console)]
        if isinstance(event, RoundReflected):
            return [Text(wording.reflection(event.reflection), "bright_black")]
        if isinstance(event, RunStarted) and self._live is None:
            return [round_line(progress, summary, self._console) for summary in progress.summaries]
        return []

    def _start(self) -> None:
        if self._live is not None:
            return
        self._live = Live(
            get_renderable=self._view, console=self._console, refresh_per_second=FRAMES_PER_S, transient=True
        )
        # Restores the cursor even if the process ends early.
        atexit.register(self._live.stop)
        self._live.start(refresh=True)

    def _finish(self) -> None:
        if self._live is None:
            return
        self._live.stop()
        atexit.unregister(self._live.stop)
        self._live = None
        with self._lock:
            closing = closing_view(self._progress, self._console)
        self._console.print(closing)

    def _view(self) -> RenderableType:
        with self._lock:
            return live_view(self._progress, self._console, int(self._progress.clock() * FRAMES_PER_S))
