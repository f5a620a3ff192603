from __future__ import annotations

import random

import pytest

from search.protocols import View, expansions_of_a_round
from search.records.tree import Expansion
from search.strategies.beam import Beam
from search.strategies.best_of_n import BestOfN
from search.strategies.relay import Relay
from search.strategies.sequential_revision import SequentialRevision
from tests.search.strategies.trees import Grown


class Watched:
    """Starts from the reference, or builds on the worst kernel; keeps what it was shown."""

    synchronous = False

    def __init__(self, ideas: int = 8) -> None:
        self.ideas = ideas
        self.seen: list[View] = []

    def ask(self, view: View, rng: random.Random) -> Expansion:
        self.seen.append(view)
        kernels = view.tree.best(99)
        return Expansion(seed=kernels[-1].seed if kernels else None, ideas=view.left, variants=1)


RNG = random.Random(0)


def test_the_next_one_begins_with_the_best_of_those_before() -> None:
    first, second = Watched(), Watched()
    relay = Relay(ideas=8, stage=3, strategies=[first, second])
    grown = Grown().idea("", a=3.0).idea("", b=2.0)
    assert grown.name(relay.ask(grown.view(left=8), RNG)) == "b"
    assert first.seen[-1].left == 1  # the stage has no more
    grown.idea("b", c=1.0)
    asked = relay.ask(grown.view(left=8), RNG)
    assert (grown.name(asked), asked and asked.ideas) == ("a", 3)
    (seen,) = second.seen
    assert (seen.tree.ideas, seen.entries) == ({}, [grown.seed("a")])


def test_a_stage_sees_only_what_it_has_found() -> None:
    first, second = Watched(), Watched()
    relay = Relay(ideas=8, stage=2, strategies=[first, second])
    grown = Grown().idea("", a=3.0).idea("", b=2.0).idea("a", c=2.5)
    assert grown.name(relay.ask(grown.view(), RNG)) == "c"
    assert len(second.seen[-1].tree.ideas) == 1
    grown.idea("c", d=1.0)
    assert grown.name(relay.ask(grown.view(), RNG)) == "a"  # the first one again, without its own first stage
    assert first.seen[-1].tree.variants == {}


def test_a_stage_begins_when_the_one_before_has_ended() -> None:
    relay = Relay(ideas=8, stage=2, strategies=[Watched(), Watched()])
    grown = Grown().idea("", a=3.0)
    assert relay.ask(grown.view(""), RNG) is None
    assert relay.ask(grown.idea("", b=0.0).view(), RNG) is not None
    assert relay.ask(grown.view("a"), RNG) is not None


def test_what_would_start_from_the_reference_starts_from_the_best() -> None:
    parts = [
        SequentialRevision(ideas=8, branch=1, build_on="last"),
        BestOfN(ideas=8, branch=1, from_library=False),
    ]
    relay = Relay(ideas=8, stage=2, strategies=parts)
    grown = Grown().idea("", a=3.0).idea("a", b=2.0)
    assert grown.name(relay.ask(grown.view(), RNG)) == "a"
    assert grown.name(relay.ask(grown.idea("a", c=9.0).view(), RNG)) == "a"


def test_synchronous_strategies_hand_over_between_rounds() -> None:
    beam = Beam(ideas=2, branch=1, width=2)
    relay = Relay(ideas=2, stage=3, strategies=[beam, beam])
    grown = Grown().idea("", a=5.0).idea("", b=0.0).idea("a", round=2, c=3.0, d=2.0).idea("a", round=2, e=0.0)

    def expanded() -> list[str]:
        view = grown.view(left=2)
        return [grown.name(each) for each in expansions_of_a_round(relay, view, lambda _: RNG)]

    assert relay.synchronous
    assert expanded() == ["a"]  # four ideas are had: the second stage, from the best of the first
    grown.idea("a", round=3, f=2.0).idea("a", round=3, g=1.0)
    assert expanded() == ["a"]  # the third
    assert Relay(ideas=2, stage=9, strategies=[beam]).ask(grown.view(left=2), RNG) == Expansion(
        seed=grown.seed("f"), ideas=1, variants=1
    )


def test_invalid_settings() -> None:
    with pytest.raises(ValueError, match=r"^relay\.stage is 0; it must be at least 1$"):
        Relay(ideas=8, stage=0, strategies=[Watched()])
    with pytest.raises(ValueError, match=r"^relay\.strategies is empty"):
        Relay(ideas=8, stage=1, strategies=[])
    with pytest.raises(ValueError, match=r"^relay\.strategies: Watched\.ideas is 7; it must be 8$"):
        Relay(ideas=8, stage=1, strategies=[Watched(7)])
    with pytest.raises(ValueError, match=r"Watched and Beam must both be synchronous, or neither$"):
        Relay(ideas=8, stage=1, strategies=[Watched(), Beam(ideas=8, branch=1, width=1)])
