"""What holds for every strategy. A new one gets a line in STRATEGIES, and a failing test until it has."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import search.strategies
from search.protocols import Strategy, View, asked_in_a_round
from search.strategies.idea_branching import IdeaBranching
from search.tree import Category, Expansion, Idea, Seed, Tree, Variant
from tests.search.fakes import contents, correct, kernel, verdict_by_hash

# every strategy, in settings worth trying, with the number of ideas that its rounds have
STRATEGIES: list[tuple[Strategy, int]] = [
    (IdeaBranching(ideas=1, branch=1, keep=1), 1),
    (IdeaBranching(ideas=25, branch=8, keep=4), 25),
    (IdeaBranching(ideas=2, branch=3, keep=9), 2),
    (IdeaBranching(ideas=6, branch=2, keep=3, synchronous=False), 6),
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


def asked(strategy: Strategy, tree: Tree, entries: Sequence[Seed] = (), case: int = 0) -> list[Expansion]:
    """What the strategy asks for where nothing is under way."""
    view = View(tree=tree, entries=entries, round=tree.rounds_closed + 1)
    return asked_in_a_round(strategy, view, lambda index: random.Random(f"{case}/{index}"))


cases = given(case=st.integers(0, 10**6), rounds=st.integers(0, 4), correct_ones=st.booleans())


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_a_round_has_all_its_ideas(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    """One whose ideas build on one another asks for those that can be had at once."""
    rng = random.Random(case)
    tree = tree_of(rng, rounds, correct_ones=correct_ones)
    assert strategy.ideas == ideas
    number = sum(expansion.ideas for expansion in asked(strategy, tree, entries_of(rng), case))
    assert number == ideas if strategy.synchronous else 1 <= number <= ideas


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_seeds_are_in_the_tree_or_the_library(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    tree, entries = tree_of(rng, rounds, correct_ones=correct_ones), entries_of(rng)
    seeds = [expansion.seed for expansion in asked(strategy, tree, entries, case)]
    known = [variant.seed for variant in tree.variants.values()] + entries
    for seed in seeds:
        if seed is not None:
            assert seed in known
            assert seed.evaluation is None or seed.evaluation.timing is not None


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
    first = asked(strategy, tree, entries, case)
    asked(strategy, Tree(), [], 1)
    assert asked(strategy, tree, entries, case) == first
    assert contents(tree) == tree_before
    assert entries == entries_before
    assert vars(strategy) == settings_before
    assert random.getstate() == chance_before


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_it_can_be_asked_while_work_is_under_way(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    """An open tree: the last round's ideas have some of their variants, and some of their verdicts."""
    if strategy.synchronous:
        return
    rng = random.Random(case)
    tree = tree_of(rng, rounds, correct_ones=correct_ones)
    seeds = [variant.seed for variant in tree.best(2)] or [None]
    pending = []
    for number in range(rng.randint(1, 4)):
        seed = rng.choice(seeds)
        pending.append(Expansion(seed=seed, ideas=1, variants=2, round=rounds + 1))
        idea = Idea(
            text=f"open {number}",
            category=Category.COMPUTE,
            parent=seed.id if seed else "",
            round=rounds + 1,
            proposer="fake",
        )
        tree.add_idea(idea)
        if rng.random() < 0.7:
            each = kernel(f"open {number}")
            tree.add_variant(Variant(kernel=each, idea=idea.id, parent=idea.parent, round=rounds + 1))
    view = View(tree=tree, pending=pending, round=rounds + 1, left=ideas)
    expansion = strategy.ask(view, random.Random(case))
    assert expansion is None or expansion.ideas <= ideas


@every_strategy
def test_an_empty_tree_starts_from_the_reference(strategy: Strategy, ideas: int) -> None:
    expansions = asked(strategy, Tree())
    assert [expansion.seed for expansion in expansions] == [None] * len(expansions)
    assert expansions


@every_strategy
def test_rounds_without_anything_correct_start_from_the_reference(strategy: Strategy, ideas: int) -> None:
    tree = tree_of(random.Random(3), 3, correct_ones=False)
    assert tree.variants
    assert {expansion.seed for expansion in asked(strategy, tree)} == {None}


def test_every_strategy_is_in_the_suite() -> None:
    tested = {type(strategy) for strategy, _ in STRATEGIES}
    for found in pkgutil.iter_modules(search.strategies.__path__):
        module = importlib.import_module(f"search.strategies.{found.name}")
        for _, thing in inspect.getmembers(module, inspect.isclass):
            if thing.__module__ == module.__name__ and hasattr(thing, "ask"):
                assert thing in tested, f"{thing.__name__} is not among STRATEGIES of {__name__}"
