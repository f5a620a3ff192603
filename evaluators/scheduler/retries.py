"""What is said of tries that failed: the same cause not over and over."""

from __future__ import annotations

import logging
from collections import Counter

from evaluators.base.cause import cause_of


class Retries:
    """How many tries were followed by another, by the cause."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()

    def tell(self, kernel: str, reason: str) -> None:
        """Of a kernel that is tried again, in a line; of the same cause only when it has come 10, 100, …
        times."""
        cause = cause_of(reason)
        self._counts[cause] += 1
        count = self._counts[cause]
        if str(count).strip("0") == "1":
            often = f" ({count} times so far)" if count > 1 else ""
            self._logger.warning("kernel %s is tried again: %s%s", kernel, cause, often)
        self._logger.debug("a try of kernel %s failed: %s", kernel, reason)

    def sum_up(self) -> None:
        """Of all causes that have come more than once."""
        for cause, count in self._counts.items():
            if count > 1:
                self._logger.warning("%d times in all a kernel was tried again: %s", count, cause)
