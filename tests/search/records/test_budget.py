from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.records.budget import Budget, BudgetSpent, Cost
from tests.search.fakes import Clock


@pytest.mark.parametrize(
    "limit",
    [{"rounds": 0}, {"evaluations": -1}, {"seconds": 0.0}, {"calls": 0}, {"tokens": -1}, {"dollars": 0.0}],
)
def test_a_limit_must_be_positive(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"budget.{next(iter(limit))}"):
        Budget(**limit)


def test_without_limits_nothing_is_refused() -> None:
    budget = Budget()
    assert budget.reserve(10**6) == 10**6
    assert budget.exhausted(rounds_closed=10**6) is None


@pytest.mark.slow
@given(
    limit=st.integers(1, 20),
    used=st.integers(0, 25),
    steps=st.lists(st.one_of(st.integers(1, 8), st.booleans()), max_size=60),
)
def test_reserved_and_spent_never_pass_the_limit(limit: int, used: int, steps: list[int | bool]) -> None:
    budget = Budget(evaluations=limit)
    budget.start(evaluations=used)
    for step in steps:
        if isinstance(step, bool):
            if budget.reserved:
                budget.settle(spent=step)
        else:
            assert budget.reserve(step) <= step
        assert budget.spent + budget.reserved <= max(limit, used)
        assert budget.available == max(0, limit - budget.spent - budget.reserved)


def test_what_was_not_reserved_cannot_be_settled() -> None:
    with pytest.raises(ValueError, match="was not reserved"):
        Budget().settle(spent=True)


def test_an_unused_reservation_is_free_again() -> None:
    budget = Budget(evaluations=2)
    assert budget.reserve(3) == 2
    assert budget.available == 0
    budget.settle(spent=False)
    budget.settle(spent=True)
    assert budget.available == 1


def test_time_continues_from_what_was_used() -> None:
    clock = Clock()
    budget = Budget(seconds=10, clock=clock)
    budget.start(used_s=4)
    clock.now_s += 5.5
    assert budget.elapsed_s == pytest.approx(9.5)
    assert budget.reserve(1) == 1
    clock.now_s += 0.5
    assert budget.timed_out
    assert budget.reserve(1) == 0
    assert budget.exhausted(rounds_closed=0) == "seconds"


def test_the_limit_that_is_met_is_named() -> None:
    budget = Budget(rounds=2, evaluations=3)
    budget.start(evaluations=3)
    assert budget.exhausted(rounds_closed=1) == "evaluations"
    assert budget.exhausted(rounds_closed=2) == "rounds"


MOST = Cost(tokens=100, dollars=Decimal("0.1"))


@pytest.mark.parametrize("limit", [{"calls": 1}, {"tokens": 199}, {"dollars": 0.19}])
def test_a_call_waits_for_those_under_way_and_is_refused_without_any(limit: dict[str, Any]) -> None:
    (name,) = limit
    budget = Budget(**limit)
    assert budget.reserve_call(MOST)
    assert not budget.reserve_call(MOST)
    assert budget.exhausted(0) is None
    budget.settle_call(MOST, MOST)
    with pytest.raises(BudgetSpent, match=f"budget.{name} is used up"):
        budget.reserve_call(MOST)
    assert budget.exhausted(0) == name


@pytest.mark.parametrize("limit", [{"calls": 2}, {"tokens": 200}, {"dollars": 0.2}])
def test_a_limit_is_used_to_the_last(limit: dict[str, Any]) -> None:
    budget = Budget(**limit)
    assert budget.reserve_call(MOST)
    assert budget.reserve_call(MOST)
    assert not budget.reserve_call(MOST)


def test_what_a_call_did_not_use_is_free_again() -> None:
    budget = Budget(tokens=150, dollars=0.15)
    assert budget.reserve_call(MOST)
    budget.settle_call(MOST, Cost(tokens=50, dollars=Decimal("0.05")))
    assert (budget.cost_spent.tokens, budget.cost_reserved.tokens) == (50, 0)
    assert (budget.cost_spent.dollars, budget.cost_reserved.dollars) == (Decimal("0.05"), Decimal(0))
    assert budget.reserve_call(MOST)


def test_calls_continue_from_what_was_used() -> None:
    budget = Budget(calls=3)
    budget.start(cost=Cost(calls=2, tokens=7, dollars=Decimal("0.5")))
    assert budget.reserve_call(MOST)
    assert not budget.reserve_call(MOST)
    budget.settle_call(MOST, MOST)
    assert (budget.cost_spent.calls, budget.cost_spent.tokens, budget.cost_spent.dollars) == (
        3,
        107,
        Decimal("0.6"),
    )


@pytest.mark.parametrize("limit", [{"calls": 3}, {"tokens": 300}, {"dollars": 0.3}])
def test_a_call_that_leaves_room_is_refused_alone(limit: dict[str, Any]) -> None:
    budget = Budget(**limit)
    assert budget.reserve_call(MOST, leaving=MOST + MOST)
    for _ in range(2):
        with pytest.raises(BudgetSpent):
            budget.reserve_call(MOST, leaving=MOST + MOST)
        budget.settle_call(MOST, MOST)
        assert budget.exhausted(0) is None
        assert budget.reserve_call(MOST)


def test_no_call_is_reserved_when_the_time_is_up() -> None:
    clock = Clock()
    budget = Budget(seconds=10, clock=clock)
    assert budget.reserve_call(MOST)
    clock.now_s += 10
    with pytest.raises(BudgetSpent, match=r"budget\.seconds"):
        budget.reserve_call(MOST)


def test_a_call_that_was_not_reserved_cannot_be_settled() -> None:
    with pytest.raises(ValueError, match="was not reserved"):
        Budget().settle_call(MOST, MOST)
