"""Reports tries that failed, without repeating the same cause over and over."""

from __future__ import annotations

import logging
from collections import Counter

from evaluators.base.cause import cause_of


class Retries:
    """Counts the tries that were repeated, by cause."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()

    def tell(self, kernel: str, reason: str) -> None:
        """Logs in one line that a kernel is tried again; for a cause seen before, only the 10th, 100th, …
        time."""
        cause = cause_of(reason)
        self._counts[cause] += 1
        count = self._counts[cause]
        if str(count).strip("0") == "1":
            often = f" ({count} times so far)" if count > 1 else ""
            self._logger.warning("kernel %s is tried again: %s%s", kernel, cause, often)
        self._logger.debug("a try of kernel %s failed: %s", kernel, reason)

    def sum_up(self) -> None:
        """Logs all causes that occurred more than once."""
        for cause, count in self._counts.items():
            if count > 1:
                self._logger.warning("a kernel was tried again %d times in total: %s", count, cause)
