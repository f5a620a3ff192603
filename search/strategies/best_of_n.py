"""Best of n: independent samples, of which the best counts. The baseline that every search has to beat.

Repeated sampling: Brown et al., 2024, "Large Language Monkeys" (arXiv:2407.21787); for kernels KernelBench
(arXiv:2502.10517).
"""

from __future__ import annotations

import random
from dataclasses import replace

from search.protocols import View
from search.records.tree import Expansion, Seed, Tree
from search.strategies.values import is_library, open_seeds, require


class BestOfN:
    """Every idea starts from the reference or, with `from_library`, from the library's best kernel: nothing
    is built on what the search has found.

    The library's best kernel is the one that was measured best in this run, and before that the one whose
    evaluation says so.

    Raises ValueError for a number below one.
    """

    synchronous = False

    def __init__(self, ideas: int, branch: int, from_library: bool) -> None:
        require("best_of_n", 1, ideas=ideas, branch=branch)
        self.ideas = ideas
        self.branch = branch
        self.from_library = from_library

    def ask(self, view: View, rng: random.Random) -> Expansion:
        """One more idea, always from the same place."""
        return Expansion(seed=self._start(view), ideas=1, variants=self.branch)

    def _start(self, view: View) -> Seed | None:
        if not self.from_library:
            return None
        taken = Tree()  # the library's kernels as this run has measured them
        taken.ranking = view.tree.ranking
        for idea in view.tree.ideas.values():
            if is_library(idea):
                taken.add_idea(idea)
                for variant in view.tree.variants_of(idea.id):
                    taken.add_variant(variant)
        return open_seeds(replace(view, tree=taken), 1)[0]
