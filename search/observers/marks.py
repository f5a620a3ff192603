"""The glyphs, words and colours that the live console uses for statuses, stages and categories."""

from __future__ import annotations

from dataclasses import dataclass

from evaluators.records.evaluation import Status
from search.records.tree import Category


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The look of one state of a variant; a `glyph` of several characters has the frames of a spinner."""

    glyph: str
    word: str
    style: str


MARKS = {
    Status.CORRECT: Mark(glyph="✓", word="correct", style="green"),
    Status.COMPILE_ERROR: Mark(glyph="✗", word="build", style="red"),
    Status.RUNTIME_ERROR: Mark(glyph="!", word="error", style="red"),
    Status.INCORRECT: Mark(glyph="≠", word="wrong", style="yellow"),
    Status.TIMEOUT: Mark(glyph="∞", word="time", style="magenta"),
    Status.CRASHED: Mark(glyph="†", word="crash", style="bright_red"),
    Status.REJECTED: Mark(glyph="⊘", word="cheat", style="bold magenta"),
    Status.DECLINED: Mark(glyph="–", word="declined", style="bright_black"),
    Status.OUTPACED: Mark(glyph="‹", word="slower", style="bright_black"),
    Status.UNFIT_REFERENCE: Mark(glyph="∅", word="unfit", style="bright_black"),
    Status.INFRASTRUCTURE_ERROR: Mark(glyph="?", word="infra", style="bright_black"),
}
BEST = Mark(glyph="★", word="best", style="bold bright_green")
WAITING = Mark(glyph="·", word="queued", style="bright_black")
RUNNING = Mark(glyph="⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", word="runs", style="cyan")
WAITING_STAGES = ("written", "queued", "waiting")
WRITING = Mark(glyph="✎", word="write", style="cyan")
REPAIR = "↻"
STAGE_WORDS = {
    "building": "build",
    "evaluating": "runs",
    "measuring": "start",
    "loading": "load",
    "checking": "check",
    "counting": "count",
    "timing": "timing",
    "ending": "end",
}

CATEGORY_WORDS = {
    Category.MEMORY: ("memory", "blue"),
    Category.LATENCY: ("latency", "cyan"),
    Category.PRECISION: ("dtype", "magenta"),
    Category.COMPUTE: ("compute", "yellow"),
    Category.PARALLELISM: ("parallel", "green"),
    Category.CONTROL_FLOW: ("control", "red"),
}
