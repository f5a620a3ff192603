from __future__ import annotations

import json
from dataclasses import asdict
from decimal import Decimal

import pytest

from search.records.model_calls import (
    CallFailed,
    Cause,
    Limits,
    ModelCall,
    Price,
    Purpose,
    Question,
    Spending,
    Usage,
    storable,
)

USAGE = Usage(input_tokens=1_000, cached_tokens=400, output_tokens=70)


@pytest.mark.parametrize("name", ["input", "output", "cached_input"])
def test_a_price_is_not_negative(name: str) -> None:
    with pytest.raises(ValueError, match=f"price.{name} is -0.1"):
        Price(**{name: -0.1})


@pytest.mark.parametrize("name", ["output_tokens", "timeout_s", "concurrency", "tries"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_is_positive(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"limits.{name} is {value}"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_dollars_are_exact() -> None:
    # 600 × 0.1 $ + 400 × 0.01 $ + 70 × 0.7 $ a million: with floats it would not come out even.
    price = Price(input=0.1, output=0.7, cached_input=0.01)
    assert price.dollars(USAGE) == Decimal("0.000113")
    assert Price(input=0.1, output=0.7).dollars(USAGE) == Decimal("0.000149")
    assert sum((price.dollars(USAGE) for _ in range(1_000)), Decimal(0)) == Decimal("0.113")


def test_the_most_assumes_that_nothing_or_everything_was_cached() -> None:
    assert Price(input=1.0, output=2.0, cached_input=0.1).at_most(USAGE) == Decimal("0.00114")
    assert Price(input=1.0, output=2.0, cached_input=3.0).at_most(USAGE) == Decimal("0.00314")


@pytest.mark.parametrize("price", [Price(), Price(input=1.0), Price(output=1.0, cached_input=1.0)])
def test_without_a_price_there_are_no_dollars(price: Price) -> None:
    assert not price.known
    assert price.dollars(USAGE) == 0


def test_what_costs_nothing_has_a_price() -> None:
    assert Price(input=0.0, output=0.0).known


@pytest.mark.parametrize("text", ["kernel", "Größe ≤ 2³¹", "核函数", "🧮" * 100, ""])
def test_a_question_never_has_more_tokens_than_bytes(text: str) -> None:
    schema = {"type": "object", "description": text}
    question = Question(purpose=Purpose.CODE, system=text, prompt=text * 2, schema=schema)
    most = question.most_tokens(Limits(output_tokens=11))
    assert most.input_tokens >= len((text * 3).encode()) + len(json.dumps(schema))
    assert most.output_tokens == 11
    assert most.tokens == most.input_tokens + 11
    assert most.cached_tokens == 0


def call(**more: object) -> ModelCall:
    values = {
        "id": "000001",
        "model": "openai/m",
        "purpose": Purpose.CODE,
        "about": "r1i2",
        "attempt": 2,
        "usage": USAGE,
        "dollars": 0.000113,
        "seconds": 1.25,
    }
    return ModelCall(**{**values, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("cause", [None, *Cause])
def test_a_call_goes_through_json(cause: Cause | None) -> None:
    one = call(cause=cause, detail="why" if cause else "", estimated=cause is Cause.TIMEOUT)
    assert ModelCall.from_json(json.loads(json.dumps(asdict(one)))) == one


@pytest.mark.parametrize(
    "change", [{"purpose": "lunch"}, {"cause": "hunger"}, {"more": 1}, {"usage": {"x": 1}}]
)
def test_what_is_no_call_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        ModelCall.from_json({**json.loads(json.dumps(asdict(call()))), **change})


def test_spending_adds_up() -> None:
    spending = Spending()
    for _ in range(3):
        spending.add(call())
    spending.add(call(cause=Cause.EMPTY, usage=Usage(input_tokens=5), dollars=0.1))
    assert (spending.calls, spending.failed, spending.tokens) == (4, 1, 3 * 1_070 + 5)
    assert spending.dollars == Decimal("0.100339")


def test_causes() -> None:
    assert {cause for cause in Cause if not cause.retryable} == {
        Cause.BAD_REQUEST,
        Cause.DENIED,
        Cause.SKIPPED,
    }
    assert {cause for cause in Cause if not cause.may_be_charged} == {
        Cause.RATE_LIMITED,
        Cause.SERVER_ERROR,
        Cause.UNREACHABLE,
        Cause.BAD_REQUEST,
        Cause.DENIED,
        Cause.SKIPPED,
    }


def test_text_that_no_file_can_hold_is_made_storable() -> None:
    assert storable("a\ud800b\udfff, 😀") == "a\ufffdb\ufffd, 😀"


def test_a_failure_says_its_cause() -> None:
    assert str(CallFailed(Cause.EMPTY, "")) == "empty answer"
    assert str(CallFailed(Cause.DENIED, "who are you")) == "access denied: who are you"
