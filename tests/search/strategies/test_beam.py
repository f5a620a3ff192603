from __future__ import annotations

import random

import pytest

from search.protocols import expansions_of_a_round
from search.records.tree import Seed
from search.strategies.beam import Beam
from tests.search.fakes import kernel
from tests.search.strategies.trees import Grown


def expanded(strategy: Beam, grown: Grown, entries: list[Seed] | None = None) -> list[tuple[str, int]]:
    view = grown.view(left=strategy.ideas, entries=entries or [])
    asked = expansions_of_a_round(strategy, view, lambda _: random.Random(0))
    return [(grown.name(each), each.ideas) for each in asked]


def test_the_best_of_the_last_round_are_expanded_evenly() -> None:
    grown = Grown().idea("", a=9.0).idea("a", round=2, b=2.0, c=4.0, d=3.0).idea("a", round=2, e=1.0)
    assert expanded(Beam(ideas=8, branch=1, width=3), grown) == [("c", 3), ("d", 3), ("b", 2)]
    assert expanded(Beam(ideas=2, branch=1, width=3), grown) == [("c", 1), ("d", 1)]


def test_a_round_without_anything_correct_is_passed_over() -> None:
    grown = Grown().idea("", a=2.0).idea("a", round=2, b=3.0).idea("b", round=3, c=0.0)
    assert expanded(Beam(ideas=4, branch=1, width=2), grown) == [("b", 4)]


def test_the_first_beam_is_the_library() -> None:
    entry = Seed(id="entry", kernel=kernel("entry"))
    asked = Beam(ideas=4, branch=1, width=2).ask(Grown().view(left=4, entries=[entry]), random.Random(0))
    assert asked is not None
    assert asked.seed == entry


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^beam\.width is 0; it must be at least 1$"):
        Beam(ideas=1, branch=1, width=0)
