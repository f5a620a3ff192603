"""Sequential revision: one chain of edits, the usual way to write a kernel with a model.

Each try starts from the one before and its verdict, as in KernelBench's iterative refinement (Ouyang et al.,
2025, arXiv:2502.10517) and in CudaForge (Zhang et al., 2025, arXiv:2511.01884).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from search.protocols import View
from search.records.tree import Expansion, Seed, fastest
from search.strategies.values import is_exhausted, is_library, open_seeds, require

BUILD_ON = ("last", "best")


@dataclass(eq=False)
class SequentialRevision:
    """Builds on the last correct kernel or on the best one (`build_on`), one idea at a time.

    The last one is the best variant of the last idea that has a correct variant that is not exhausted. Until
    there is one, the chain starts from the best kernel of the library, or the reference.
    """

    synchronous = False

    ideas: int
    branch: int
    build_on: str

    def __post_init__(self) -> None:
        require("sequential_revision", 1, ideas=self.ideas, branch=self.branch)
        if self.build_on not in BUILD_ON:
            raise ValueError(f"sequential_revision.build_on is {self.build_on!r}; it must be last or best")

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """The next edit; None while one is in flight."""
        if view.pending:
            return None
        seed = self._last(view) if self.build_on == "last" else None
        if seed is None:
            seed = open_seeds(view, 1)[0]
        return Expansion(seed=seed, ideas=1, variants=self.branch)

    def _last(self, view: View) -> Seed | None:
        for idea in reversed(view.tree.ideas.values()):
            if not is_library(idea):
                variants = view.tree.variants_of(idea.id)
                usable = [each for each in variants if not is_exhausted(each.seed, view)]
                for variant in fastest(usable, 1, view.tree.ranking):
                    return variant.seed
        return None
