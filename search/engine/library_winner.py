"""Offers a search's winner to the library."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.entry import Against, Entry, Lineage, Measurement
from search.protocols import Library
from search.records.ranking import LeaderComparison
from search.records.tree import LIBRARY, Tree, Variant

logger = logging.getLogger(__name__)

Compare = Callable[[Sequence[Kernel]], Awaitable[Sequence[Evaluation] | None]]
"""Measures several kernels in one session; None if that gave no result."""


async def offer_winner(
    library: Library,
    problem: Problem,
    environment: Mapping[str, str],
    tree: Tree,
    run: str,
    *,
    best: Variant,
    confirmed: Evaluation,
    compare: Compare,
) -> None:
    """Adds the `best` kernel of a `run`, with its final measurement and its speedup over the library's
    previous best. Kernels that came from the library are skipped; a refusal or a failed write is logged."""
    if tree.ideas[best.idea].proposer == LIBRARY:
        return
    entry = winner_entry(problem, tree, run, best, confirmed)
    if (why := library.refusal(entry)) is not None:
        logger.info("the library does not accept the winner: %s", why)
        return
    try:
        against = await _against(library.best(problem, environment), best.kernel, tree, compare)
        library.add(replace(entry, measurements=(replace(entry.measurements[0], against=against),)))
    except OSError as error:
        logger.warning("the winner could not be added to the library: %s", error)


def winner_entry(problem: Problem, tree: Tree, run: str, best: Variant, confirmed: Evaluation) -> Entry:
    """The `best` kernel of a `run` with its final measurement and the ideas that led to it."""
    line = tree.lineage(best)
    ideas = tuple(tree.ideas[each.idea].text for each in line)
    return Entry(
        kernel=best.kernel,
        measurements=(Measurement(problem=problem, evaluation=confirmed),),
        lineage=Lineage(run=run, start=line[0].parent, ideas=ideas),
    )


async def _against(known: Entry | None, winner: Kernel, tree: Tree, compare: Compare) -> Against | None:
    """The winner's speedup over the library's best kernel for the problem; None if there is no such kernel or
    the two could not be compared."""
    if known is None or known.kernel.id == winner.id:
        return None
    paired = tree.ranking.speedup(winner.id, known.kernel.id)
    if paired is None and (found := await compare([winner, known.kernel])) is not None:
        together = LeaderComparison(evaluations=dict(zip((winner.id, known.kernel.id), found, strict=True)))
        paired = together.speedup(winner.id, known.kernel.id)
    if paired is None:
        return None
    speedup, low, high = paired
    return Against(entry=known.id, speedup=speedup, speedup_low=low, speedup_high=high)
