"""A run, in progress or ended, read from its journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from kernel_library.catalogue.entry import Entry
from search.engine.library_winner import winner_entry
from search.recordings.verdicts import recording_folder
from search.records.events import Event
from search.records.journal import JOURNAL, recorded_state, replay
from search.records.run_state import RunState
from search.records.tree import Idea, Variant
from search.report.run_frames import RunFrames, load_run
from search.report.run_page import write_report


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        folder: the run's folder.
        state: the search's state, rebuilt from the journal when the run was opened.
    """

    folder: Path
    state: RunState = field(repr=False)

    @property
    def problem(self) -> Problem:
        """The problem of the search."""
        assert self.state.started is not None
        return self.state.started.problem

    @property
    def best(self) -> Variant | None:
        """The winner or, while the run is in progress, the fastest so far. None if no variant is correct."""
        if self.state.finished is not None:
            return self.state.finished.best
        return next(iter(self.state.tree.best(1)), None)

    @property
    def confirmed(self) -> Evaluation | None:
        """The winner's final measurement; None before the end, or without a winner."""
        return self.state.finished.confirmed if self.state.finished else None

    @property
    def reason(self) -> str:
        """Why it ended (`rounds`, `seconds`, `interrupted`, …); "" if it is in progress or was killed."""
        return self.state.finished.reason if self.state.finished else ""

    @property
    def ideas(self) -> list[Idea]:
        """All ideas, in order."""
        return list(self.state.tree.ideas.values())

    @property
    def variants(self) -> list[Variant]:
        """All variants, in order, each with its evaluation once it has one."""
        return list(self.state.tree.variants.values())

    def lineage(self, variant: Variant) -> list[Variant]:
        """The variant's ancestors, the first one first, then the variant itself."""
        return self.state.tree.lineage(variant)

    def entry(self) -> Entry:
        """The winner as an entry for a library (`ideatree.open_library(…).add`), with the final
        measurement and the ideas that led to it.

        Raises:
            ValueError: The run has no winner with a final measurement.
        """
        if self.best is None or self.confirmed is None:
            raise ValueError(f"{self.folder}: the run has no winner with a final measurement")
        return winner_entry(self.problem, self.state.tree, self.folder.name, self.best, self.confirmed)

    def frames(self) -> RunFrames:
        """Ideas, variants, rounds and model calls as pandas frames, from the journal's current contents.
        Needs pandas."""
        return load_run(self.folder)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the report to `out` (default: `report.html` in the folder) and returns the file. Needs
        pandas and Plotly."""
        return write_report(self.folder, None if out is None else Path(out))

    @cached_property
    def events(self) -> list[Event]:
        """All events in the journal."""
        return list(replay(self.folder / JOURNAL))


def open_run(folder: str | Path) -> Run:
    """Opens a run.

    Args:
        folder: a run's folder, or the name of a shipped recording.

    Returns:
        The run, with its state as of now.

    Raises:
        OSError: there is no run.
        JournalError: the journal is not valid.
    """
    place = recording_folder(str(folder))
    return Run(folder=place, state=recorded_state(place))
