"""Best of n: independent samples, of which the best counts. The baseline that every search has to beat.

Repeated sampling: Brown et al., 2024, "Large Language Monkeys" (arXiv:2407.21787); for kernels, KernelBench
(arXiv:2502.10517).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from search.protocols import View
from search.records.tree import Expansion, Seed, Tree
from search.strategies.values import is_library, least_speedup, open_seeds, require


@dataclass(eq=False)
class BestOfN:
    """Starts every idea from the reference or, with `from_library`, from the library's best kernel: the one
    measured best in this run or, before that, the one with the best recorded evaluation. It never builds on
    what the search has found."""

    synchronous = False

    ideas: int
    branch: int
    from_library: bool

    def __post_init__(self) -> None:
        require("best_of_n", 1, ideas=self.ideas, branch=self.branch)

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One more idea for the same kernel."""
        return Expansion(seed=self._start(view), ideas=1, variants=self.branch)

    def threshold(self, view: View) -> float:
        """The speedup of the best kernel: nothing else counts."""
        return least_speedup(replace(view, exhausted=frozenset()), 1)

    def _start(self, view: View) -> Seed | None:
        if not self.from_library:
            return None
        taken = Tree()  # the library kernels as measured in this run
        taken.ranking = view.tree.ranking
        for idea in view.tree.ideas.values():
            if is_library(idea):
                taken.add_idea(idea)
                for variant in view.tree.variants_of(idea.id):
                    taken.add_variant(variant)
        return open_seeds(replace(view, tree=taken), 1)[0]
