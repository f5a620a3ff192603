from __future__ import annotations

import random

import pytest

from search.strategies.puct import Puct
from tests.search.strategies.trees import Grown

RNG = random.Random(0)


def puct(c: float = 1.0, per_idea: int = 2, buffer: int = 1000) -> Puct:
    return Puct(ideas=9, branch=1, c=c, per_idea=per_idea, buffer=buffer)


def test_the_score_worked_by_hand() -> None:
    """Values 4, 2, 1 (the reference): priors 3/6, 2/6, 1/6, range 3, T = 3 ideas."""
    grown = Grown().idea("", a=4.0).idea("", b=2.0).idea("a", c=0.0)
    # a: 4 + 3c * 1/2 * sqrt(4) / (1 + 1) = 4 + 1.5 c; b: 2 + 3c * 1/3 * 2 / 1 = 2 + 2c: equal at c = 4
    assert grown.name(puct(3.9).ask(grown.view(), RNG)) == "a"
    assert grown.name(puct(4.1).ask(grown.view(), RNG)) == "b"


def test_the_value_is_that_of_the_best_child() -> None:
    grown = Grown().idea("", a=2.0).idea("", b=3.0).idea("a", c=5.0)
    assert grown.name(puct(0.0).ask(grown.view(), RNG)) == "c"
    assert grown.name(puct(0.0).ask(grown.idea("c", d=1.0).view(), RNG)) == "a"


def test_what_is_pending_counts_as_a_visit_and_blocks_its_lineage() -> None:
    grown = Grown().idea("", a=4.0).idea("a", b=5.0).idea("b", c=6.0).idea("a", d=3.0).idea("", e=2.0)
    assert grown.name(puct(0.0).ask(grown.view("b"), RNG)) == "d"
    assert grown.name(puct(9.0).ask(grown.view("d"), RNG)) == "c"
    assert grown.name(puct(9.0).ask(grown.view("b", "e"), RNG)) == "d"
    assert grown.name(puct(9.0).ask(grown.view("b", "e", "d"), RNG)) == ""
    assert grown.name(puct(9.0).ask(grown.view("b", "e", "d", "", ""), RNG)) == ""
    assert grown.name(puct(0.0).ask(grown.view(""), RNG)) == "c"


def test_visits_of_what_came_of_a_kernel_are_its_own() -> None:
    """With its one own idea a would have 2 + sqrt(13) * 4/10 / 2, more than b with 1.9 + sqrt(13) * 2/10."""
    grown = Grown().idea("", a=2.0).idea("", b=1.9).idea("a", c=2.0)
    for i in range(9):
        grown.idea("c", **{f"failed{i}": 0.0})
    assert grown.name(puct().ask(grown.view(), RNG)) == "b"


def test_many_at_a_time_go_to_different_lineages() -> None:
    grown = Grown()
    for name in "abcde":
        grown.idea("", **{name: 2.0 + ord(name) / 100})
    pending: list[str] = []
    for _ in range(7):
        pending.append(grown.name(puct().ask(grown.view(*pending), RNG)))
    assert pending == ["e", "d", "c", "b", "a", "", ""]


def test_the_buffer_keeps_two_of_an_idea_and_the_best_of_all() -> None:
    grown = Grown().idea("", a=5.0, b=4.0, c=3.0).idea("", d=2.0)
    pending: list[str] = []
    for _ in range(5):
        pending.append(grown.name(puct().ask(grown.view(*pending), RNG)))
    assert pending == ["a", "b", "d", "", ""]
    assert grown.name(puct(buffer=1).ask(grown.view("a"), RNG)) == ""


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"c": -1}, r"^puct\.c is -1; it must not be negative$"),
        ({"per_idea": 0}, r"^puct\.per_idea is 0; it must be at least 1$"),
        ({"buffer": 0}, r"^puct\.buffer is 0; it must be at least 1$"),
    ],
)
def test_invalid_settings(setting: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        puct(**setting)
