from __future__ import annotations

import random

import pytest

from search.records.tree import Expansion, Seed
from search.strategies.best_of_n import BestOfN
from tests.search.fakes import correct, kernel
from tests.search.strategies.trees import Grown

RNG = random.Random(0)


def test_nothing_is_built_on() -> None:
    grown = Grown().idea("", a=9.0)
    strategy = BestOfN(ideas=4, branch=3, from_library=False)
    assert strategy.ask(grown.view("", ""), RNG) == Expansion(seed=None, ideas=1, variants=3)


def test_from_the_best_of_the_library_as_it_was_measured_here() -> None:
    one = Seed(id="one", kernel=kernel("one"), evaluation=correct(9.0))
    other = Seed(id="other", kernel=kernel("other"))
    strategy = BestOfN(ideas=4, branch=3, from_library=True)
    assert strategy.ask(Grown().view(entries=[other, one]), RNG).seed == one
    grown = Grown().library(one, 2.0).library(other, 3.0).idea("other", a=9.0)
    assert grown.name(strategy.ask(grown.view(entries=[one, other]), RNG)) == "other"
    assert strategy.ask(Grown().idea("", a=9.0).view(), RNG).seed is None


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^best_of_n\.branch is 0; it must be at least 1$"):
        BestOfN(ideas=1, branch=0, from_library=False)
