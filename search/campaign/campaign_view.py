"""The progress of a campaign: a live table that fits the terminal, or one line per slice."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evaluators.app.command import say
from evaluators.records.evaluation import share_text
from search.campaign.results import scored
from search.campaign.running import CampaignRun
from search.campaign.slices import SearchProgress

OTHER_LINES = 6
"""Lines of the terminal that are not rows of searches."""


class CampaignView:
    """A context manager; `show` is called after every change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        )
        self._printed: dict[str, int] = {}
        self._printed_final: dict[str, float | None] = {}
        self._printed_winners = False

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
        """Shows the current state."""
        if self._live is not None:
            self._live.update(drawn(run, self._console.height), refresh=True)
            return
        for each in run.searches:
            if len(each.slices) + bool(each.unfit) > self._printed.get(each.key, 0):
                self._printed[each.key] = len(each.slices) + bool(each.unfit)
                say(self._console, in_a_line(each))
            if each.final not in (None, self._printed_final.get(each.key)):
                self._printed_final[each.key] = each.final
                say(self._console, f"{each.problem} {each.arm}: {_final(each)}")
        if run.winners and not self._printed_winners:
            self._printed_winners = True
            say(self._console, f"measuring {len(run.winners)} winners again to confirm them")


def drawn(run: CampaignRun, height: int) -> RenderableType:
    """The table: running searches first, then the best, as far as there is room."""
    busy = run.running.keys() | run.winners
    searches = sorted(run.searches, key=lambda each: (each.key not in busy, -each.speedup))
    table = Table(box=None, pad_edge=False)
    for name in ("problem", "arm", "slices", "evals", "speedup", "of roofline", ""):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    room = max(1, height - OTHER_LINES)
    for each in searches[:room]:
        state = "searching" if each.key in run.running else ""
        table.add_row(*_cells(each, state or ("to be confirmed" if each.key in run.winners else "")))
    more = len(searches) - room
    return Group(table, Text(f"… and {more} more" if more > 0 else ""), Text(totals(run)))


def totals(run: CampaignRun) -> str:
    """All searches in one line."""
    problems = scored(run.searches)
    solved = sum(max(each.speedups) > 1 for each in problems)
    spent = [f"{run.total('evaluations'):.0f} evaluations"]
    if dollars := run.total("dollars"):
        spent.append(f"${dollars:.2f}")
    open_searches = sum(not each.stopped and not each.unfit for each in run.searches)
    now = f"{len(run.running)} of {open_searches} open searches running"
    if run.winners:
        now = f"{len(run.winners)} winners to be confirmed"
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


def _final(search: SearchProgress) -> str:
    """The final measurement in words. It confirms a winner whose interval lies above 1."""
    if search.final is None:
        return ""
    low = search.final_low
    word = "measured again" if low is None else "confirmed" if low > 1 else "not confirmed"
    return f"{word}: {search.final:.2f}x"


def _cells(search: SearchProgress, state: str = "") -> tuple[str, ...]:
    """The cells of a row; `state`: what the search is doing, "" if it has ended."""
    speedup = f"{search.speedup:.2f}x" if search.speedup else "none correct"
    share = share_text(search.speedup / search.ceiling) if search.ceiling and search.speedup else ""
    state = state or search.unfit or _final(search) or search.stopped
    count = len(search.slices)
    return (search.problem, search.arm, str(count), str(search.evaluations), speedup, share, state)
