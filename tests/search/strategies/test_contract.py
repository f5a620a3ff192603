"""What holds for every strategy. A new one gets a line in STRATEGIES, and a failing test until it has."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import search.strategies
from search.protocols import Strategy
from search.strategies.idea_branching import IdeaBranching
from search.tree import Category, Idea, Seed, Tree, Variant
from tests.search.fakes import contents, correct, kernel, verdict_by_hash

# every strategy, in settings worth trying, with the number of ideas that its rounds have
STRATEGIES: list[tuple[Strategy, int]] = [
    (IdeaBranching(ideas=1, branch=1, keep=1), 1),
    (IdeaBranching(ideas=25, branch=8, keep=4), 25),
    (IdeaBranching(ideas=2, branch=3, keep=9), 2),
]
every_strategy = pytest.mark.parametrize(
    ("strategy", "ideas"), STRATEGIES, ids=[f"{type(s).__name__}-{ideas}" for s, ideas in STRATEGIES]
)


def tree_of(rng: random.Random, rounds: int, *, correct_ones: bool = True) -> Tree:
    """Closed rounds of random size, with some equal kernels and all kinds of verdicts."""
    tree = Tree()
    for number in range(1, rounds + 1):
        seeds = [variant.id for variant in tree.best(3)] or [""]
        for i in range(rng.randint(1, 4)):
            idea = Idea(
                text=f"{number}.{i}",
                category=Category.MEMORY,
                parent=rng.choice(seeds),
                round=number,
                proposer="fake",
            )
            tree.add_idea(idea)
            for name in rng.sample(range(40), rng.randint(0, 3)):
                variant = Variant(kernel=kernel(name), idea=idea.id, parent=idea.parent, round=number)
                evaluation = verdict_by_hash(variant.kernel)
                if correct_ones or evaluation.timing is None:
                    tree.add_variant(variant)
                    tree.evaluate(variant.id, evaluation)
        tree.rounds_closed = number
    return tree


def entries_of(rng: random.Random) -> list[Seed]:
    return [
        Seed(
            id=f"entry{i}",
            kernel=kernel(f"entry{i}"),
            evaluation=rng.choice([None, correct(rng.random() + 1)]),
        )
        for i in range(rng.randint(0, 3))
    ]


cases = given(case=st.integers(0, 10**6), rounds=st.integers(0, 4), correct_ones=st.booleans())


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_a_round_has_all_its_ideas(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    tree = tree_of(rng, rounds, correct_ones=correct_ones)
    expansions = strategy.select(tree, entries_of(rng), random.Random(case))
    assert sum(expansion.ideas for expansion in expansions) == ideas


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_seeds_are_in_the_tree_or_the_library_and_chosen_once(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    tree, entries = tree_of(rng, rounds, correct_ones=correct_ones), entries_of(rng)
    seeds = [expansion.seed for expansion in strategy.select(tree, entries, random.Random(case))]
    known = [variant.seed for variant in tree.variants.values()] + entries
    for seed in seeds:
        if seed is not None:
            assert seed in known
            assert seed.evaluation is None or seed.evaluation.timing is not None
    assert len({seed and seed.kernel.id for seed in seeds}) == len(seeds)


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_equal_arguments_give_equal_answers_and_stay_as_they_were(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    tree, entries = tree_of(rng, rounds, correct_ones=correct_ones), entries_of(rng)
    tree_before, entries_before = copy.deepcopy(contents(tree)), list(entries)
    settings_before, chance_before = copy.deepcopy(vars(strategy)), random.getstate()
    first = strategy.select(tree, entries, random.Random(case))
    strategy.select(Tree(), [], random.Random(1))
    assert strategy.select(tree, entries, random.Random(case)) == first
    assert contents(tree) == tree_before
    assert entries == entries_before
    assert vars(strategy) == settings_before
    assert random.getstate() == chance_before


@every_strategy
def test_an_empty_tree_starts_from_the_reference(strategy: Strategy, ideas: int) -> None:
    expansions = strategy.select(Tree(), [], random.Random(0))
    assert [expansion.seed for expansion in expansions] == [None] * len(expansions)
    assert expansions


@every_strategy
def test_rounds_without_anything_correct_start_from_the_reference(strategy: Strategy, ideas: int) -> None:
    tree = tree_of(random.Random(3), 3, correct_ones=False)
    assert tree.variants
    assert {expansion.seed for expansion in strategy.select(tree, [], random.Random(0))} == {None}


def test_every_strategy_is_in_the_suite() -> None:
    tested = {type(strategy) for strategy, _ in STRATEGIES}
    for found in pkgutil.iter_modules(search.strategies.__path__):
        module = importlib.import_module(f"search.strategies.{found.name}")
        for _, thing in inspect.getmembers(module, inspect.isclass):
            if thing.__module__ == module.__name__ and hasattr(thing, "select"):
                assert thing in tested, f"{thing.__name__} is not among STRATEGIES of {__name__}"
