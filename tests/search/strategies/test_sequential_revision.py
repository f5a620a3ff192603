from __future__ import annotations

import random

import pytest

from search.records.tree import Expansion, Seed
from search.strategies.sequential_revision import SequentialRevision
from tests.search.fakes import kernel
from tests.search.strategies.trees import Grown

RNG = random.Random(0)
LAST = SequentialRevision(ideas=4, branch=1, build_on="last")
BEST = SequentialRevision(ideas=4, branch=1, build_on="best")


def test_one_edit_at_a_time() -> None:
    grown = Grown().idea("", a=2.0)
    assert LAST.ask(grown.view(), RNG) == Expansion(seed=grown.seed("a"), ideas=1, variants=1)
    assert LAST.ask(grown.view("a"), RNG) is None


def test_the_last_correct_one_or_the_best() -> None:
    grown = Grown().idea("", a=3.0).idea("a", b=2.0, c=2.5).idea("c", d=0.0)
    assert grown.name(LAST.ask(grown.view(), RNG)) == "c"
    assert grown.name(BEST.ask(grown.view(), RNG)) == "a"


def test_the_chain_begins_with_the_best_of_the_library() -> None:
    one, other = (Seed(id=name, kernel=kernel(name)) for name in ("one", "other"))
    grown = Grown().library(one, 5.0).library(other, 4.0)
    assert grown.name(LAST.ask(grown.view(entries=[one, other]), RNG)) == "one"


def test_it_builds_on_the_last_or_the_best() -> None:
    with pytest.raises(ValueError, match=r"^sequential_revision\.build_on is 'first'; it must be"):
        SequentialRevision(ideas=1, branch=1, build_on="first")
