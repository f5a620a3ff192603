"""The library's kernels that a search starts with, in addition to the reference."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from evaluators.records.problem import Problem
from search.protocols import Library
from search.records.tree import Seed

logger = logging.getLogger(__name__)


LIBRARY_ENTRIES = 4
"""The number of kernels that a search asks the library for."""


def library_seeds(
    library: Library, problem: Problem, environment: Mapping[str, str], at_most: int = LIBRARY_ENTRIES
) -> tuple[Seed, ...]:
    """The library's kernels that help with the problem on such a device, the most helpful first. If the
    library cannot be read, this logs a warning and returns none."""
    try:
        hits = library.lookup(problem, at_most, environment)
    except OSError as error:
        logger.warning("the library cannot be read; the search continues without it: %s", error)
        return ()
    return tuple(
        Seed(
            id=hit.entry.id,
            kernel=hit.entry.kernel,
            evaluation=hit.evaluation,
            why=hit.why,
            drop_in=hit.drop_in,
        )
        for hit in hits
    )
