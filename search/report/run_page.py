"""Writes `report.html` of a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from evaluators.base.atomic_write import write_atomically
from search.report.html import render_page
from search.report.page_data import page_data
from search.report.run_frames import RunFrames, load_run
from search.report.texts import Texts

MOST_BYTES = 7_000_000
"""The largest size of a page; long texts are cut until it fits."""
SCRIPTS = (
    *("elements.js", "code.js", "layout.js", "tree.js", "diagnosis.js", "details.js"),
    *("list.js", "plots.js", "charts.js", "main.js"),
)


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the run in the folder to `out` (default `report.html` there); returns the file.
    Raises OSError and JournalError."""
    place = out or folder / "report.html"
    write_atomically(place, render(load_run(folder)))
    return place


def render(frames: RunFrames) -> str:
    """The whole page."""
    texts = Texts()
    data = page_data(frames, texts)
    run = data["run"]
    title = f"{run['problem']} on {run['device']}"
    page = partial(render_page, "run.html.j2", SCRIPTS, name=run["folder"], title=title, data=data)
    left = MOST_BYTES - len(page(texts="").encode("utf-8", "replace"))
    return page(texts=texts.packed(left))
