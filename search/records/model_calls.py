"""Questions to language models, answers and prices: the records, and the protocol of a provider.

Providers live in `search/models/providers/`, one per file. A provider makes one call and reports how it
ended; the model client (`search/models/client.py`) owns retries, concurrency, the budget and the record of
calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

MILLION = 1_000_000
WRAPPING_TOKENS = 256
"""More than any chat template adds to a prompt and its schema."""
CHARACTERS_PER_TOKEN = 4
"""About; for tokens that no provider counts."""
LONGEST_TEXT = 1_000_000
"""Characters of an answer; a longer one is malformed."""
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def storable(text: str) -> str:
    """The text without lone surrogates, which no file and no request can hold."""
    return LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


class Purpose(StrEnum):
    """The purpose of a call."""

    IDEAS = "ideas"
    CODE = "code"
    REPAIR = "repair"
    PROBE = "probe"
    REFLECTION = "reflection"
    SCREENING = "screening"


class Cause(StrEnum):
    """Why a call gave no usable answer."""

    RATE_LIMITED = "rate limited"
    SERVER_ERROR = "server error"
    UNREACHABLE = "unreachable"
    """Nothing was sent, so the call costs nothing."""
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
    def retryable(self) -> bool:
        """Whether the same call may well succeed on another try."""
        return self not in (Cause.BAD_REQUEST, Cause.DENIED, Cause.SKIPPED)

    @property
    def outage(self) -> bool:
        """Whether the provider or the connection to it is the cause; it may pass in minutes or hours."""
        return self in (
            Cause.UNREACHABLE,
            Cause.CONNECTION,
            Cause.TIMEOUT,
            Cause.SERVER_ERROR,
            Cause.RATE_LIMITED,
        )

    @property
    def may_be_charged(self) -> bool:
        """Whether the model may have written an answer anyway, which the provider may charge for."""
        return self in (
            Cause.CONNECTION,
            Cause.TIMEOUT,
            Cause.EMPTY,
            Cause.CUT_OFF,
            Cause.REFUSED,
            Cause.MALFORMED,
        )


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The tokens of a call, as the provider reports them.

    Attributes:
        input_tokens: All input tokens.
        cached_tokens: The part of `input_tokens` that the provider had cached.
        output_tokens: All output tokens, including the model's thinking.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a model, in dollars per million tokens; None if unknown.

    Attributes:
        input: The price of input tokens.
        output: The price of output tokens.
        cached_input: The price of cached input tokens; None if they cost the same as others.

    Raises:
        ValueError: If a price is negative.
    """

    input: float | None = None
    output: float | None = None
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 0:
                raise ValueError(f"price.{name} is {value}; dollars per million tokens cannot be negative")

    @property
    def known(self) -> bool:
        """Whether the dollars of a call can be computed."""
        return self.input is not None and self.output is not None

    def dollars(self, usage: Usage) -> Decimal:
        """The exact cost of these tokens in dollars; 0 if the price is unknown."""
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
        """The largest possible cost in dollars, no matter which tokens were cached."""
        dearest = max(self.input or 0.0, self.cached_input or 0.0)
        return Price(input=dearest, output=self.output or 0.0).dollars(usage)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one model's calls.

    Attributes:
        output_tokens: Tokens of one answer.
        timeout_s: Seconds to wait for an answer.
        concurrency: Calls at a time.
        tries: Unusable answers to a question after which another model is asked, and failed calls in a row
            after which the model counts as out of service.

    Raises:
        ValueError: If a limit is not positive.
    """

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
    """One prompt.

    Attributes:
        purpose: What the answer is for.
        system: The system prompt.
        prompt: The user prompt.
        about: What the question is about, for the records: the id of an idea or a variant, or a round.
        schema: A JSON schema that the answer has to follow; None for plain text.
        optional: Whether the search can do without the answer. Such a question is asked once, and only while
            the budget has room for it and for more questions of its size.
    """

    purpose: Purpose
    system: str
    prompt: str
    about: str = ""
    schema: Mapping[str, Any] | None = None
    optional: bool = False

    def most_tokens(self, limits: Limits) -> Usage:
        """The largest possible usage; no tokenizer produces more tokens than the text has bytes."""
        texts = (self.system, self.prompt, json.dumps(self.schema) if self.schema else "")
        input_tokens = sum(len(text.encode()) for text in texts) + WRAPPING_TOKENS
        return Usage(input_tokens=input_tokens, output_tokens=limits.output_tokens)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text that a model wrote.

    Attributes:
        text: The text.
        usage: The usage; None if the provider does not report it.
        approximate: Whether the usage is computed from characters.
        model: The model that answered, if the provider's name does not say so.
        conversation: `fresh` or `continued`; "" for a provider that always begins a conversation.
    """

    text: str
    usage: Usage | None
    approximate: bool = False
    model: str = ""
    conversation: str = ""


class CallFailed(Exception):
    """A call gave no usable answer.

    Attributes:
        cause: Why.
        detail: The provider's message, or more about the cause.
        usage: The usage; None if the provider reported none.
        text: The text that arrived, if any.
        retry_after_s: Seconds that the provider asks to wait before the next call.
        outage: Whether the service failed, so that other questions would fare no better.

    Args:
        outage: None decides by the cause.
    """

    def __init__(
        self,
        cause: Cause,
        detail: str,
        *,
        usage: Usage | None = None,
        text: str = "",
        retry_after_s: float | None = None,
        outage: bool | None = None,
    ) -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause.value)
        self.cause, self.detail = cause, detail
        self.usage, self.text, self.retry_after_s = usage, text, retry_after_s
        self.outage = cause.outage if outage is None else outage


class OutOfService(CallFailed):
    """No model can be asked: each denies access, or has been out of service for too long. `detail` says so of
    each."""

    def __str__(self) -> str:
        return f"no model answers ({self.detail})"


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One call as recorded in the journal; `model_calls.jsonl` has its texts under the same id.

    Attributes:
        id: The number of the call in the run, six digits.
        model: The model, as `provider/model`.
        purpose: What the answer was for.
        about: What the question was about; see `Question`.
        attempt: Counts the calls for the same question from 1.
        usage: The tokens used.
        dollars: The cost in dollars.
        seconds: Seconds until the answer.
        estimated: Whether the provider reported no usage, so that the figures are the largest possible ones.
        cause: Why the answer was not used; None if it was.
        detail: The provider's message, or more about the cause.
        prompt_characters: The characters of the system and the user prompt.
        answer_characters: The characters of the answer.
        approximate: Whether the tokens are computed from characters.
        answered_by: The model that answered, if the name of the provider does not say so.
        conversation: `fresh` or `continued`; "" for a provider that always begins a conversation.
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
    prompt_characters: int = 0
    answer_characters: int = 0
    approximate: bool = False
    answered_by: str = ""
    conversation: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelCall:
        """Restores the output of `dataclasses.asdict`. Raises TypeError, ValueError or KeyError."""
        body = dict(data)
        usage, purpose = Usage(**body.pop("usage")), Purpose(body.pop("purpose"))
        cause = body.pop("cause")
        return cls(usage=usage, purpose=purpose, cause=None if cause is None else Cause(cause), **body)


@dataclass(kw_only=True)
class Spending:
    """The cost of calls so far, or its upper bound: `estimated` counts the calls whose usage the provider did
    not report."""

    calls: int = 0
    failed: int = 0
    estimated: int = 0
    tokens: int = 0
    dollars: Decimal = field(default_factory=Decimal)

    def add(self, call: ModelCall) -> None:
        """Adds one call."""
        self.calls += 1
        self.failed += call.cause is not None
        self.estimated += call.estimated
        self.tokens += call.usage.tokens
        self.dollars += Decimal(str(call.dollars))

    @classmethod
    def total(cls, several: Iterable[Spending]) -> Spending:
        """The sum of several."""
        total = cls()
        for each in several:
            total.calls += each.calls
            total.failed += each.failed
            total.estimated += each.estimated
            total.tokens += each.tokens
            total.dollars += each.dollars
        return total


class LLM(Protocol):
    """A provider's model. Its SDK is imported, and its key read, only when first needed.

    Attributes:
        name: The name in journals and reports, as `provider/model`.
        price: The price of its tokens.
        limits: The limits of its calls.
    """

    name: str
    price: Price
    limits: Limits

    def refusal(self) -> str | None:
        """Returns in one line what to install or set before it can be called; None if it can be called."""
        ...

    def begin(self, folder: Path) -> None:
        """Called once, before the first question, with the run's folder."""
        ...

    async def complete(self, question: Question) -> Answer:
        """Makes one call, without retries. Raises CallFailed if it gives no usable text."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
