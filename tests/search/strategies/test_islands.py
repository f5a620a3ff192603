from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from search.records.tree import Category
from search.strategies.islands import Islands, weights
from search.strategies.values import Node
from tests.search.strategies.trees import Grown


def islands(number: int = 2, *, sharpness: float = 10.0, migration: float = 0.0) -> Islands:
    return Islands(ideas=9, branch=1, islands=number, sharpness=sharpness, migration=migration)


def chosen(strategy: Islands, grown: Grown, *pending: str) -> Counter[str]:
    """How often of 300 times each kernel is chosen."""
    view = grown.view(*pending)
    return Counter(grown.name(strategy.ask(view, random.Random(draw))) for draw in range(300))


def test_each_island_is_founded_from_the_reference() -> None:
    grown = Grown()
    assert set(chosen(islands(3), grown)) == {""}
    grown.idea("", a=9.0)
    assert set(chosen(islands(3), grown)) == set(chosen(islands(3), grown, "")) == {""}
    assert set(chosen(islands(3), grown, "", "")) == {"a"}


@pytest.mark.slow
def test_islands_take_turns_and_keep_to_their_own_kernels() -> None:
    grown = Grown().idea("", a=9.0).idea("", b=2.0)
    assert set(chosen(islands(), grown)) == {"a"}
    assert set(chosen(islands(), grown, "a")) == {"b"}
    grown.idea("a", category=Category.COMPUTE, c=8.0)
    assert set(chosen(islands(), grown)) == {"b"}
    assert set(chosen(islands(sharpness=0.0), grown.idea("b", d=0.0))) == {"a", "c"}


def test_an_island_whose_founder_failed_is_founded_again() -> None:
    assert set(chosen(islands(), Grown().idea("", a=9.0).idea("", b=0.0).idea("a", c=9.0))) == {""}


def test_those_who_migrate_are_on_the_next_island() -> None:
    grown = Grown().idea("", a=9.0).idea("", b=2.0).idea("a", c=8.0).idea("a", d=0.0).idea("a", e=0.0)
    assert set(chosen(islands(migration=0.0), grown)) == {"b"}
    # with all of them, the second island has four ideas: its own founder's and a's three
    assert set(chosen(islands(migration=1.0), grown)) == {"a"}
    assert set(chosen(islands(migration=1.0), grown, "a", "a", "a", "a")) == {"c"}  # the elite, before b


def test_a_share_of_the_ideas_migrates() -> None:
    grown = Grown().idea("", a=9.0)
    for i in range(400):
        grown.idea("a", **{f"a{i}": 8.0})
    strategy = islands(1000, migration=0.25)
    view = grown.view()
    home, crowd = strategy.settle(view, [])
    assert crowd[1] == pytest.approx(100, abs=35)
    assert sum(crowd) == 401
    assert islands(1000, migration=0.25).settle(view, [])[0] == home


def test_elites_are_the_fastest_of_a_category_and_language() -> None:
    grown = Grown().idea("", a=4.0, b=3.0)
    grown.idea("a", category=Category.COMPUTE, c=3.5).idea("a", language="cuda", d=3.6)
    grown.idea("a", category=Category.COMPUTE, e=3.4)
    assert set(chosen(islands(1, sharpness=0.0), grown)) == {"a", "c", "d"}


def test_weights_follow_the_score_and_the_number_of_children() -> None:
    nodes = [
        Node(seed=None, value=value, tries=tries) for value, tries in ((1.0, 0), (2.0, 0), (2.0, 3), (3.0, 1))
    ]
    low, middle, used, high = weights(nodes, 1.0)
    assert (middle, used) == (0.5, 0.125)
    assert low == pytest.approx(1 / (1 + math.exp(2)))  # two deviations of 0.5 below the median
    assert high == pytest.approx((1 - low) / 2)
    assert weights(nodes, 0.0) == [0.5, 0.5, 0.125, 0.25]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"number": 0}, r"^islands\.islands is 0; it must be at least 1$"),
        ({"sharpness": -1.0}, r"^islands\.sharpness is -1\.0; it must not be negative$"),
        ({"migration": 2.0}, r"^islands\.migration is 2\.0; it must be between 0 and 1$"),
    ],
)
def test_invalid_settings(setting: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        islands(**setting)
