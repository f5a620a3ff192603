"""What holds for every strategy. A new one gets a line in STRATEGIES, and a failing test until it has."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import search.strategies
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.protocols import Strategy, View, expansions_of_a_round
from search.records.tree import Category, Expansion, Idea, Seed, Tree, Variant, library_idea
from search.strategies.ab_mcts import AbMcts
from search.strategies.beam import Beam
from search.strategies.best_of_n import BestOfN
from search.strategies.idea_branching import IdeaBranching
from search.strategies.idea_tree import IdeaTree
from search.strategies.islands import Islands
from search.strategies.puct import Puct
from search.strategies.relay import Relay
from search.strategies.sequential_revision import SequentialRevision
from tests.search.fakes import contents, correct, in_turns, kernel, verdict_by_hash

RELAY = Relay(
    ideas=4,
    stage=3,
    strategies=[
        SequentialRevision(ideas=4, branch=1, build_on="best"),
        Puct(ideas=4, branch=2, c=1.0, per_idea=2, buffer=100),
        BestOfN(ideas=4, branch=2, from_library=False),
    ],
)
ROUNDS = Relay(
    ideas=6,
    stage=5,
    strategies=[Beam(ideas=6, branch=1, width=2), IdeaBranching(ideas=6, branch=1, keep=3)],
)
# every strategy, in settings worth trying, with the number of ideas that its rounds have
STRATEGIES: list[tuple[Strategy, int]] = [
    (IdeaBranching(ideas=1, branch=1, keep=1), 1),
    (IdeaBranching(ideas=25, branch=8, keep=4), 25),
    (IdeaBranching(ideas=2, branch=3, keep=9), 2),
    (IdeaBranching(ideas=6, branch=2, keep=3, synchronous=False), 6),
    (SequentialRevision(ideas=5, branch=1, build_on="last"), 5),
    (SequentialRevision(ideas=3, branch=2, build_on="best"), 3),
    (BestOfN(ideas=8, branch=2, from_library=False), 8),
    (BestOfN(ideas=4, branch=1, from_library=True), 4),
    (Beam(ideas=6, branch=4, width=4), 6),
    (Beam(ideas=2, branch=1, width=5), 2),
    (Puct(ideas=7, branch=2, c=1.0, per_idea=2, buffer=1000), 7),
    (Puct(ideas=3, branch=1, c=0.0, per_idea=1, buffer=2), 3),
    (AbMcts(ideas=9, branch=2, posterior="gaussian"), 9),
    (AbMcts(ideas=5, branch=1, posterior="beta"), 5),
    (Islands(ideas=10, branch=2, islands=2, sharpness=10.0, migration=0.1), 10),
    (Islands(ideas=4, branch=1, islands=5, sharpness=0.0, migration=1.0), 4),
    (IdeaTree(ideas=11, branch=3, patience=5, depth_price=0.02), 11),
    (IdeaTree(ideas=3, branch=1, patience=1, depth_price=0.0), 3),
    (RELAY, 4),
    (ROUNDS, 6),
]
every_strategy = pytest.mark.parametrize(
    ("strategy", "ideas"), STRATEGIES, ids=[f"{type(s).__name__}-{ideas}" for s, ideas in STRATEGIES]
)


def tree_of(
    rng: random.Random, rounds: int, *, correct_ones: bool = True, entries: Sequence[Seed] = ()
) -> Tree:
    """Closed rounds of random size, with some equal kernels, all kinds of verdicts, and comparisons. The
    first one has measured some of the library's entries."""
    tree = Tree()
    for number in range(1, rounds + 1):
        for entry in rng.sample(entries, rng.randint(0, len(entries))) if number == 1 else ():
            add(tree, library_idea(entry, 1), entry.kernel, verdict_by_hash(entry.kernel))
        seeds = [variant.id for variant in tree.best(3)] or ["", *(entry.id for entry in entries)]
        for i in range(rng.randint(1, 4)):
            idea = Idea(
                text=f"{number}.{i}",
                category=rng.choice(list(Category)),
                parent=rng.choice(seeds),
                round=number,
                proposer="fake",
            )
            add(tree, idea)
            for each in map(kernel, rng.sample(range(40), rng.randint(0, 3))):
                evaluation = verdict_by_hash(each)
                if correct_ones or evaluation.timing is None:
                    add(tree, idea, each, evaluation)
        tree.rounds_closed = number
        if len(leaders := tree.best(3)) > 1 and rng.random() < 0.5:
            tree.compare({each.kernel.id: in_turns(correct(1 + rng.random())) for each in leaders})
    return tree


def add(tree: Tree, idea: Idea, kernel: Kernel | None = None, evaluation: Evaluation | None = None) -> None:
    """The idea, if it is not there yet, and a variant of it, with its verdict if it has one."""
    if idea.id not in tree.ideas:
        tree.add_idea(idea)
    if kernel is not None:
        variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=idea.round)
        tree.add_variant(variant)
        if evaluation is not None:
            tree.evaluate(variant.id, evaluation)


def assert_known(seed: Seed | None, view: View) -> None:
    """It is the reference, an entry that has not failed, or a correct variant."""
    if seed is None:
        return
    if seed in view.entries:
        assert seed.evaluation is None or seed.evaluation.timing is not None
        here = [each.evaluation for each in view.tree.variants.values() if each.kernel == seed.kernel]
        assert all(each is None or each.timing is not None for each in here)
        return
    variant = view.tree.variants[seed.id]
    assert variant.kernel == seed.kernel
    assert variant.evaluation is not None
    found = view.tree.ranking.evaluation(variant.kernel.id, variant.evaluation)
    assert seed.evaluation in (found, variant.evaluation)
    assert variant.evaluation.timing is not None


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
    return expansions_of_a_round(strategy, view, lambda index: random.Random(f"{case}/{index}"))


cases = given(case=st.integers(0, 10**6), rounds=st.integers(0, 4), correct_ones=st.booleans())


@pytest.mark.slow
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


@pytest.mark.slow
@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_seeds_are_in_the_tree_or_the_library(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    entries = entries_of(rng) if correct_ones else []
    tree = tree_of(rng, rounds, correct_ones=correct_ones, entries=entries)
    for expansion in asked(strategy, tree, entries, case):
        assert_known(expansion.seed, View(tree=tree, entries=entries))


@pytest.mark.slow
@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_equal_arguments_give_equal_answers_and_stay_as_they_were(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    rng = random.Random(case)
    entries = entries_of(rng) if correct_ones else []
    tree = tree_of(rng, rounds, correct_ones=correct_ones, entries=entries)
    tree_before, entries_before = copy.deepcopy(contents(tree)), list(entries)
    settings_before, chance_before = pickle.dumps(strategy), random.getstate()
    first = asked(strategy, tree, entries, case)
    asked(strategy, Tree(), [], 1)
    assert asked(strategy, tree, entries, case) == first
    assert contents(tree) == tree_before
    assert entries == entries_before
    assert pickle.dumps(strategy) == settings_before
    assert random.getstate() == chance_before


@pytest.mark.slow
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
    entries = entries_of(rng) if correct_ones else []
    tree = tree_of(rng, rounds, correct_ones=correct_ones, entries=entries)
    seeds: list[Seed | None] = [*(variant.seed for variant in tree.best(2)), *entries] or [None]
    pending = [
        Expansion(seed=entry, ideas=1, variants=1, round=1, as_it_is=True) for entry in entries if rounds == 0
    ]
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
        if rng.random() < 0.8:  # its ideas are there
            add(tree, idea)
            for name in range(rng.randint(0, 2)):
                each = kernel(f"open {number}.{name}")
                add(tree, idea, each, rng.choice([None, verdict_by_hash(each)]))
    view = View(
        tree=tree,
        entries=entries,
        pending=tuple(pending),
        round=rounds + 1,
        left=rng.randint(1, ideas),
    )
    before = copy.deepcopy(contents(tree))
    expansion = strategy.ask(view, random.Random(case))
    assert contents(tree) == before
    assert view.pending == tuple(pending)
    if expansion is not None:
        assert expansion.ideas <= view.left
        assert not expansion.as_it_is
        assert_known(expansion.seed, view)


@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_with_nothing_under_way_there_is_something_to_do(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    """Also for the last idea of a round, and in a round of which some ideas have their verdicts already."""
    if strategy.synchronous:
        return
    rng = random.Random(case)
    tree = tree_of(rng, rounds, correct_ones=correct_ones)
    tree.rounds_closed = max(rounds - 1, 0)
    expansion = strategy.ask(View(tree=tree, round=rounds + 1), rng)
    assert expansion is not None
    assert expansion.ideas == 1


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


@pytest.mark.slow
@every_strategy
@cases
@settings(max_examples=30, deadline=None)
def test_exhausted_kernels_are_passed_over(
    strategy: Strategy, ideas: int, case: int, rounds: int, correct_ones: bool
) -> None:
    """One kernel after the other, until all that it would start from are; then it asks all the same."""
    rng = random.Random(case)
    entries = entries_of(rng) if correct_ones else []
    tree = tree_of(rng, rounds, correct_ones=correct_ones, entries=entries)
    exhausted: set[str] = set()
    for turn in range(100):
        view = View(tree=tree, entries=entries, round=rounds + 1, exhausted=frozenset(exhausted))
        asked = expansions_of_a_round(
            strategy, view, lambda index, turn=turn: random.Random(f"{turn}/{index}")
        )
        assert asked
        kernels = {each.seed.kernel.id if each.seed else "" for each in asked}
        if kernels & exhausted:
            assert kernels <= exhausted, "while one is left, the others are not asked for"
            break
        exhausted |= kernels
    if not isinstance(strategy, BestOfN | Relay):  # they build on nothing, or on one kernel of their stage
        assert "" in exhausted
        usable = {each.kernel.id for each in tree.best(len(tree.variants))}
        assert len(exhausted) > 1 or not usable


def test_every_strategy_is_in_the_suite() -> None:
    tested = {type(strategy) for strategy, _ in STRATEGIES}
    for found in pkgutil.iter_modules(search.strategies.__path__):
        module = importlib.import_module(f"search.strategies.{found.name}")
        for _, thing in inspect.getmembers(module, inspect.isclass):
            if thing.__module__ == module.__name__ and hasattr(thing, "ask"):
                assert thing in tested, f"{thing.__name__} is not among STRATEGIES of {__name__}"
