"""Cuts parts out of a model's graph that could be one kernel: inputs, outputs and the code between.

A fragment has the calls of a target at one place in the model. It includes the views between and before them,
so that a kernel gets tensors as the model stores them: a weight, not its transpose.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from search.optimize.extraction.graph import CallGraph
from search.optimize.extraction.readable import RESHAPES, Words, is_first_alone, is_same, readable
from search.optimize.profiling.recording import OperatorKind, RecordedCall, RecordedRun

if TYPE_CHECKING:
    from torch import fx


BATCH_NORMS = ("native_batch_norm", "_native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
MOST_INPUTS = 32
"""Maximum number of a kernel's input tensors."""


class NoFragmentError(Exception):
    """These calls cannot be one kernel at this place; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A part of a graph that one kernel can replace: `members` in the graph's order, the nodes whose tensors
    go in and come out, and the inputs' `names` in code. `sizes`: what to write for a reshape in place of its
    own sizes, with -1 for the one that PyTorch infers. `constant`: in training, names of floating-point
    inputs whose gradients the model does not need."""

    members: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    names: tuple[str, ...]
    sizes: Mapping[fx.Node, Sequence[int | None]] = field(default_factory=dict)
    constant: tuple[str, ...] = ()

    @property
    def calls(self) -> list[fx.Node]:
        """The members that are calls of operators."""
        return [node for node in self.members if node.target is not operator.getitem]

    def code(self, words: Mapping[str, Words]) -> list[str]:
        """The lines of a function body on these names, `return` last. `words`: how to write operators other
        than by their own name."""
        return list(_code(self, words))

    @property
    def reshapes(self) -> list[fx.Node]:
        """The members whose arguments are output sizes."""
        return [node for node in self.members if str(node.target) in RESHAPES]


def unified(fragments: Sequence[Fragment]) -> list[Fragment] | None:
    """The fragments with identical code: where their reshapes differ in one size, it is inferred (-1). None
    where they differ in more."""
    masked = {
        tuple(replace(each, sizes={node: [None] * len(_sizes(node)) for node in each.reshapes}).code({}))
        for each in fragments
    }
    if len(masked) > 1 or len({each.names for each in fragments}) > 1:
        return None
    rows = zip(*([_sizes(node) for node in each.reshapes] for each in fragments), strict=True)
    open_ = [[len({*sizes}) > 1 for sizes in zip(*row, strict=True)] for row in rows]
    if any(sum(each) > 1 for each in open_):
        return None
    found = []
    for each in fragments:
        sizes = {
            node: [-1 if one else size for size, one in zip(_sizes(node), own, strict=True)]
            for node, own in zip(each.reshapes, open_, strict=True)
            if any(own)
        }
        found.append(replace(each, sizes=sizes))
    return found


def _sizes(node: fx.Node) -> list[int]:
    """The sizes in a reshape's arguments."""
    sizes: Any = node.args[1]
    return list(sizes)


def fragment_of(graph: CallGraph, run: RecordedRun, places: Sequence[int]) -> Fragment:
    """The fragment with these calls of the run; `graph` is of the same run. Raises NoFragmentError."""
    views = {
        node for node, call in zip(graph.calls, run.calls, strict=True) if call.kind is OperatorKind.VIEW
    }
    own = {graph.calls[place] for place in places}
    if any(node in graph.reads for node in own):
        raise NoFragmentError("the model reads a number out of a tensor there")
    members = _with_views(own, views)
    ordered = [node for node in graph.graph.nodes if node in members]
    computed = _computed(ordered, own)
    outputs = tuple(node for node in ordered if node in computed and set(node.users) - members)
    read = dict.fromkeys(each for node in ordered for each in node.all_input_nodes if each not in members)
    inputs = tuple(sorted(read, key=lambda each: each.op == "get_attr"))  # weights come last
    _check_order(graph, ordered, outputs)
    if len(inputs) > MOST_INPUTS:
        raise NoFragmentError(f"it reads {len(inputs)} tensors")
    if not outputs:
        raise NoFragmentError("nothing reads what it computes")
    _check_training(graph, ordered, outputs)
    _check_contractions({graph.calls[place]: run.calls[place] for place in places}, ordered)
    names = tuple(_names(inputs))
    constant = tuple(name for node, name in zip(inputs, names, strict=True) if node in graph.undifferentiated)
    return Fragment(members=tuple(ordered), inputs=inputs, outputs=outputs, names=names, constant=constant)


def _is_tensor(node: fx.Node) -> bool:
    """Whether the node's result is a tensor, not a tuple."""
    return node.target is operator.getitem or not any(user.target is operator.getitem for user in node.users)


def _with_views(own: set[fx.Node], views: set[fx.Node]) -> set[fx.Node]:
    """The calls, the items taken from their tuples, and the views that they read."""
    members = set(own)
    for node in own:
        members.update(user for user in node.users if user.target is operator.getitem)
    waiting = list(own)
    while waiting:
        for each in waiting.pop().all_input_nodes:
            taken = each.target is operator.getitem and each.all_input_nodes[0] in views
            if each not in members and (each in views or taken):
                members.add(each)
                waiting.append(each)
    return members


def _computed(ordered: Sequence[fx.Node], own: set[fx.Node]) -> set[fx.Node]:
    """The tensors computed by the calls. A view of inputs alone is not one of them: the kernel makes its own,
    and the model keeps the original."""
    computed = set(own)
    for node in ordered:
        if any(each in computed for each in node.all_input_nodes):
            computed.add(node)
    return {node for node in computed if _is_tensor(node)}


def _check_order(graph: CallGraph, ordered: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
    """The kernel computes everything at the last call. Raises NoFragmentError if another call reads a part
    earlier, or changes an input in between."""
    first, last, members = ordered[0], ordered[-1], set(ordered)
    place = {node: number for number, node in enumerate(graph.graph.nodes)}
    made = _new_memory(ordered)
    for node in ordered:
        if any(each not in made for each in _changed(node)):
            raise NoFragmentError(f"{node.target} changes an input")
    read = set[Any]().union(*(_memory(each) for node in ordered for each in node.all_input_nodes))
    for node in graph.graph.nodes:
        between = place[first] < place[node] < place[last] and node not in members
        if between and any(not read.isdisjoint(_memory(each)) for each in _changed(node)):
            raise NoFragmentError(f"{node.target} changes a tensor in between")
    for node in outputs:
        if any(place[user] < place[last] for user in set(node.users) - members):
            raise NoFragmentError("another call reads a part of it before its last call")


def _check_training(graph: CallGraph, ordered: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> None:
    """A kernel for training computes gradients, and always the same. Raises NoFragmentError otherwise."""
    if any(is_random(node) for node in ordered):
        raise NoFragmentError("it draws random numbers")
    if not graph.differentiated:
        return
    if any(_updates_statistics(node) for node in ordered):
        raise NoFragmentError("it updates the running statistics of a batch norm")
    if not graph.without_gradients.isdisjoint(ordered):
        raise NoFragmentError("the model computes a part of it without gradients")
    if graph.differentiated.isdisjoint(outputs):
        raise NoFragmentError("the model needs no gradients there")


def _updates_statistics(node: fx.Node) -> bool:
    """Whether a call is a batch norm in training, whose schema does not say that it writes to arguments."""
    if not str(node.target).partition(".")[2].startswith(BATCH_NORMS):
        return False
    given = _given(node)
    return bool(given.get("training", given.get("train"))) and given.get("running_mean") is not None


def _new_memory(ordered: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes whose memory was allocated in the fragment, unlike views of its inputs."""
    made: set[fx.Node] = set()
    for node in ordered:
        if all(each in made for each in _aliased(node)):
            made.add(node)
    return made


def _memory(node: fx.Node) -> set[Any]:
    """The nodes that allocated a node's memory; "outside" for inputs and weights, which may overlap."""
    made: set[Any] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        lying = _aliased(each) if each.op == "call_function" else []
        waiting.extend(lying)
        if not lying:
            made.add(each if each.op == "call_function" else "outside")
    return made


def _aliased(node: fx.Node) -> list[fx.Node]:
    """The arguments whose memory a call's results may share."""
    from torch import fx

    if node.target is operator.getitem or str(node.target) in RESHAPES:  # not in `_unsafe_view`'s schema
        return node.all_input_nodes
    given = _given(node)
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    lying = [given.get(each.name) for each in arguments if each.alias_info is not None]
    listed = [one for each in lying for one in (each if isinstance(each, list | tuple) else [each])]
    return [each for each in listed if isinstance(each, fx.Node)]


def _given(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator call by name."""
    names = (each.name for each in node.target._schema.arguments)  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _changed(node: fx.Node) -> list[fx.Node]:
    """The arguments that a call writes to."""
    return _aliased(node) if is_mutable(node) else []


def _check_contractions(calls: Mapping[fx.Node, RecordedCall], ordered: Sequence[fx.Node]) -> None:
    """Raises NoFragmentError for a matmul or convolution that depends on another: one kernel for both would
    compute the first repeatedly or wait for all of it. Batched ones, as in attention, are small enough."""
    behind: dict[fx.Node, bool] = {}
    for node in ordered:
        contracts = node in calls and calls[node].kind is OperatorKind.CONTRACTION
        reads = any(behind.get(each, False) for each in node.all_input_nodes)
        if contracts and reads and calls[node].name not in ("bmm", "baddbmm"):
            raise NoFragmentError("one matmul or convolution needs all results of another")
        behind[node] = contracts or reads


def is_mutable(node: fx.Node) -> bool:
    """Whether a call writes to an argument."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def is_random(node: fx.Node) -> bool:
    """Whether a call draws random numbers."""
    from torch import Tag

    if Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    attends = any(each.name == "dropout_p" for each in arguments)
    return not attends or bool(_given(node).get("dropout_p"))


def _names(inputs: Sequence[fx.Node]) -> Iterator[str]:
    """Names for the inputs: weights by the last part of their path, other tensors as x, y, z, x4, …"""
    taken: set[str] = set()
    others = chain("xyz", (f"x{number}" for number in count(4)))
    for node in inputs:
        base = re.sub(r"\W", "_", str(node.target).rpartition(".")[2]) if node.op == "get_attr" else ""
        name = base.strip("_") or next(others)
        number = 1
        while name in taken:
            number += 1
            name = f"{base.strip('_')}{number}"
        taken.add(name)
        yield name


def _code(fragment: Fragment, words: Mapping[str, Words]) -> Iterator[str]:
    outputs = fragment.outputs
    called: dict[fx.Node, str] = dict(zip(fragment.inputs, fragment.names, strict=True))
    first_only: set[fx.Node] = set()
    if names := fragment.constant:
        detached = ", ".join(f"{each}.detach()" for each in names)
        yield f"{', '.join(names)} = {detached}  # the model needs no gradient here"
    for node in fragment.members:
        if node not in outputs and not node.users:
            continue
        if node.target is operator.getitem:
            source, place = node.args
            called[node] = called[source] if source in first_only else f"{called[source]}[{place}]"  # type: ignore
            continue
        if is_same(node) and node not in outputs:
            called[node] = called[node.all_input_nodes[0]]
            continue
        if str(node.target) in words and is_first_alone(node):
            first_only.add(node)
        args = [node.args[0], fragment.sizes[node]] if node in fragment.sizes else None
        expression = readable(node, called, words, args)
        name = _name_of(node, called.values())
        called[node] = name
        yield f"{name} = {expression}"
    yield f"return {', '.join(called[node] for node in outputs)}"


def _name_of(node: fx.Node, taken: Any) -> str:
    base = str(node.target).split(".")[1].strip("_")
    used, name, number = set(taken), base, 1
    while name in used or name in RESERVED:
        number += 1
        name = f"{base}{number}"
    return name


RESERVED = ("torch", "aten", "functional", "nn", *dir(builtins), *keyword.kwlist)
"""Names that generated code must not assign."""
