from __future__ import annotations

import random
from collections import Counter

import pytest

from search.records.tree import Seed
from search.strategies.ab_mcts import AbMcts, Scores, normal_inverse_gamma
from tests.search.fakes import kernel
from tests.search.strategies.trees import Grown

DRAWS = 2000


def frequencies(posterior: str, grown: Grown, draws: int = DRAWS) -> dict[str, float]:
    """How often each kernel is chosen."""
    strategy, view = AbMcts(ideas=1, branch=1, posterior=posterior), grown.view()
    chosen = Counter(grown.name(strategy.ask(view, random.Random(draw))) for draw in range(draws))
    return {name: chosen[name] / draws for name in chosen}


def test_the_posterior_worked_by_hand() -> None:
    """Two scores, 0.4 and 0.8: mean 0.6, squared deviations 0.08; prior mean 0, count 1, degrees 1, 0.1."""
    mean, count, degrees, variance = normal_inverse_gamma(Scores(2, 1.2, 0.8))
    assert (mean, count, degrees) == (pytest.approx(1.2 / 3), 3, 3)
    assert variance == pytest.approx((0.1 + 0.08 + 2 / 3 * 0.36) / 3)
    assert normal_inverse_gamma(Scores()) == (0, 1, 1, pytest.approx(0.1))


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_wider_where_new_ideas_do_better_and_deeper_where_edits_do(posterior: str) -> None:
    names = [f"{letter}{i}" for letter in "xyz" for i in range(4)]
    wide, deep = Grown().idea("", a=8.0), Grown().idea("", a=2.0)
    for name in names:
        wide.idea("", **{name: 8.0}).idea("a", **{f"{name}_on": 1.0})
        deep.idea("", **{name: 0.0}).idea("a", **{f"{name}_on": 8.0})
    assert frequencies(posterior, wide, 400).get("", 0) > 0.8
    assert frequencies(posterior, deep, 400).get("", 0) < 0.2


def test_without_a_verdict_nothing_counts_and_failed_ideas_are_not_expanded() -> None:
    grown = Grown().idea("", a=2.0).idea("", b=0.0)
    waiting = Grown().idea("", a=2.0).idea("", b=0.0).idea("a", c=None).idea("", d=None)
    assert set(frequencies("gaussian", grown, 300)) == {"", "a"}
    assert frequencies("gaussian", grown, 300) == frequencies("gaussian", waiting, 300)


@pytest.mark.slow
def test_a_kernel_of_the_library_says_nothing_of_new_ideas() -> None:
    """With its score among those of new ideas the reference would be chosen most of the time."""
    entry = Seed(id="entry", kernel=kernel("entry"))
    grown = Grown().library(entry, 8.0)
    for i in range(9):
        grown.idea("", **{f"failed{i}": 0.0}).idea("entry", **{f"faster{i}": 8.0})
    assert frequencies("beta", grown, 500).get("", 0) < 0.1


def test_an_unknown_posterior_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ab_mcts\.posterior is 'flat'; it must be gaussian or beta$"):
        AbMcts(ideas=1, branch=1, posterior="flat")


# name, parent, score: by it the speedup, too, since the best has 1
FIXED = [
    ("a", "", 1.0),
    ("b", "", 0.5),
    ("c", "", 0.7),
    ("d", "a", 0.8),
    ("e", "a", 0.4),
    ("f", "d", 0.9),
    ("g", "c", 0.95),
]


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_it_chooses_as_treequest_does(posterior: str) -> None:
    """Its reference implementation on the same tree: the same frequencies, but for chance."""
    treequest = pytest.importorskip("treequest", reason="pip install 'ideatree[treequest]'")
    numpy = pytest.importorskip("numpy")
    algorithm = treequest.ABMCTSA(dist_type=posterior)
    state = algorithm.init_tree()
    nodes, grown = {"": state.tree.root}, Grown()
    for name, parent, score in FIXED:
        algorithm.ask_batch(state, 1, ["idea"])  # gives the state its actions
        state.thompson_states.get_or_create(nodes[parent], ["idea"])
        trial = state.trial_store.create_trial(nodes[parent], "idea")
        state = algorithm.tell(state, trial.trial_id, (name, score))
        nodes[name] = next(each for each in nodes[parent].children if each.state == name)
        grown.idea(parent, **{name: 8 * score})
    names = {node.expand_idx: name for name, node in nodes.items()}

    numpy.random.seed(7)
    chosen = Counter[str]()
    for _ in range(DRAWS):
        state, (trial,) = algorithm.ask_batch(state, 1, ["idea"])
        chosen[names[trial.node_to_expand]] += 1
    ours = frequencies(posterior, grown)
    for name in names.values():
        # five standard deviations of the difference of two frequencies at most
        assert abs(ours.get(name, 0.0) - chosen[name] / DRAWS) < 5 * (0.5 / DRAWS) ** 0.5, name
    assert sum(share > 0.02 for share in ours.values()) > 4
