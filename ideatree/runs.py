"""A run, in progress or ended, as its journal tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from search.recordings.verdicts import recording_folder
from search.records.events import Event
from search.records.journal import replay
from search.records.run_state import RunState, rebuild
from search.records.tree import Idea, Variant
from search.report.run_frames import RunFrames, load_run
from search.report.run_page import write_report


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    folder: Path
    state: RunState = field(repr=False)

    @property
    def problem(self) -> Problem:
        """What is searched."""
        assert self.state.started is not None
        return self.state.started.problem

    @property
    def best(self) -> Variant | None:
        """The winner; while the run goes on, the fastest so far. None where no variant is correct."""
        if self.state.finished is not None:
            return self.state.finished.best
        return next(iter(self.state.tree.best(1)), None)

    @property
    def confirmed(self) -> Evaluation | None:
        """The winner's final measurement; None where there is none (yet)."""
        return self.state.finished.confirmed if self.state.finished else None

    @property
    def reason(self) -> str:
        """Why it ended (`rounds`, `seconds`, `interrupted`, …); "" while it goes on, or was killed."""
        return self.state.finished.reason if self.state.finished else ""

    @property
    def ideas(self) -> list[Idea]:
        """All of them, in their order."""
        return list(self.state.tree.ideas.values())

    @property
    def variants(self) -> list[Variant]:
        """All of them, in their order, each with its verdict once it has one."""
        return list(self.state.tree.variants.values())

    def lineage(self, variant: Variant) -> list[Variant]:
        """From the first of its ancestors to the variant itself."""
        return self.state.tree.lineage(variant)

    def frames(self) -> RunFrames:
        """Ideas, variants, rounds and calls as pandas frames, of what the journal has now. Needs pandas."""
        return load_run(self.folder)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes `report.html` into the folder, or to `out`; returns the file. Needs pandas and Plotly."""
        return write_report(self.folder, None if out is None else Path(out))

    @cached_property
    def events(self) -> list[Event]:
        """All that happened, as the journal has it."""
        return list(replay(self.folder / "journal.jsonl"))


def open_run(folder: str | Path) -> Run:
    """The run in a folder, or a shipped recording, by its name. Raises OSError where there is none, and
    JournalError for a journal that cannot be read."""
    place = recording_folder(str(folder))
    return Run(folder=place, state=rebuild(replay(place / "journal.jsonl")))
