"""Trees for the tests of strategies, written down idea by idea."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.protocols import View
from search.records.tree import Category, Expansion, Idea, Seed, Tree, Variant, library_idea
from tests.search.fakes import correct, failed


class Grown:
    """A tree whose kernels have names; a verdict is a speedup (its lower end, too), or 0 for a failure."""

    def __init__(self) -> None:
        self.tree = Tree()
        self._variants: dict[str, Variant] = {}

    def idea(
        self,
        parent: str = "",
        /,
        *,
        round: int = 1,
        category: Category = Category.MEMORY,
        language: str = "triton",
        **found: float | None,
    ) -> Grown:
        """One idea on the kernel of this name, with its variants; None: without a verdict yet."""
        idea = Idea(
            text=f"idea {len(self.tree.ideas)}",
            category=category,
            parent=self._variants[parent].id if parent in self._variants else parent,
            round=round,
            proposer="fake",
        )
        self._add(idea, {name: (_kernel(name, language), value) for name, value in found.items()})
        return self

    def library(self, entry: Seed, speedup: float) -> Grown:
        """The library's kernel, measured as it is."""
        idea = library_idea(entry, 1)
        self._add(idea, {entry.id: (entry.kernel, speedup)})
        return self

    def _add(self, idea: Idea, found: dict[str, tuple[Kernel, float | None]]) -> None:
        self.tree.add_idea(idea)
        for name, (kernel, value) in found.items():
            variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=idea.round)
            self.tree.add_variant(variant)
            if value is not None:
                variant = self.tree.evaluate(variant.id, verdict(value))
            self._variants[name] = variant
        self.tree.rounds_closed = idea.round

    def seed(self, name: str) -> Seed | None:
        """The kernel of this name; the reference for no name."""
        return self._variants[name].seed if name else None

    def name(self, expansion: Expansion | None) -> str:
        """That of the kernel that is to be expanded."""
        assert expansion is not None
        if expansion.seed is None:
            return ""
        return next(name for name, each in self._variants.items() if each.id == expansion.seed.id)

    def view(self, *pending: str, left: int = 1, entries: Sequence[Seed] = ()) -> View:
        """What a strategy sees, with an idea pending on each kernel named; they are not in the tree."""
        expansions = [Expansion(seed=self.seed(name), ideas=1, variants=1) for name in pending]
        round = self.tree.rounds_closed + 1
        return View(tree=self.tree, pending=expansions, left=left, entries=entries, round=round)


def verdict(speedup: float) -> Evaluation:
    """The lower end of its interval is the speedup given."""
    return correct(speedup / 0.99) if speedup else failed()


def _kernel(name: str, language: str) -> Kernel:
    return Kernel(source=f"class ModelNew: ...  # {name}\n", language=language)
