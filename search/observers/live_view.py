"""The contents of the live console: renderables of rich, made from a `Progress`; no state, no terminal.

A variant's state shows as a glyph with a word or a figure, in addition to a colour, never by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from evaluators.base.cause import printable
from evaluators.records.evaluation import Status
from search.observers import wording
from search.observers.marks import (
    BEST,
    CATEGORY_WORDS,
    MARKS,
    REPAIR,
    RUNNING,
    STAGE_WORDS,
    WAITING,
    WAITING_STAGES,
    WRITING,
    Mark,
)
from search.observers.progress_items import IdeaProgress, RoundSummary, VariantProgress
from search.observers.run_progress import Progress
from search.records.tree import Idea, Variant

WIDE = 110
"""Columns from which an idea and its variants share one line."""
NAMING = 80
"""Columns from which there is room for a model's name next to its idea."""
DOT = " · "
CELL = 8
"""Columns of a variant's cell: a glyph, a space, six characters."""


def live_view(progress: Progress, console: Console, frame: int) -> RenderableType:
    """Everything that changes during the run, fitted to the terminal. `frame` drives the spinners."""
    view = _View(progress, console, frame)
    return Group(Text(), *view.header(), Text(), *view.ideas(), Text(), *view.footer())


def round_line(progress: Progress, summary: RoundSummary, console: Console) -> Text:
    """A closed round as one line, which stays on the terminal."""
    view, wide = _View(progress, console, 0), console.width >= WIDE
    limit = progress.rounds_limit
    number = f"{summary.round:>{len(str(limit or 0))}}" + (f"/{limit}" if limit else "")
    line = Text("round ", style="bright_black", no_wrap=True, overflow="ellipsis")
    line.append(number, "bold")
    if wide:
        line.append(f"  {summary.ideas} ideas  {summary.evaluations} evaluations", "bright_black")
    line.append(f"  {wording.share(summary.correct_share):>5} correct", "bright_black")
    timing = summary.best.timing if summary.best else None
    if summary.best is None or timing is None:
        return line.append("  no correct kernel yet")
    style = "bold green" if summary.improved else "bright_black"
    short = f"{wording.milliseconds(timing.kernel_ms)} ms  {wording.times(timing.speedup)}"
    line.append(f"  {wording.gain(timing) if wide else short}", style)
    if not summary.improved:
        return line.append(f"  unchanged since round {summary.best.round}", "bright_black")
    line.append(f"  {view.mark(BEST)} ", BEST.style)
    return line.append_text(view.idea(summary.best))


def closing_view(progress: Progress, console: Console) -> RenderableType:
    """The trajectory, the winner and the counts, once the run is over."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(style="bright_black", no_wrap=True)
    lines.add_column(overflow="fold")
    for heading, text in wording.winner(progress):
        lines.add_row(heading, Text(text, _closing_style(heading, text)))
    return Group(Text(), *_trajectory(progress, console), Text(), lines)


def _trajectory(progress: Progress, console: Console) -> Iterator[RenderableType]:
    """The table of rounds; on a narrow terminal the ideas go below their rounds, at full width."""
    wide = console.width >= WIDE
    rows = wording.trajectory(progress)
    heads, *bodies = wording.aligned([wording.COLUMNS, *rows], gap="  " if wide else " ")
    yield Text(f"{heads}  {wording.COLUMNS[-1]}" if wide else heads, "bold")
    yield Text("─" * console.width, "bright_black")
    for summary, row, figures in zip(progress.summaries, rows, bodies, strict=True):
        style = "" if summary.improved else "bright_black"
        text, idea = Text(row[-1], style), summary.best and progress.idea_of(summary.best)
        if idea and summary.improved:
            text.stylize(CATEGORY_WORDS[idea.category][1], 0, len(idea.category.value))
        if wide or not summary.improved:
            line = Table.grid(padding=(0, 2, 0, 0))
            line.add_column(no_wrap=True, width=cell_len(figures))
            line.add_column(overflow="fold")
            line.add_row(Text(figures, style), text)
            yield line
        else:
            yield Text(figures, style)
            yield Padding(text, (0, 0, 0, 4))


def _closing_style(heading: str, text: str) -> str:
    if heading == "confirmed":
        return "bold red" if text.startswith("NO") else BEST.style if text.startswith("yes") else "yellow"
    return "bold" if heading in ("winner", "idea") else ""


class _View:
    """The parts of the view, for one state, one terminal and one frame of the spinners."""

    def __init__(self, progress: Progress, console: Console, frame: int) -> None:
        self.progress = progress
        self.width, self.height = console.size
        self.frame = frame

    def mark(self, mark: Mark) -> str:
        return mark.glyph[self.frame % len(mark.glyph)]

    def line(self, *parts: str | tuple[str, str] | Text) -> Text:
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")

    def apart(self, left: Text, right: Text) -> Table:
        """Two texts at the two ends of a line; the left one is shortened if necessary."""
        table = Table.grid(expand=True, padding=(0, 1, 0, 0))
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        table.add_row(left, right)
        return table

    # The header: what runs where, its progress, and what the budget has left.

    def header(self) -> list[RenderableType]:
        progress, started = self.progress, self.progress.started
        if started is None:
            return [Text("Ideatree")]
        policy = f"{started.proposer}/{started.strategy}"
        left = self.line(
            (printable(started.problem.name), "bold"),
            (DOT + wording.device(progress) + DOT + policy, "bright_black"),
        )
        of = f" of {progress.rounds_limit}" if progress.rounds_limit else ""
        place = self.apart(left, Text(f"round {progress.round}{of}", "bold cyan"))
        return [place, self._pace(), *([self._models()] if progress.spent.calls else [])]

    def _pace(self) -> Table:
        progress, wide = self.progress, self.width >= WIDE
        parts = [f"{wording.duration(progress.elapsed_s)} elapsed"]
        if progress.remaining_s is not None:
            parts.append(f"{'about ' if wide else '~'}{wording.duration(progress.remaining_s)} left")
        done, of = str(progress.evaluations), progress.evaluations_limit
        done = done if of is None else f"{done} of {of}" if wide else f"{done}/{of}"
        parts.append(f"{done} {'evaluations' if wide else 'evals'}")
        if progress.seconds_left is not None:
            parts.append(f"{wording.duration(progress.seconds_left)} budget left")
        right = Text(DOT.join(parts), "bright_black")
        return self.apart(self._bar(self.width - right.cell_len - 2), right)

    def _models(self) -> Text:
        progress, of = self.progress, " of " if self.width >= WIDE else "/"
        text = DOT.join(wording.cost(progress.spent, progress.model_limits, of=of))
        return Text(text, "bright_black", justify="right", no_wrap=True, overflow="ellipsis")

    def _bar(self, width: int) -> Text:
        done = round(max(0, width) * self.progress.fraction)
        return Text.assemble(("━" * done, "cyan"), ("─" * (max(0, width) - done), "bright_black"))

    # The ideas of the open round, in the widest layout that fits the terminal.

    def ideas(self) -> list[RenderableType]:
        items = self.progress.in_round
        if not items:
            return [self._between_rounds()]
        room = max(1, self.height - (11 if self.progress.spent.calls else 9))
        cells = {item.id: self._cells(item) for item in items}
        most = max(map(len, cells.values()))
        if most * (CELL + 1) <= self.width - 68 or (
            self.width >= WIDE and most * (CELL + 1) <= self.width // 2
        ):
            return self._rows(items, room, lambda item: Text(" ").join(cells[item.id]), most * (CELL + 1) - 1)
        per_line = max(1, (self.width - 4) // (CELL + 1))
        if sum(1 + math.ceil(len(cells[item.id]) / per_line) for item in items) <= room:
            return [part for item in items for part in self._stacked(item, cells[item.id], per_line)]
        return self._rows(items, room, self._strip, most + 8)

    def _between_rounds(self) -> Text:
        progress = self.progress
        if progress.finished:
            return Text(progress.finished.reason, "bright_black")
        over = progress.round in progress.rounds
        doing = "measuring the winner again" if over else f"proposing ideas for round {progress.round}"
        return Text(f"{self.mark(RUNNING)} {doing}", RUNNING.style)

    def _rows(
        self, items: list[IdeaProgress], room: int, right: Callable[[IdeaProgress], Text], width: int
    ) -> list[RenderableType]:
        shown, hidden = items, 0
        if len(items) > room:
            by_need = sorted(items, key=lambda item: (not item.open, -item.number))[: room - 1]
            shown, hidden = sorted(by_need, key=lambda item: item.number), len(items) - len(by_need)
        table = Table.grid(expand=True, padding=(0, 2, 0, 0) if self.width >= WIDE else (0, 1, 0, 0))
        table.add_column(justify="right", style="bright_black", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=12 if self.width >= WIDE else 8)
        table.add_column(no_wrap=True, width=max(width, 9))
        for item in shown:
            table.add_row(
                str(item.number), self._category(item), self._text(item), self._from(item), right(item)
            )
        more = f"   and {hidden} more {'idea' if hidden == 1 else 'ideas'}"
        return [table, Text(more, "bright_black")] if hidden else [table]

    def _stacked(self, item: IdeaProgress, cells: list[Text], per_line: int) -> list[RenderableType]:
        head = self.line((f"{item.number:>2} ", "bright_black"), self._category(item), " ", self._text(item))
        lines = [cells[i : i + per_line] for i in range(0, len(cells), per_line)]
        return [
            self.apart(head, self._from(item)),
            *(Text("    ").append_text(Text(" ").join(line)) for line in lines),
        ]

    def _category(self, item: IdeaProgress) -> Text:
        word, style = CATEGORY_WORDS[item.idea.category] if item.idea else ("", "")
        return Text(f"{word:<8}", style)

    def _text(self, item: IdeaProgress) -> Text:
        if item.idea is None:
            return Text(wording.label(self.progress, item.id))
        style = "bright_black" if item.best is None and not item.open else ""
        return self.line(self._by(item.idea), (printable(item.idea.text), style))

    def _by(self, idea: Idea) -> tuple[str, str]:
        """The model that had the idea, if there are several models and enough room."""
        named = idea.model and self.progress.several_models and self.width >= NAMING
        name = wording.shorten(wording.short_model(idea.model), 20) + DOT if named else ""
        return name, "bright_black"

    def _from(self, item: IdeaProgress) -> Text:
        return Text("← " + wording.short_id(item.idea.parent), "bright_black") if item.idea else Text()

    # A variant: a cell with a word or a speedup, or only a glyph in the strip.

    def _cells(self, item: IdeaProgress) -> list[Text]:
        """One cell per variant, and one for the variants still to be written."""
        cells = [self._cell(cell) for cell in sorted(item.variants.values(), key=lambda cell: cell.number)]
        return cells if item.implemented else [*cells, self._writing()]

    def _writing(self) -> Text:
        return Text(f"{self.mark(WRITING)} {WRITING.word:<{CELL - 2}}", WRITING.style)

    def _cell(self, cell: VariantProgress) -> Text:
        mark = self._mark_of(cell)
        word = mark.word
        if (timing := cell.variant.timing) is not None:
            word = wording.times(timing.speedup)
        elif cell.variant.evaluation is None and mark is RUNNING:
            word = STAGE_WORDS.get(cell.stage, printable(cell.stage)[:6])
        text = f"{self.mark(mark)}{REPAIR if cell.variant.repairs else ' '}{word}{'=' if cell.reused else ''}"
        return Text(f"{text:<{CELL}}"[:CELL], mark.style)

    def _mark_of(self, cell: VariantProgress) -> Mark:
        if cell.variant.evaluation is None:
            return WAITING if cell.stage in WAITING_STAGES else RUNNING
        best = self.progress.best
        return BEST if best and best.id == cell.variant.id else MARKS[cell.variant.evaluation.status]

    def _strip(self, item: IdeaProgress) -> Text:
        cells = sorted(item.variants.values(), key=lambda cell: cell.number)
        if not cells:
            return self._writing()
        marks = [self._mark_of(cell) for cell in cells] + ([] if item.implemented else [WRITING])
        text = Text.assemble(*((self.mark(mark), mark.style) for mark in marks))
        best = item.best.evaluation if item.best else None
        return text.append(f" {wording.times(best.speedup)}", "green") if best else text

    # The footer: the best so far, and counts, which also explain the glyphs.

    def footer(self) -> list[RenderableType]:
        lines = [self._best(), self._counts()]
        if (failure := self.progress.failure) is not None:
            lines.append(self.line((f"model: {wording.failure(failure)}", "yellow")))
        return [*lines]

    def _best(self) -> Text:
        best = self.progress.best
        if best is None or (timing := best.timing) is None:
            return self.line(("no correct kernel yet", "bright_black"))
        figures = wording.gain(timing)
        if self.width >= WIDE:
            figures += f"  eager {wording.milliseconds(timing.eager_ms)} ms"
        place = f"  round {best.round}  " if self.width >= WIDE else f"  r{best.round} "
        return self.line(
            (f"{self.mark(BEST)} {figures}", BEST.style), (place, "bright_black"), self.idea(best)
        )

    def idea(self, variant: Variant) -> Text:
        """A variant's idea: its category in colour, then its text."""
        idea = self.progress.idea_of(variant)
        if idea is None:
            return Text(wording.label(self.progress, variant.idea))
        word, style = CATEGORY_WORDS[idea.category]
        category = idea.category.value if self.width >= WIDE else word
        return Text.assemble((category, style), ": ", self._by(idea), printable(idea.text))

    def _counts(self) -> Text:
        """One line of status names if they fit, otherwise up to two lines of their short words."""
        for names in (
            {status: status.value for status in Status},
            {status: MARKS[status].word for status in Status},
        ):
            lines: list[Text] = []
            for part in self._count_parts(names):
                if lines and lines[-1].cell_len + 2 + part.cell_len <= self.width:
                    lines[-1] = lines[-1].append("  ").append_text(part)
                else:
                    lines.append(part)
            if len(lines) <= 1:
                break
        return Text("\n").join(lines[:2])

    def _count_parts(self, names: Mapping[Status, str]) -> Iterator[Text]:
        progress = self.progress
        for status in Status:
            if progress.statuses[status]:
                mark = MARKS[status]
                yield Text(f"{self.mark(mark)} {progress.statuses[status]} {names[status]}", mark.style)
        if progress.reused:
            yield Text(f"= {progress.reused} reused", "bright_black")
        if progress.repairs:
            yield Text(f"{REPAIR} {wording.many(progress.repairs, 'repair')}", "bright_black")
        cells = [cell for item in progress.in_round for cell in item.variants.values()]
        pending = [self._mark_of(cell) for cell in cells if cell.variant.evaluation is None]
        pending += [WRITING for item in progress.in_round if not item.implemented]
        for mark, word in ((RUNNING, "running"), (WAITING, "queued"), (WRITING, "writing")):
            if mark in pending:
                yield Text(f"{self.mark(mark)} {pending.count(mark)} {word}", mark.style)
