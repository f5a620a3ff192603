"""A run as plain lines, for logs and pipes."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from typing import IO, Any

from search.observers import wording
from search.observers.run_progress import Progress
from search.records.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    LeadersCompared,
    RoundClosed,
    RoundReflected,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantJudgedInFull,
)
from search.records.ranking import unconfirmed
from search.records.tree import Variant

logger = logging.getLogger(__name__)

WIDTH = 100
"""Columns of a line."""
CUT = ("idea", "variant", "best")
"""Kinds of lines that are cut at the line's end; the journal has their full texts. Other lines are
wrapped."""


class PlainConsole:
    """Writes lines `[seconds] kind ...` to the stream, and the closing table at the end; no escape sequences.

    `progress` are the arguments of `Progress`.
    """

    def __init__(self, *, stream: IO[str], **progress: Any) -> None:
        self._stream: IO[str] | None = stream
        self._progress = Progress(**progress)
        self._open = False

    def on_event(self, event: Event) -> None:
        """Writes the event's lines, if it has any."""
        before = self._progress.best
        self._progress.apply(event)
        for kind, text in self._lines(event, before):
            self._say(f"[{event.at_s:8.1f}s] {kind:<9} ", text, cut=kind in CUT)
        self._open = self._open or isinstance(event, RunStarted)
        if isinstance(event, RunFinished):
            self._closing()

    def close(self) -> None:
        """Writes the closing table of a run that ended without a RunFinished event."""
        self._closing()

    def _lines(self, event: Event, before: Variant | None) -> Iterator[tuple[str, str]]:
        progress = self._progress
        match event:
            case RunStarted(problem=problem) if not self._open:
                policy = f"proposer={event.proposer} strategy={event.strategy} seed={event.seed}"
                rounds, evaluations = (
                    limit or "unlimited" for limit in (progress.rounds_limit, progress.evaluations_limit)
                )
                limits = f"rounds={rounds} evaluations={evaluations}" + "".join(
                    f" {name}={limit}" for name, limit in progress.model_limits.items() if limit
                )
                resumed = f" resumed after round {progress.rounds_closed}" if progress.rounds else ""
                yield "run", f'problem={problem.name} device="{wording.device(progress)}"'
                yield "run", f"{policy} {limits}{resumed}"
            case IdeaProposed(idea=idea):
                place = f"{_place(idea.round, event.number)} {idea.id} from {wording.short_id(idea.parent)}"
                # Always with the model: a written line cannot be changed when another model takes part later.
                yield "idea", f"{place}: {wording.label(progress, idea.id, with_model=True)}"
            case VariantEvaluated() | VariantJudgedInFull():
                variant = event.variant
                yield "variant", self._verdict(variant, reused=event.reused)
                if progress.best is not None and progress.best is not before:
                    name = wording.label(progress, variant.idea)
                    yield "best", f"{_timing(progress.best)} variant {variant.id}, {name}"
            case RoundClosed(round=round):
                yield "round", self._round(round)
                if (spent := progress.spent).calls:
                    cost = wording.cost(spent, progress.model_limits, causes=progress.causes)
                    yield "models", "; ".join(cost)
            case RoundReflected(reflection=reflection):
                yield "note", wording.reflection(reflection)
            case LeadersCompared(variants=variants):
                best = f"{progress.best.id} {_timing(progress.best)}" if progress.best else "none"
                yield "leaders", f"compared {len(variants)} variants in one session, best={best}"
            case BestConfirmed(variant=variant, evaluation=evaluation):
                figures = wording.gain(evaluation.timing) if evaluation.timing else ""
                why = unconfirmed(evaluation)
                text = f"{variant.id} {evaluation.status.value} {figures}".rstrip()
                yield "measured", text + (f", not confirmed: {why}" if why else ", confirmed")
            case RunFinished(reason=reason):
                yield "finished", reason

    def _verdict(self, variant: Variant, *, reused: bool) -> str:
        item = self._progress.ideas[variant.idea]
        place = f"{_place(item.round, item.number)}.{item.variants[variant.id].number} {variant.id}"
        if variant.evaluation is None:
            return place
        status, reason = variant.evaluation.status.value, wording.why_not_correct(variant.evaluation)
        text = _timing(variant) if variant.timing else reason
        return f"{place} {status} {text}".rstrip() + wording.repairs(variant) + " (reused)" * reused

    def _round(self, number: int) -> str:
        summary, limit = self._progress.rounds[number], self._progress.rounds_limit
        figures = f"ideas={summary.ideas} evals={summary.evaluations}"
        correct = wording.share(summary.correct_share).replace(" ", "")
        best = _timing(summary.best) if summary.best else "none"
        left = self._progress.remaining_s
        eta = "" if left is None else f" left=~{wording.duration(left)}"
        return f"{number}{f'/{limit}' if limit else ''} {figures} correct={correct} best={best}{eta}"

    def _closing(self) -> None:
        if not self._open:
            return
        self._open = False
        rows = [wording.COLUMNS, *wording.trajectory(self._progress)]
        self._write("")
        for figures, row in zip(wording.aligned(rows), rows, strict=True):
            self._say(f"{figures}  ", row[-1], cut=True)
        self._write("")
        for heading, text in wording.winner(self._progress):
            self._say(f"{heading + ':':<10} ", text)

    def _say(self, start: str, text: str, *, cut: bool = False) -> None:
        """Writes the start and the text, cut at the line's end or wrapped below the text's beginning."""
        if cut:
            self._write(wording.shorten(start + text, WIDTH))
            return
        first, *more = textwrap.wrap(text, WIDTH - len(start), break_on_hyphens=False) or [""]
        for line in [start + first, *(" " * len(start) + each for each in more)]:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except (OSError, ValueError) as error:  # the pipe's reader has gone; the search continues
            self._stream = None
            logger.warning("progress output stopped (%s); the journal has everything", error)


def _place(round: int, number: int) -> str:
    return f"r{round:02d}.{number:02d}"


def _timing(variant: Variant) -> str:
    return wording.gain(variant.timing) if variant.timing else "none"
