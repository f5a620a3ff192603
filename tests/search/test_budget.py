from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.budget import Budget
from tests.search.fakes import Clock


@pytest.mark.parametrize("limit", [{"rounds": 0}, {"evaluations": -1}, {"seconds": 0.0}])
def test_a_limit_must_be_positive(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"budget.{next(iter(limit))}"):
        Budget(**limit)


def test_without_limits_nothing_is_refused() -> None:
    budget = Budget()
    assert budget.reserve(10**6) == 10**6
    assert budget.exhausted(rounds_closed=10**6) is None


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
    with pytest.raises(ValueError, match="not been reserved"):
        Budget().settle(spent=True)


def test_an_unused_reservation_is_free_again() -> None:
    budget = Budget(evaluations=2)
    assert budget.reserve(3) == 2
    assert budget.available == 0
    budget.settle(spent=False)
    budget.settle(spent=True)
    assert budget.available == 1


def test_time_goes_on_from_what_was_used() -> None:
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
