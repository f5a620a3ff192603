"""A run as pandas frames, for the report and for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from search.observers.calls import CallTexts, read_texts
from search.observers.rows import CALL, IDEA, ROUND, VARIANT, RunRows
from search.observers.run_progress import Progress
from search.records.events import Event
from search.records.journal import JOURNAL, JournalError, replay

if TYPE_CHECKING:
    import pandas as pd

LIMITS = ("evaluations", "seconds", "calls", "tokens", "dollars")
"""The limits of a budget, except rounds."""
NUMBERS = (
    *("kernel_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high"),
    *("speedup_vs_compile", "roofline_share", "own_share", "waited_s", "device_s", "build_s", "written_s"),
    *("evaluated_s", "gain", "correct_share", "wall_s", "elapsed_s", "dollars", "seconds", "at_s"),
)
"""Columns of floating-point numbers; NaN where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class RunFrames:
    """One run as data frames. Ideas, variants and calls are indexed by id, rounds by number;
    `docs/guides/report.md` lists the columns.

    Attributes:
        folder: The run's folder.
        ideas: One row per idea.
        variants: One row per variant.
        rounds: One row per round.
        calls: One row per model call.
        progress: The state of the run as the console shows it.
        texts: The questions and answers of models, by call id.
    """

    folder: Path
    ideas: pd.DataFrame
    variants: pd.DataFrame
    rounds: pd.DataFrame
    calls: pd.DataFrame
    progress: Progress = field(repr=False)
    texts: Mapping[str, CallTexts] = field(repr=False)


def load_run(folder: str | Path) -> RunFrames:
    """Loads the run in a folder, in progress or ended. Needs pandas.

    Raises:
        OSError: If there is no journal.
        JournalError: If the journal cannot be read, or is empty.
    """
    place = Path(folder)
    events = replay(place / JOURNAL)
    if not events:
        raise JournalError(f"{place / 'journal.jsonl'} is empty: the run has not started")
    return frames_of(events, place, read_texts(place))


def frames_of(events: Iterable[Event], folder: Path, texts: Mapping[str, CallTexts]) -> RunFrames:
    """The frames of a run with these events."""
    rows = RunRows(Progress(**_settings(folder)))
    for event in events:
        rows.apply(event)
    return RunFrames(
        folder=folder,
        ideas=_frame(rows.ideas(texts), IDEA),
        variants=_frame(rows.variants(texts), VARIANT),
        rounds=_frame(rows.rounds(), ROUND),
        calls=_frame(rows.calls(), CALL),
        progress=rows.progress,
        texts=texts,
    )


def _frame(rows: Iterable[dict[str, Any]], columns: str) -> pd.DataFrame:
    """A frame, indexed by the first of its columns."""
    import pandas as pd

    index, *others = columns.split()
    frame = pd.DataFrame(list(rows), columns=[index, *others])
    numbers = {name: "float64" for name in NUMBERS if name in frame}
    return frame.astype(numbers).set_index(index)


def _settings(folder: Path) -> dict[str, Any]:
    """The limits from the run folder's config, and whether the verdicts come from a recording."""
    path = folder / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    if not isinstance(config, dict):
        return {}
    budget, repeated = config.get("budget") or {}, config.get("replay") or {}
    limits = {name: budget.get(name) for name in LIMITS}
    rounds = config.get("rounds") or budget.get("rounds")
    return {**limits, "rounds": rounds, "recorded": bool(repeated.get("run") and repeated.get("evaluations"))}
