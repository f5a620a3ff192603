from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.records.evaluation import Evaluation
from search.protocols import View, expansions_of_a_round
from search.records.tree import Category, Expansion, Idea, Seed, Tree, Variant
from search.strategies.idea_branching import IdeaBranching, shares
from tests.search.fakes import correct, failed, kernel

RNG = random.Random(0)


def tree_of(*rounds: dict[str, Evaluation]) -> Tree:
    """One idea a round, with variants by the name of their kernel."""
    tree = Tree()
    for number, verdicts in enumerate(rounds, start=1):
        idea = Idea(text="idea", category=Category.MEMORY, parent="", round=number, proposer="fake")
        tree.add_idea(idea)
        for name, evaluation in verdicts.items():
            variant = Variant(kernel=kernel(name), idea=idea.id, parent="", round=number)
            tree.add_variant(variant)
            tree.evaluate(variant.id, evaluation)
        tree.rounds_closed = number
    return tree


def chosen(strategy: IdeaBranching, tree: Tree, entries: list[Seed]) -> list[tuple[str, int]]:
    """The names of the seeds' kernels, and the ideas of each."""
    return [
        (expansion.seed.kernel.source.split()[-1] if expansion.seed else "", expansion.ideas)
        for expansion in expansions_of_a_round(strategy, View(tree=tree, entries=entries), lambda _: RNG)
    ]


@pytest.mark.slow
@given(ideas=st.integers(1, 200), seeds=st.integers(1, 30))
def test_shares_add_up_and_the_better_never_gets_less(ideas: int, seeds: int) -> None:
    given = shares(ideas, seeds)
    assert sum(given) == ideas
    assert given == sorted(given, reverse=True)
    assert seeds == 1 or given[0] > given[1]


def test_shares_follow_the_rule() -> None:
    assert shares(25, 4) == [12, 6, 4, 3]
    assert shares(5, 4) == [3, 1, 1, 0]
    assert shares(1, 3) == [1, 0, 0]
    assert shares(7, 1) == [7]


def test_the_first_round_starts_from_the_reference() -> None:
    strategy = IdeaBranching(ideas=4, branch=3, keep=2)
    assert strategy.ask(View(tree=Tree(), left=4), RNG) == Expansion(seed=None, ideas=4, variants=3)


def test_the_best_of_all_rounds_are_kept() -> None:
    tree = tree_of({"a": correct(3.0), "b": failed()}, {"c": correct(2.0), "d": correct(4.0)})
    assert chosen(IdeaBranching(ideas=6, branch=1, keep=2), tree, []) == [("d", 4), ("a", 2)]


def test_measured_entries_stand_among_the_variants_others_after_them() -> None:
    tree = tree_of({"a": correct(3.0), "b": correct(1.0)})
    entries = [
        Seed(id="1", kernel=kernel("unmeasured")),
        Seed(id="2", kernel=kernel("measured"), evaluation=correct(2.0)),
        Seed(id="3", kernel=kernel("broken"), evaluation=failed()),
    ]
    names = [name for name, _ in chosen(IdeaBranching(ideas=50, branch=1, keep=9), tree, entries)]
    assert names == ["a", "measured", "b", "unmeasured"]
    names = [name for name, _ in chosen(IdeaBranching(ideas=50, branch=1, keep=2), Tree(), entries)]
    assert names == ["measured", "unmeasured"]


def test_what_was_measured_here_counts_more_than_what_an_entry_says() -> None:
    tree = tree_of({"a": correct(3.0), "b": correct(1.0)})
    entries = [Seed(id="1", kernel=kernel("b"), evaluation=correct(9.0))]
    assert [name for name, _ in chosen(IdeaBranching(ideas=9, branch=1, keep=9), tree, entries)] == ["a", "b"]


def test_an_entry_that_was_tried_here_is_not_unmeasured() -> None:
    tree = tree_of({"a": correct(3.0), "b": failed()})
    entries = [Seed(id="1", kernel=kernel("a")), Seed(id="2", kernel=kernel("b"))]
    assert chosen(IdeaBranching(ideas=1, branch=1, keep=4), tree, entries) == [("a", 1)]
    only_failed = tree_of({"b": failed()})
    assert chosen(IdeaBranching(ideas=1, branch=1, keep=4), only_failed, entries[1:]) == [("", 1)]


@pytest.mark.parametrize("name", ["ideas", "branch", "keep"])
def test_numbers_below_one_are_refused(name: str) -> None:
    numbers = {"ideas": 1, "branch": 1, "keep": 1, name: 0}
    with pytest.raises(ValueError, match=f"idea_branching.{name} is 0"):
        IdeaBranching(**numbers)


def test_equal_speedups_go_by_id() -> None:
    tree = tree_of({name: correct(2.0) for name in "abcdef"})
    strategy = IdeaBranching(ideas=9, branch=1, keep=3)
    expansions = expansions_of_a_round(strategy, View(tree=tree), lambda _: RNG)
    ids = sorted(variant.id for variant in tree.variants.values())
    assert [expansion.seed and expansion.seed.id for expansion in expansions] == ids[:3]
    assert replace(expansions[0], round=0) == expansions[0]


def test_without_rounds_the_shares_hold_of_what_is_under_way() -> None:
    tree = tree_of({name: correct(2.0) for name in "abc"})
    strategy = IdeaBranching(ideas=9, branch=2, keep=3, synchronous=False)
    pending: list[Expansion] = []
    for _ in range(11):
        asked = strategy.ask(View(tree=tree, pending=pending), RNG)
        assert asked is not None
        assert (asked.ideas, asked.variants) == (1, 2)
        pending.append(asked)
    ids = [expansion.seed.id for expansion in pending if expansion.seed]
    assert [ids.count(id) for id in dict.fromkeys(ids)] == shares(11, 3)
