"""What is asked of a language model and what it answers: records, and the protocol of a provider.

Providers live in `llms/`, one file each. They make one call and say what became of it; retries, limits on
concurrency, the budget and the record of calls are the model client's (`model_client.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

MILLION = 1_000_000
WRAPPING_TOKENS = 256
"""More than any chat template puts around a prompt and its schema."""


class Purpose(StrEnum):
    """What a call is for."""

    IDEAS = "ideas"
    CODE = "code"
    REPAIR = "repair"


class Cause(StrEnum):
    """Why a call brought nothing that can be used."""

    RATE_LIMITED = "rate limited"
    SERVER_ERROR = "server error"
    UNREACHABLE = "unreachable"
    """Nothing was sent: it costs nothing."""
    CONNECTION = "connection lost"
    TIMEOUT = "timed out"
    EMPTY = "empty answer"
    CUT_OFF = "cut off"
    REFUSED = "refused"
    MALFORMED = "malformed answer"
    BAD_REQUEST = "bad request"
    DENIED = "access denied"
    SKIPPED = "skipped"

    @property
    def passing(self) -> bool:
        """Whether the same call may well succeed when it is made again."""
        return self not in (Cause.BAD_REQUEST, Cause.DENIED, Cause.SKIPPED)

    @property
    def outage(self) -> bool:
        """Whether the provider, or the way to it, is the reason: it may be gone in some minutes or hours."""
        return self in (
            Cause.UNREACHABLE,
            Cause.CONNECTION,
            Cause.TIMEOUT,
            Cause.SERVER_ERROR,
            Cause.RATE_LIMITED,
        )

    @property
    def lost(self) -> bool:
        """Whether the model may have written an answer, and the provider charge for it, all the same."""
        return self in (Cause.CONNECTION, Cause.TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens as the provider reports them. `cached_tokens` is the part of `input_tokens` that it had cached;
    `output_tokens` include what the model thought."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens; None: not known. Raises ValueError for a negative one."""

    input: float | None = None
    output: float | None = None
    cached_input: float | None = None
    """None: as any other input."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise ValueError(f"price.{name} is {value}; dollars per million tokens cannot be negative")

    @property
    def known(self) -> bool:
        """Whether a call's dollars can be told."""
        return self.input is not None and self.output is not None

    def dollars(self, usage: Usage) -> Decimal:
        """What so many tokens cost, exactly; 0 where the price is not known."""
        if self.input is None or self.output is None:
            return Decimal(0)
        cached = self.input if self.cached_input is None else self.cached_input
        fresh_tokens = usage.input_tokens - usage.cached_tokens
        parts = (
            (fresh_tokens, self.input),
            (usage.cached_tokens, cached),
            (usage.output_tokens, self.output),
        )
        return sum((tokens * Decimal(str(each)) for tokens, each in parts), Decimal(0)) / MILLION

    def at_most(self, usage: Usage) -> Decimal:
        """The same where nobody knows what was cached."""
        dearest = max(self.input or 0.0, self.cached_input or 0.0)
        return Price(input=dearest, output=self.output or 0.0).dollars(usage)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one model's calls: tokens of an answer, seconds until it must be there, calls at a time, and how
    often a question is asked before it is given up. Raises ValueError for a limit that is not positive."""

    output_tokens: int = 32_000
    timeout_s: float = 600.0
    concurrency: int = 16
    tries: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"limits.{name} is {value}; it must be positive")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One prompt. With a `schema` (JSON schema) the answer is to be JSON that keeps to it. `about` says in
    the records what the question is about: an idea's or a variant's id, or a round."""

    purpose: Purpose
    system: str
    prompt: str
    about: str = ""
    schema: Mapping[str, Any] | None = None

    def most_tokens(self, limits: Limits) -> Usage:
        """What it can cost at most: no tokenizer makes more tokens than there are bytes."""
        texts = (self.system, self.prompt, json.dumps(self.schema) if self.schema else "")
        input_tokens = sum(len(text.encode()) for text in texts) + WRAPPING_TOKENS
        return Usage(input_tokens=input_tokens, output_tokens=limits.output_tokens)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model wrote, and what it used for it; None where the provider does not say."""

    text: str
    usage: Usage | None


class CallFailed(Exception):
    """A call that brought nothing usable. `usage` is None where the provider reported none; `text` holds what
    came, if anything did; `retry_after_s` is the provider's wish."""

    def __init__(
        self,
        cause: Cause,
        detail: str,
        *,
        usage: Usage | None = None,
        text: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause.value)
        self.cause, self.detail = cause, detail
        self.usage, self.text, self.retry_after_s = usage, text, retry_after_s


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One call as the journal has it; `model_calls.jsonl` has the texts under the same id.

    `cause` is None for a call whose answer was used. `estimated`: the provider reported nothing, so the
    figures are the most that it can have been. `seconds` of waiting for the answer.
    """

    id: str
    model: str
    purpose: Purpose
    about: str
    attempt: int
    usage: Usage
    dollars: float
    seconds: float
    estimated: bool = False
    cause: Cause | None = None
    detail: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelCall:
        """Restores what `dataclasses.asdict` writes. Raises TypeError, ValueError or KeyError."""
        body = dict(data)
        usage, purpose = Usage(**body.pop("usage")), Purpose(body.pop("purpose"))
        cause = body.pop("cause")
        return cls(usage=usage, purpose=purpose, cause=None if cause is None else Cause(cause), **body)


@dataclass(kw_only=True)
class Spending:
    """What calls have cost so far, or may have cost at most: `estimated` counts those whose cost the provider
    did not report."""

    calls: int = 0
    failed: int = 0
    estimated: int = 0
    tokens: int = 0
    dollars: Decimal = field(default_factory=Decimal)

    def add(self, call: ModelCall) -> None:
        """Takes one more call in."""
        self.calls += 1
        self.failed += call.cause is not None
        self.estimated += call.estimated
        self.tokens += call.usage.tokens
        self.dollars += Decimal(str(call.dollars))

    @classmethod
    def total(cls, several: Iterable[Spending]) -> Spending:
        """What they come to together."""
        total = cls()
        for each in several:
            total.calls += each.calls
            total.failed += each.failed
            total.estimated += each.estimated
            total.tokens += each.tokens
            total.dollars += each.dollars
        return total


class LLM(Protocol):
    """A provider's model. The provider's SDK is imported, and the key read, when they are needed first."""

    name: str
    """As journal and reports have it: `provider/model`."""
    price: Price
    limits: Limits

    def refusal(self) -> str | None:
        """Why it cannot be called, in one line that says what to install or set; None if it can."""
        ...

    def begin(self, folder: Path) -> None:
        """Called once, before the first question, with the folder of the run."""
        ...

    async def complete(self, question: Question) -> Answer:
        """Makes one call, without retries. Raises CallFailed for whatever becomes of it but a usable text."""
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...
