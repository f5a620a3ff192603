"""Which kernels of a race have to be judged in full. Pure: verdicts in, variants out.

In a race with rounds every kernel is judged in the quick stage first. At the end of a round, each kernel that
is only `outpaced` is taken for as fast as the upper end of its interval. If the strategy would then start
from it, or if it would be the best of the search, it is judged in full, and the question is asked again. What
remains outpaced could not have been chosen, however the full stage had ended.

So the strategy alone decides how many kernels have to be confirmed, by the same rules as without a race. An
outpaced kernel of an earlier round gets its chance when the kernels before it are exhausted. The upper end is
compared with the lower end of a confirmed kernel, because that is what kernels rank by: a kernel whose
interval overlaps is judged in full. The result depends on the verdicts, not on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from evaluators.records.evaluation import Status
from evaluators.records.race import upper_end
from search.records.tree import Expansion, Tree, Variant


def hopeful(tree: Tree) -> Tree:
    """A copy of a tree in which outpaced kernels are correct, and as fast as they can be."""
    copy = Tree()
    copy.rounds_closed, copy.ranking = tree.rounds_closed, tree.ranking
    for idea in tree.ideas.values():
        copy.add_idea(idea)
        for variant in tree.variants_of(idea.id):
            copy.add_variant(_at_its_best(variant))
    return copy


def to_judge(tree: Tree, chosen: Iterable[Expansion]) -> list[Variant]:
    """The outpaced variants to judge in full, the fastest first: of the kernels from which the next round
    would start in the hopeful tree, and the best of the search. Of equal kernels it is the first."""
    wanted = {each.seed.kernel.id for each in chosen if each.seed is not None}
    wanted |= {each.kernel.id for each in hopeful(tree).best()}
    found: dict[str, Variant] = {}
    for variant in sorted(tree.variants.values(), key=lambda each: (each.round, each.id)):
        if variant.is_outpaced and variant.kernel.id in wanted:
            found.setdefault(variant.kernel.id, variant)
    return sorted(found.values(), key=_hope, reverse=True)


def _hope(variant: Variant) -> float:
    return upper_end(variant.evaluation) if variant.evaluation is not None else 0.0


def _at_its_best(variant: Variant) -> Variant:
    found = variant.evaluation
    if found is None or found.quick is None:
        return variant
    high = found.quick.timing.speedup_high
    timing = replace(found.quick.timing, speedup=high, speedup_low=high)
    return replace(variant, evaluation=replace(found, status=Status.CORRECT, timing=timing, quick=None))
