"""Whether a model can be asked now: what its latest calls say about the service behind it."""

from __future__ import annotations

from dataclasses import dataclass

from search.records.model_calls import CallFailed

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
LONGEST_HICCUP_S = 15.0
"""A model whose provider asks for a longer pause is out of service."""
DOUBLED_AT_MOST = 16
"""How many times a pause is doubled; any more would pass the longest pause anyway."""


@dataclass
class Service:
    """What is known about the service of one model. Times are in seconds of the client's clock.

    Attributes:
        tries: The number of failures in a row after which the model is out of service.
        failures: The failures in a row. Calls that were under way together count once.
        since_s: When the first of them happened.
        counted_at_s: When the last one that counted happened.
        failed_at_s: When the last one happened.
        retry_at_s: When the model may be asked again.
        last: The last failure.
        answers: The number of answers so far, usable or not.
        denied: Why the model denies access; it is not asked again.
        is_probed: Whether a call is finding out if the model is back.
    """

    tries: int
    failures: int = 0
    since_s: float = 0.0
    counted_at_s: float = 0.0
    failed_at_s: float = 0.0
    retry_at_s: float = 0.0
    last: CallFailed | None = None
    answers: int = 0
    denied: CallFailed | None = None
    is_probed: bool = False

    @property
    def is_out(self) -> bool:
        """Whether the model is out of service, so that another one is asked in its place."""
        if not self.failures:
            return False
        return self.failures >= self.tries or self.retry_at_s - self.failed_at_s > LONGEST_HICCUP_S

    def may_be_asked(self, now_s: float) -> bool:
        """Whether the model is in service or, if not, whether it is time to find out. The first pauses are
        short, so the model counts as in service while they last."""
        return not self.is_out or (now_s >= self.retry_at_s and not self.is_probed)

    def answered(self) -> None:
        """Notes an answer."""
        self.answers += 1
        self.failures = 0

    def failed(self, failure: CallFailed, *, asked_at_s: float, now_s: float, jitter: float) -> None:
        """Notes that the service failed a call. The pause doubles with each failure that counts, is jittered
        between half and all by `jitter` from 0 to 1, and is at least what the provider asks for."""
        if not self.failures:
            self.since_s = self.retry_at_s = now_s
        if not self.failures or asked_at_s > self.counted_at_s:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, DOUBLED_AT_MOST))
            self.failures += 1
            self.counted_at_s = now_s
            self.retry_at_s = now_s + pause_s * (0.5 + jitter / 2)
        self.failed_at_s, self.last = now_s, failure
        self.retry_at_s = max(self.retry_at_s, now_s + (failure.retry_after_s or 0.0))
