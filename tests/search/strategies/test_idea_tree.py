from __future__ import annotations

import random

import pytest

from search.records.tree import Seed
from search.strategies.idea_tree import IdeaTree
from tests.search.fakes import kernel
from tests.search.strategies.trees import Grown


def chosen(grown: Grown, *pending: str, patience: int = 2, depth_price: float = 0.0) -> str:
    strategy = IdeaTree(ideas=9, branch=1, patience=patience, depth_price=depth_price)
    return grown.name(strategy.ask(grown.view(*pending), random.Random(0)))


def test_the_best_variant_of_the_best_idea_is_built_on() -> None:
    grown = Grown().idea("", a=2.0, b=3.0).idea("", c=2.5)
    assert chosen(grown) == "b"
    assert chosen(grown.idea("b", d=4.0)) == "d"


def test_an_idea_is_given_up_after_tries_without_gain() -> None:
    grown = Grown().idea("", a=2.0).idea("a", b=3.0).idea("b", c=2.9)
    assert chosen(grown) == "b"
    grown.idea("b", d=0.0)
    assert chosen(grown, patience=3) == "b"
    assert chosen(grown) == "c"
    grown.idea("c", e=0.0).idea("c", f=1.0)
    assert chosen(grown) == "a"  # its last try gained
    grown.idea("a", g=0.0).idea("a", h=0.0).idea("f", i=0.0).idea("f", j=0.0)
    assert chosen(grown) == ""
    assert chosen(grown, "", "", "") == ""


def test_a_gain_renews_patience() -> None:
    grown = Grown().idea("", a=2.0).idea("a", b=0.0).idea("a", c=2.1).idea("a", d=2.05)
    assert chosen(grown, "c", "c", "d", "d") == "a"
    assert chosen(grown.idea("a", e=0.0), "c", "c", "d", "d") == ""


def test_tries_under_way_count_once() -> None:
    grown = Grown().idea("", a=3.0).idea("", b=2.0)
    assert [chosen(grown, *"a" * n) for n in (0, 1, 2)] == ["a", "a", "b"]
    grown.idea("a", c=None, round=2)
    grown.tree.rounds_closed = 1
    assert chosen(grown, "a") == "a"
    assert chosen(grown, "a", "a") == "b"


def test_what_came_of_fewer_ideas_goes_first_where_depth_has_a_price() -> None:
    grown = Grown().idea("", a=1.0).idea("a", b=1.5).idea("", c=1.49)
    assert chosen(grown) == "b"
    assert chosen(grown, depth_price=0.1) == "c"


def test_the_reference_goes_before_what_is_slower_until_it_is_given_up() -> None:
    grown = Grown().idea("", a=0.5)
    assert chosen(grown) == ""
    assert chosen(grown.idea("", b=0.4)) == "a"


def test_measuring_the_library_is_no_try() -> None:
    entries = [Seed(id=name, kernel=kernel(name)) for name in ("one", "other")]
    grown = Grown()
    for entry in entries:
        grown.library(entry, 0.9)
    assert chosen(grown) == ""


def test_invalid_settings() -> None:
    with pytest.raises(ValueError, match=r"^idea_tree\.patience is 0; it must be at least 1$"):
        IdeaTree(ideas=1, branch=1, patience=0, depth_price=0.0)
    with pytest.raises(ValueError, match=r"^idea_tree\.depth_price is -0\.1; it must not be negative$"):
        IdeaTree(ideas=1, branch=1, patience=1, depth_price=-0.1)
