"""Keeps the report of a run up to date during the run."""

from __future__ import annotations

from pathlib import Path

from search.records.events import Event, RoundClosed, RunFinished
from search.report.run_page import write_report


class ReportObserver:
    """An observer that writes `report.html` into the run's folder when a round closes, and at the end.

    It does so in the calling thread: with synchronous rounds no kernel is being measured then. It takes 0.45
    s of one core of a Xeon for 520 variants with 13 MB of journal and calls, 0.15 s for 42.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_event(self, event: Event) -> None:
        """Writes the report after a round or the run has ended."""
        if isinstance(event, RoundClosed | RunFinished):
            write_report(self._folder)

    def close(self) -> None:
        """Does nothing: the report is complete after each event."""
