from __future__ import annotations

import random
from dataclasses import replace

import pytest

from evaluators.records.evaluation import Evaluation
from evaluators.records.race import after_quick_stage
from search.records.tree import Category, Expansion, Idea, Tree, Variant, fastest, speedups_of
from tests.search.fakes import correct, failed, kernel


def idea(name: str, round: int = 1) -> Idea:
    return Idea(text=name, category=Category.COMPUTE, parent="", round=round, proposer="fake")


def variant(of: Idea, name: object) -> Variant:
    return Variant(kernel=kernel(name), idea=of.id, parent=of.parent, round=of.round)


def test_the_fastest_do_not_depend_on_the_order_of_arrival() -> None:
    one, other, later = idea("one"), idea("other"), idea("later", round=2)
    variants = [
        replace(variant(of, name), evaluation=correct(speedup))
        for of, name, speedup in (
            (one, "same", 3.0),
            (other, "same", 3.0),
            (later, "same", 3.0),
            (one, "slow", 1.0),
            (other, "tie", 3.0),
        )
    ]
    variants.append(replace(variant(one, "wrong"), evaluation=failed()))
    expected = fastest(variants, 9)
    assert [v.evaluation.speedup for v in expected if v.evaluation] == [3.0, 3.0, 1.0]
    assert all(v.round == 1 for v in expected)
    for seed in range(20):
        random.Random(seed).shuffle(variants)
        assert fastest(variants, 9) == expected


def test_speedups_by_id_are_of_what_has_a_verdict() -> None:
    one = idea("one")
    fast, wrong, waiting = (variant(one, name) for name in ("fast", "wrong", "waiting"))
    measured = [replace(fast, evaluation=correct(3.0)), replace(wrong, evaluation=failed()), waiting]
    assert speedups_of(measured) == {fast.id: 3.0, wrong.id: 0.0}
    assert speedups_of([measured[0].seed]) == {fast.id: 3.0}


def test_a_full_verdict_shows_from_the_round_after_the_one_in_which_it_came() -> None:
    """The open round was selected without it."""
    tree, first = Tree(), idea("first")
    tree.add_idea(first)
    tree.add_variant(written := variant(first, 1))
    tree.evaluate(written.id, after_quick_stage(correct(2.0), None))
    tree.rounds_closed = 1
    tree.evaluate(written.id, correct(1.9))  # at the end of round 2
    assert [each.is_outpaced for each in tree.before(2).variants.values()] == [True]
    assert not tree.before(2).best()
    assert [each.speedup for each in evaluations(tree.before(3))] == [1.9]
    with pytest.raises(ValueError, match="already has"):
        tree.evaluate(written.id, correct(1.8))


def evaluations(tree: Tree) -> list[Evaluation]:
    return [each.evaluation for each in tree.best(9) if each.evaluation is not None]


def test_before_a_round_the_tree_has_the_earlier_rounds_in_the_order_of_their_ideas() -> None:
    tree = Tree()
    first, second, third = idea("first"), idea("second"), idea("third", round=2)
    for it in (first, second, third):
        tree.add_idea(it)
    for it, name in ((third, 1), (second, 2), (first, 3), (first, 4)):
        tree.add_variant(variant(it, name))
    tree.rounds_closed = 1
    earlier = tree.before(2)
    assert list(earlier.ideas) == [first.id, second.id]
    assert [v.kernel for v in earlier.variants.values()] == [kernel(3), kernel(4), kernel(2)]
    assert earlier.rounds_closed == 1
    assert tree.before(1).rounds_closed == 0


def test_what_is_in_the_tree_cannot_be_added_or_judged_again() -> None:
    tree = Tree()
    it = idea("first")
    tree.add_idea(it)
    tree.add_variant(variant(it, 1))
    tree.evaluate(variant(it, 1).id, failed())
    with pytest.raises(ValueError, match="already in the tree"):
        tree.add_idea(it)
    with pytest.raises(ValueError, match="already in the tree"):
        tree.add_variant(variant(it, 1))
    with pytest.raises(ValueError, match="already has an evaluation"):
        tree.evaluate(variant(it, 1).id, correct())


def test_an_expansion_asks_for_something() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Expansion(seed=None, ideas=0, variants=1)
