from __future__ import annotations

from dataclasses import replace

import pytest

from search.protocols import View
from search.records.tree import Expansion, Seed
from search.strategies.values import idea_nodes_of, nodes_of, ranked_seeds, require, standardised, tries
from tests.search.fakes import correct, failed, in_turns, kernel
from tests.search.strategies.trees import Grown


def test_kernels_stand_below_the_one_they_were_written_from() -> None:
    grown = Grown().idea("", a=2.0, b=3.0).idea("b", c=4.0, d=0.0).idea("b", e=0.0)
    root, a, b, c = nodes_of(grown.view())
    assert (root.seed, root.value, root.children, root.tries) == (None, 1.0, [a, b], 1)
    assert (b.seed, b.parent, b.children, b.tries) == (grown.seed("b"), root, [c], 2)
    assert [node.value for node in (a, b, c)] == pytest.approx([2.0, 3.0, 4.0])


def test_equal_kernels_are_one_and_make_no_circle() -> None:
    grown = Grown().idea("", a=2.0).idea("a", b=3.0)
    grown.idea("b", a=2.0).idea("a", b=3.0)
    root, a, b = nodes_of(grown.view())
    assert (root.children, a.children, b.children) == ([a], [b], [])
    assert (a.tries, b.tries) == (2, 1)


def test_a_library_kernel_is_a_node_before_it_is_measured_and_after() -> None:
    entry = Seed(id="entry", kernel=kernel("entry"))
    _, node = nodes_of(Grown().view(entries=[entry]))
    assert (node.seed, node.value) == (entry, 1.0)
    grown = Grown().library(entry, 5.0).idea("entry", a=6.0)
    root, node, a = nodes_of(grown.view(entries=[entry]))
    assert (node.value, node.tries, node.children, root.tries) == (pytest.approx(5.0), 1, [a], 0)
    assert len(nodes_of(Grown().library(entry, 0.0).view(entries=[entry]))) == 1
    root, taken, idea = idea_nodes_of(grown.view(entries=[entry]))
    assert (taken.parent, idea.parent) == (root, taken)


def test_a_kernel_that_was_faster_face_to_face_counts_as_much_as_those_behind() -> None:
    grown = Grown().idea("", a=2.0, b=3.0)
    a, b = grown.seed("a"), grown.seed("b")
    assert a is not None and b is not None
    noisy = in_turns(correct(2.2))
    assert noisy.timing is not None
    noisy = replace(noisy, timing=replace(noisy.timing, speedup_low=1.0))
    grown.tree.compare({a.kernel.id: noisy, b.kernel.id: in_turns(correct(2.0))})
    _, first, second = nodes_of(grown.view())
    assert first.value == second.value == pytest.approx(1.98)


def test_what_is_pending_is_counted_once() -> None:
    grown = Grown().idea("", a=2.0).idea("a", round=2, b=None)
    grown.tree.rounds_closed = 1
    a = grown.seed("a")
    assert a is not None
    assert tries(grown.view("a"))[a.kernel.id] == 1
    assert tries(grown.view("a", "a", ""))[a.kernel.id] == 2
    known = Expansion(seed=a, ideas=1, variants=1, as_it_is=True)
    assert tries(View(tree=grown.tree, pending=[known]))[a.kernel.id] == 1


def test_ideas_have_their_best_variant() -> None:
    grown = Grown().idea("", a=2.0, b=3.0).idea("a", c=0.0).idea("b", d=None, e=1.0)
    root, first, second, third = idea_nodes_of(grown.view())
    assert first.seed == grown.seed("b")
    assert root.children == [first]
    assert first.children == [second, third]
    assert (second.seed, second.value, second.is_settled, third.is_settled) == (None, 0.0, True, False)


def test_seeds_in_order_leave_out_what_failed_here() -> None:
    entry = Seed(id="entry", kernel=kernel("entry"), evaluation=correct(9.0))
    broken = Seed(id="broken", kernel=kernel("broken"), evaluation=failed())
    grown = Grown().idea("", a=2.0, b=3.0)
    found = ranked_seeds(grown.tree, [broken, entry], 2)
    assert found == [entry, grown.seed("b")]
    assert entry not in ranked_seeds(grown.library(entry, 0.0).tree, [entry], 9)


def test_standardised_by_the_median_absolute_deviation() -> None:
    assert standardised([1.0, 2.0, 3.0, 5.0, 9.0]) == [-1.0, -0.5, 0.0, 1.0, 3.0]
    assert standardised([4.0]) == [0.0]
    assert standardised([1.0, 1.0, 1.0, 2.0])[3] > 1e6


def test_invalid_parameters() -> None:
    with pytest.raises(ValueError, match=r"^puct\.c is -1; it must not be negative$"):
        require("puct", 0, c=-1)
    with pytest.raises(ValueError, match=r"^beam\.width is 0; it must be at least 1$"):
        require("beam", 1, ideas=1, width=0)
    with pytest.raises(ValueError, match=r"^puct\.c is nan;"):
        require("puct", 0, c=float("nan"))
