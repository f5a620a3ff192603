"""A campaign as it goes on: a live table that fits the terminal, or a line for each slice."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evaluators.app.command import say
from search.campaign.results import scored
from search.campaign.running import CampaignRun
from search.campaign.slices import SearchProgress

BESIDES = 6
"""Lines of the terminal that are no rows."""


class CampaignView:
    """A context manager; `show` is to be told of every change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        )
        self._said: dict[str, int] = {}
        self._said_final: dict[str, float | None] = {}
        self._said_winners = False

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, run: CampaignRun) -> None:
        """Draws what there is now."""
        if self._live is not None:
            self._live.update(drawn(run, self._console.height), refresh=True)
            return
        for each in run.searches:
            if len(each.slices) + bool(each.unfit) > self._said.get(each.key, 0):
                self._said[each.key] = len(each.slices) + bool(each.unfit)
                say(self._console, in_a_line(each))
            if each.final not in (None, self._said_final.get(each.key)):
                self._said_final[each.key] = each.final
                say(self._console, f"{each.problem} {each.arm}: measured again: {each.final:.2f}x")
        if run.winners and not self._said_winners:
            self._said_winners = True
            say(self._console, f"measuring {len(run.winners)} winners again")


def drawn(run: CampaignRun, height: int) -> RenderableType:
    """The table: those that are being searched first, then the best, as many as there is room for."""
    busy = run.running.keys() | run.winners
    searches = sorted(run.searches, key=lambda each: (each.key not in busy, -each.speedup))
    table = Table(box=None, pad_edge=False)
    for name in ("problem", "arm", "slices", "evals", "speedup", "of roofline", ""):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    room = max(1, height - BESIDES)
    for each in searches[:room]:
        state = "searching" if each.key in run.running else ""
        table.add_row(*_cells(each, state or ("to be measured again" if each.key in run.winners else "")))
    more = len(searches) - room
    return Group(table, Text(f"… and {more} more" if more > 0 else ""), Text(totals(run)))


def totals(run: CampaignRun) -> str:
    """All searches in a line."""
    problems = scored(run.searches)
    solved = sum(max(each.speedups) > 1 for each in problems)
    spent = [f"{run.total('evaluations'):.0f} evaluations"]
    if dollars := run.total("dollars"):
        spent.append(f"${dollars:.2f}")
    going = sum(not each.stopped and not each.unfit for each in run.searches)
    now = f"{going} may go on, {len(run.running)} do"
    if run.winners:
        now = f"{len(run.winners)} winners to be measured again"
    return (
        f"{solved} of {len(problems)} faster than eager; {now}; "
        f"{', '.join(spent)}; {run.seconds / 60:.1f} min"
    )


def in_a_line(search: SearchProgress) -> str:
    """One search after a slice."""
    if search.unfit:
        return f"{search.problem} {search.arm}: not searched: {search.unfit}"
    state = f"; stopped: {search.stopped}" if search.stopped else ""
    cells = _cells(search)
    return f"{search.problem} {search.arm}: {cells[3]} evaluations, {cells[4]}{state}"


def _cells(search: SearchProgress, state: str = "") -> tuple[str, ...]:
    """`state`: what it is at, else how it has ended."""
    speedup = f"{search.speedup:.2f}x" if search.speedup else "none correct"
    share = f"{search.speedup / search.ceiling:.0%}" if search.ceiling and search.speedup else ""
    final = f"measured again: {search.final:.2f}x" if search.final is not None else ""
    state = state or search.unfit or final or search.stopped
    count = len(search.slices)
    return (search.problem, search.arm, str(count), str(search.evaluations), speedup, share, state)
