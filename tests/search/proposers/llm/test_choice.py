from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from search.proposers.llm.choice import Bandit, Fixed, ModelStanding, standings
from tests.search.fakes import correct, failed, outcome


def test_fixed_weights_are_kept_on_average() -> None:
    picked: Counter[str] = Counter()
    choice = Fixed({"a": 3.0, "c": 0.0})
    for seed in range(500):
        answer = choice.pick(dict.fromkeys("abc", ModelStanding()), 4, random.Random(seed))
        assert answer.total() == 4
        picked += answer
    assert picked["c"] == 0
    assert 0.7 < picked["a"] / picked.total() < 0.8


def test_a_weight_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Fixed({"a": -1.0})
    with pytest.raises(ValueError, match="0 or more"):
        Bandit(exploration=-0.1)


def test_the_bandit_asks_everybody_first() -> None:
    tried = {"a": ModelStanding(ideas=9, gain=9.0, dollars=1.0), "b": ModelStanding(), "c": ModelStanding()}
    assert Bandit().pick(tried, 2, random.Random(0)) == Counter({"b": 1, "c": 1})


def test_the_bandit_prefers_gain_per_dollar() -> None:
    same_price = {
        "a": ModelStanding(ideas=50, gain=20.0, dollars=5.0),
        "b": ModelStanding(ideas=50, gain=2.0, dollars=5.0),
    }
    assert Bandit().pick(same_price, 8, random.Random(0))["a"] == 8
    dear = {
        "a": ModelStanding(ideas=50, gain=20.0, dollars=50.0),
        "b": ModelStanding(ideas=50, gain=10.0, dollars=5.0),
    }
    assert Bandit().pick(dear, 8, random.Random(0))["b"] == 8
    free = {"a": ModelStanding(ideas=50, gain=20.0), "b": ModelStanding(ideas=50, gain=10.0)}
    assert Bandit().pick(free, 8, random.Random(0))["a"] == 8


def test_the_bandit_comes_back_to_who_was_hardly_tried() -> None:
    unsure = {"a": ModelStanding(ideas=400, gain=40.0), "b": ModelStanding(ideas=1, gain=0.0)}
    assert Bandit(exploration=0.5).pick(unsure, 1, random.Random(0)) == Counter({"b": 1})
    assert Bandit(exploration=0.0).pick(unsure, 1, random.Random(0)) == Counter({"a": 1})


def test_standings_count_what_ideas_gained_over_their_parents() -> None:
    outcomes = [
        outcome("one", correct(2.0), failed(), model="a"),
        outcome("two", correct(6.0), parent="seed", model="a"),
        outcome("three", correct(1.0), parent="seed", model="b"),
        outcome("four", failed(), failed(), parent="seed", model="b"),
        outcome("five", parent="seed", model="b"),
    ]
    found = standings(["a", "b", "c"], outcomes, {"a": 0.5}, {"seed": 3.0})
    assert found["a"].ideas == 2
    assert found["a"].gain == pytest.approx(math.log(2) + math.log(2))
    assert found["a"].dollars == 0.5
    assert found["b"] == ModelStanding(ideas=2, gain=0.0)
    assert found["c"] == ModelStanding()
