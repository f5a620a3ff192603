"""A relay: several strategies in turn, each starting from the best kernel of those before.

After the relay of optimisers in GEPA's `optimize_anything` (Agrawal et al., 2026), which starts again from
the best found. A new start forgets what a search has settled on but keeps what it has reached.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from search.protocols import Strategy, View
from search.records.tree import Expansion, Idea, Tree
from search.strategies.values import is_exhausted, is_library, pending_only, require


class Relay:
    """Hands over after every `stage` ideas; after the last strategy comes the first again.

    A strategy sees the results of its stage and, as a library entry, the best kernel of all earlier
    stages. Where it would start from the reference, it starts from that kernel. The next stage begins when
    nothing of the one before is in flight, so that it starts from the best. With synchronous strategies,
    stages end with rounds. Either all strategies are synchronous or none, and their rounds have the relay's
    number of ideas.
    """

    def __init__(self, ideas: int, stage: int, strategies: Sequence[Strategy]) -> None:
        require("relay", 1, ideas=ideas, stage=stage)
        if not strategies:
            raise ValueError("relay.strategies is empty; name at least one strategy")
        for each in strategies:
            if each.synchronous != strategies[0].synchronous:
                one, other = type(strategies[0]).__name__, type(each).__name__
                raise ValueError(f"relay.strategies: {one} and {other} must both be synchronous, or neither")
            if each.ideas != ideas:
                name = type(each).__name__
                raise ValueError(f"relay.strategies: {name}.ideas is {each.ideas}; it must be {ideas}")
        self.ideas = ideas
        self.stage = stage
        self.strategies = list(strategies)
        self.synchronous = strategies[0].synchronous

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """Asks the strategy of this stage; None until the stage before has ended."""
        had = sum(not is_library(idea) for idea in view.tree.ideas.values())
        if not self.synchronous:
            had += pending_only(view).total()
        number, into = divmod(had, self.stage)
        left = view.left
        if not self.synchronous:
            if number and not into and view.pending:
                return None
            left = min(left, self.stage - into)
        before, own = self._split(view.tree, number)
        bests = [each.seed for each in before.best(len(before.variants))]
        start = next((each for each in bests if not is_exhausted(each, view)), next(iter(bests), None))
        tried = {each.kernel.id for each in before.variants.values() if each.evaluation is not None}
        entries, exhausted = [each for each in view.entries if each.kernel.id not in tried], view.exhausted
        if start is not None:  # it replaces the reference in this stage
            entries = [start]
            exhausted = (exhausted - {""}) | ({""} if is_exhausted(start, view) else set())
        strategy = self.strategies[number % len(self.strategies)]
        seen = replace(view, tree=own, entries=entries, left=left, exhausted=exhausted)
        asked = strategy.ask(seen, rng)
        if asked is not None and asked.seed is None and start is not None:
            return replace(asked, seed=start)
        return asked

    def _split(self, tree: Tree, number: int) -> tuple[Tree, Tree]:
        """What was found before a stage, and in it."""
        before, own = _like(tree), _like(tree)
        for idea, stage in self._stages(tree):
            part = own if stage == number else before
            part.add_idea(idea)
            for variant in tree.variants_of(idea.id):
                part.add_variant(variant)
        return before, own

    def _stages(self, tree: Tree) -> Iterator[tuple[Idea, int]]:
        """Each idea with the number of its stage; the library's kernels belong to the first."""
        had = at_start = round_ = 0
        for idea in tree.ideas.values():
            if idea.round != round_:
                at_start, round_ = had, idea.round
            if is_library(idea):
                yield idea, 0
            else:
                yield idea, (at_start if self.synchronous else had) // self.stage
                had += 1


def _like(tree: Tree) -> Tree:
    """An empty tree with the other's ranking."""
    new = Tree()
    new.ranking = tree.ranking
    new.rounds_closed = tree.rounds_closed
    return new
