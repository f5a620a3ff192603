"""AB-MCTS: a tree search that draws at each node whether to go wider or deeper.

This is the form with node aggregation (AB-MCTS-A) of Inoue et al., 2025, "Wider or Deeper? Scaling LLM
Inference-Time Compute with Adaptive Branching Tree Search" (arXiv:2503.04412), with the priors of its
implementation TreeQuest. A test compares it with TreeQuest.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion
from search.strategies.values import IdeaNode, idea_nodes_of, is_exhausted, is_library, require

POSTERIORS = ("gaussian", "beta")
PRIOR_MEAN, PRIOR_COUNT, PRIOR_DEGREES, PRIOR_VARIANCE = 0.0, 1.0, 1.0, 0.1
"""The normal-inverse-gamma prior of TreeQuest."""
PRIOR_SUCCESSES = PRIOR_FAILURES = 0.5
"""The beta prior: Jeffreys' prior."""


@dataclass
class Scores:
    """The number, sum and sum of squares of scores from 0 to 1."""

    number: int = 0
    sum: float = 0.0
    squares: float = 0.0

    def add(self, other: Scores, but: Scores | None = None) -> None:
        """Adds other scores, except those in `but`."""
        but = but or Scores()
        self.number += other.number - but.number
        self.sum += other.sum - but.sum
        self.squares += other.squares - but.squares


@dataclass(eq=False)
class AbMcts:
    """Walks down from the reference by Thompson sampling.

    At each node two mean scores are drawn: one from the posterior of a new idea here (the scores of the
    children), one from that of continuing with a child (the scores of everything below the children). If the
    new idea wins, the node is expanded. Otherwise a child is chosen by draws from the children's posteriors
    (the child's own score and everything below it). `posterior` is gaussian (normal-inverse-gamma) or beta.

    An idea's score is its best variant's speedup divided by the best of all, 0 without a correct variant.
    Such an idea is never expanded, but ideas built on it may be (on a library entry that fails here). Nodes
    where everything is exhausted are skipped. Ideas without a verdict do not count: because each choice is
    drawn, choices made in the meantime differ anyway.
    """

    synchronous = False

    ideas: int
    branch: int
    posterior: str

    def __post_init__(self) -> None:
        require("ab_mcts", 1, ideas=self.ideas, branch=self.branch)
        if self.posterior not in POSTERIORS:
            raise ValueError(f"ab_mcts.posterior is {self.posterior!r}; it must be gaussian or beta")

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One idea for the node at which the walk ends."""
        nodes = idea_nodes_of(view)
        own, under = _scores(nodes)
        node, left = nodes[0], _with_ideas_left(nodes, view)
        while below := [child for child in node.children if child in left]:
            if _can_be_expanded(node, view) and self._wider(node, own, under, rng):
                break
            draws = {child: self._draw(under[child], rng) for child in below}
            node = max(draws, key=draws.__getitem__)
        return Expansion(seed=node.seed, ideas=1, variants=self.branch)

    def _wider(
        self,
        node: IdeaNode,
        own: dict[IdeaNode, Scores],
        under: dict[IdeaNode, Scores],
        rng: random.Random,
    ) -> bool:
        """Whether a new idea for the node is drawn rather than one of its children."""
        new, on = Scores(), Scores()
        for child in node.children:
            if not is_library(child.idea):  # its score says nothing about ideas
                new.add(own[child])
            on.add(under[child], but=own[child])
        return self._draw(new, rng) >= self._draw(on, rng)

    def _draw(self, scores: Scores, rng: random.Random) -> float:
        """A mean score, drawn from its posterior."""
        if self.posterior == "beta":
            failures = max(scores.number - scores.sum, 0.0)
            return rng.betavariate(PRIOR_SUCCESSES + max(scores.sum, 0.0), PRIOR_FAILURES + failures)
        mean, count, degrees, variance = normal_inverse_gamma(scores)
        drawn = degrees * variance / 2 / rng.gammavariate(degrees / 2, 1.0)
        return rng.gauss(mean, math.sqrt(drawn / count))


def normal_inverse_gamma(scores: Scores) -> tuple[float, float, float, float]:
    """The posterior's mean, count, degrees of freedom and variance (Murphy, 2023, section 3.4.3.3)."""
    n = scores.number
    mean = scores.sum / n if n else 0.0
    deviations = max(scores.squares - n * mean * mean, 0.0)
    count, degrees = PRIOR_COUNT + n, PRIOR_DEGREES + n
    between = n * PRIOR_COUNT / count * (mean - PRIOR_MEAN) ** 2
    variance = (PRIOR_DEGREES * PRIOR_VARIANCE + deviations + between) / degrees
    return (PRIOR_COUNT * PRIOR_MEAN + scores.sum) / count, count, degrees, variance


def _can_be_expanded(node: IdeaNode, view: View) -> bool:
    """Whether the node is the reference or has a kernel to start from, and is not exhausted."""
    return (node.seed is not None or node.idea is None) and not is_exhausted(node.seed, view)


def _with_ideas_left(nodes: list[IdeaNode], view: View) -> set[IdeaNode]:
    """The nodes that are not exhausted, and their ancestors."""
    found: set[IdeaNode] = set()
    for node in reversed(nodes):  # children come after their parents
        if node in found or (node.idea is not None and _can_be_expanded(node, view)):
            found.add(node)
            if node.parent is not None:
                found.add(node.parent)
    return found


def _scores(nodes: list[IdeaNode]) -> tuple[dict[IdeaNode, Scores], dict[IdeaNode, Scores]]:
    """The score of each idea (none without a verdict), and its scores together with everything below it."""
    best = max((node.value for node in nodes[1:]), default=0.0) or 1.0
    own: dict[IdeaNode, Scores] = {}
    for node in nodes:
        score = node.value / best
        counts = node.idea is not None and (node.is_settled or node.seed is not None)
        own[node] = Scores(1, score, score * score) if counts else Scores()
    under = {node: Scores(**vars(scores)) for node, scores in own.items()}
    for node in reversed(nodes):  # children come after their parents
        if node.parent is not None:
            under[node.parent].add(under[node])
    return own, under
