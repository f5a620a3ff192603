"""Statistics of a tree that strategies share: seeds in order, values of kernels and ideas, visit counts.

Everything is computed from the view each time a strategy is asked; strategies have no state.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evaluators.records.evaluation import Evaluation, Status
from search.protocols import View
from search.records.ranking import MEDIAN
from search.records.tree import LIBRARY, Idea, Seed, Tree, Variant

REFERENCE = 1.0
"""The value of the reference, its speedup over itself, and of a library entry that was never measured."""


@dataclass(eq=False, kw_only=True)
class Node:
    """A correct kernel of the tree, a library entry, or the reference, for which `seed` is None.

    `value` is the speedup that it ranks by, `parent` the kernel that it was first written from. `tries`
    counts its ideas so far, including those in flight.
    """

    seed: Seed | None
    value: float
    idea: str = ""
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    tries: int = 0


@dataclass(eq=False, kw_only=True)
class IdeaNode:
    """An idea with its best variant, or the reference, for which `idea` is None.

    `value` is that of the best variant, `seed` that variant as a seed; without a correct variant they are 0
    and None. `is_settled`: it has verdicts and, as far as the tree shows, none is missing.
    """

    idea: Idea | None
    value: float
    seed: Seed | None = None
    is_settled: bool = True
    parent: IdeaNode | None = None
    children: list[IdeaNode] = field(default_factory=list)


def require(strategy: str, least: float, **numbers: float) -> None:
    """Raises ValueError for the first of these parameters of a strategy that is less than `least`."""
    must = "not be negative" if least == 0 else f"be at least {least:g}"
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{strategy}.{name} is {number}; it must {must}")


def ranked_seeds(tree: Tree, entries: Sequence[Seed], k: int) -> list[Seed]:
    """The k best kernels of the tree and the library, the best first.

    The order is the tree's (see `search.records.ranking`). Library entries rank by their recorded evaluation
    until they are measured in this run; entries that were never measured come last. Ties go to variants, then
    by id.
    """
    tried = {v.kernel.id for v in tree.variants.values() if v.evaluation is not None}
    untried = [seed for seed in entries if seed.kernel.id not in tried]
    candidates = [variant.seed for variant in tree.best(k)]
    candidates += sorted((seed for seed in untried if _is_correct(seed.evaluation)), key=lambda seed: seed.id)
    by_kernel = {seed.kernel.id: seed for seed in candidates}
    evaluations = {kernel: seed.evaluation for kernel, seed in by_kernel.items() if seed.evaluation}
    measured = [by_kernel[kernel] for kernel in tree.ranking.order(evaluations)]
    unmeasured = [seed for seed in untried if seed.evaluation is None]
    unique: dict[str, Seed] = {}
    for seed in (*measured, *unmeasured):
        unique.setdefault(seed.kernel.id, seed)
    return list(unique.values())[:k]


def open_seeds(view: View, k: int) -> list[Seed | None]:
    """The kernels that a round may start from: the k best of `ranked_seeds` that are not exhausted; the
    reference if none is left; if that is exhausted too, the k best regardless."""
    ranked = ranked_seeds(view.tree, view.entries, len(view.tree.variants) + len(view.entries))
    found = [seed for seed in ranked if not is_exhausted(seed, view)]
    if not found and is_exhausted(None, view):
        found = ranked
    return [*found[:k]] or [None]


def least_speedup(view: View, k: int) -> float:
    """The speedup that a new kernel must be able to reach to be one of the k best of the tree: the value of
    the k-th best kernel that is not exhausted; 0 while there are fewer."""
    best = view.tree.best(len(view.tree.variants))
    values = _values(view.tree, best)
    found = [values[each.kernel.id] for each in best if not is_exhausted(each.seed, view)]
    return found[k - 1] if len(found) >= k else 0.0


def is_exhausted(seed: Seed | None, view: View) -> bool:
    """Whether the proposer has no more ideas for the kernel; None stands for the reference."""
    return (seed.kernel.id if seed else "") in view.exhausted


def nodes_of(view: View) -> list[Node]:
    """The reference first, then all kernels that can be built on, each after the one it was written from."""
    tree, best = view.tree, view.tree.best(len(view.tree.variants))
    seeds, values = {each.kernel.id: each.seed for each in best}, _values(tree, best)
    nodes = {"": Node(seed=None, value=REFERENCE)}
    tried = {each.kernel.id for each in tree.variants.values() if each.evaluation is not None}
    for entry in view.entries:
        if entry.kernel.id not in tried and entry.kernel.id not in nodes:
            value = _value(tree, entry.evaluation) if entry.evaluation else REFERENCE
            if value > 0:
                _put(nodes, entry.kernel.id, "", Node(seed=entry, value=value))
    kernels = _kernels(view)
    for variant in tree.variants.values():
        kernel = variant.kernel.id
        if kernel in seeds and kernel not in nodes:
            node = Node(seed=seeds[kernel], value=values[kernel], idea=variant.idea)
            _put(nodes, kernel, kernels.get(variant.parent, ""), node)
    for kernel, count in tries(view).items():
        nodes.get(kernel, nodes[""]).tries += count
    return list(nodes.values())


def _put(nodes: dict[str, Node], kernel: str, parent: str, node: Node) -> None:
    """Looks for the parent among earlier nodes only, so that equal kernels form no circle."""
    node.parent = nodes.get(parent, nodes[""])
    node.parent.children.append(node)
    nodes[kernel] = node


def idea_nodes_of(view: View) -> list[IdeaNode]:
    """The reference first, then all ideas, each after the one whose variant it builds on."""
    tree, best = view.tree, view.tree.best(len(view.tree.variants))
    values, counts = _values(tree, best), {each.kernel.id: each.evaluation for each in best}
    root = IdeaNode(idea=None, value=REFERENCE)
    nodes = {"": root}
    for idea in tree.ideas.values():
        variants = tree.variants_of(idea.id)
        top = max(
            (each for each in variants if _is_correct(each.evaluation)),
            default=None,
            key=lambda each: values.get(each.kernel.id, 0.0),
        )
        node = IdeaNode(idea=idea, value=0.0, is_settled=not _in_progress(variants))
        if top is not None and top.kernel.id in values:
            node.value = values[top.kernel.id]
            node.seed = Seed(id=top.id, kernel=top.kernel, evaluation=counts[top.kernel.id])
        parent = tree.variants.get(idea.parent)
        node.parent = nodes.get(parent.idea if parent else idea.parent, root)
        node.parent.children.append(node)
        nodes[idea.id] = node
        if idea.proposer == LIBRARY:
            nodes.setdefault(idea.parent, node)  # ideas built on the entry are built on this one
    return list(dict.fromkeys(nodes.values()))


def is_library(idea: Idea | None) -> bool:
    """Whether the idea is to measure a library kernel unchanged."""
    return idea is not None and idea.proposer == LIBRARY


def tries(view: View) -> Counter[str]:
    """The number of ideas for each kernel, including those in flight, by kernel id ("" for the reference)."""
    kernels = _kernels(view)
    had = (kernels.get(idea.parent, "") for idea in view.tree.ideas.values() if not is_library(idea))
    return Counter(had) + pending_only(view)


def pending_only(view: View) -> Counter[str]:
    """The number of ideas pending for each kernel, without those that the tree has already.

    Nothing records which of the tree's ideas belong to which expansion. Ideas of open rounds that wait for a
    variant or a verdict are taken as the pending ones.
    """
    pending = pending_on(view)
    if not pending:
        return pending
    kernels, tree = _kernels(view), view.tree
    return pending - Counter(
        kernels.get(idea.parent, "")
        for idea in tree.ideas.values()
        if idea.round > tree.rounds_closed
        and not is_library(idea)
        and _in_progress(tree.variants_of(idea.id))
    )


def pending_on(view: View) -> Counter[str]:
    """The number of ideas pending for each kernel, by kernel id ("" for the reference)."""
    found = Counter[str]()
    for each in view.pending:
        if not each.as_it_is:
            found[each.seed.kernel.id if each.seed else ""] += each.ideas
    return found


def standardised(values: Sequence[float]) -> list[float]:
    """How many median absolute deviations each value lies above the median; there must be at least one."""
    median = statistics.median(values)
    deviation = statistics.median(abs(each - median) for each in values)
    return [(each - median) / max(deviation, 1e-9) for each in values]


def _in_progress(variants: Sequence[Variant]) -> bool:
    return not variants or any(each.evaluation is None for each in variants)


def _kernels(view: View) -> dict[str, str]:
    """Kernel ids by the id of the variant or entry."""
    found = {each.id: each.kernel.id for each in view.entries}
    return found | {id: each.kernel.id for id, each in view.tree.variants.items()}


def _values(tree: Tree, best: Iterable[Variant]) -> Mapping[str, float]:
    """The values of these kernels by kernel id; none is lower than that of a kernel after it."""
    values: dict[str, float] = {}
    least = 0.0
    for variant in reversed(list(best)):
        least = values[variant.kernel.id] = max(least, _value(tree, variant.evaluation))
    return values


def _value(tree: Tree, evaluation: Evaluation | None) -> float:
    if evaluation is None:
        return 0.0
    return evaluation.speedup if tree.ranking.by == MEDIAN else evaluation.speedup_low


def _is_correct(evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.status is Status.CORRECT
