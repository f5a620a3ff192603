"""Finds ways of calling a model that run the same code, such as with a mask of ones and without a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluators.base.cause import first_line
from evaluators.base.usage_error import UsageError
from search.optimize.extraction.fragments import is_mutable, is_random
from search.optimize.extraction.graph import CallGraph, CaptureError, capture
from search.optimize.models.source import AlikeCall, LoadedModel, model_errors

if TYPE_CHECKING:
    import torch
    from torch import fx


def merge_calls(models: Sequence[LoadedModel], say: Callable[[str], None]) -> list[LoadedModel]:
    """The ways of calling a model that run different code; each has those that run the same (`alike`) and the
    sum of their weights. `say` gets each one that cannot be recorded and is optional.

    A call that needs fewer tensors has the code; with further tensors, which the model only checks, the same
    code runs if all elements of such a tensor are what they were in the recorded call. Of a single model
    nothing is asked.
    """
    if len(models) == 1:
        return list(models)
    found: list[_Group] = []
    for place, each in sorted(enumerate(models), key=lambda pair: len(pair[1].inputs())):
        graph = _captured(each)
        if isinstance(graph, str):
            if not each.optional:  # which is reported where kernels are to be installed
                return _weighted([each for each in models if not each.optional])
            say(f"not recorded: {each.shape}: {graph}")
            continue
        call = _Call(each, graph)
        alike = ((group, own) for group in found if (own := group.first.alike(call)) is not None)
        group, own = next(alike, (None, None))
        if group is None or own is None:
            found.append(_Group(place, call, []))
        else:
            group.alike.append(own)
            group.place = min(group.place, place)
    groups = sorted(found, key=lambda group: group.place)
    kept = _weighted(
        [replace(group.first.model, weight=group.weight, alike=tuple(group.alike)) for group in groups]
    )
    for each in kept:
        if names := [other.model.shape for other in each.alike]:
            say(f"{each.shape or 'the model'} has the same code as {', '.join(names)}")
    return kept


def _weighted(models: Sequence[LoadedModel]) -> list[LoadedModel]:
    """The models with weights that sum to 1; a single one needs no name of its shape."""
    total = sum(each.weight for each in models)
    named = len(models) > 1
    return [replace(each, shape=each.shape if named else "", weight=each.weight / total) for each in models]


def _captured(model: LoadedModel) -> CallGraph | str:
    """The model's graph, or why it has none. Raises UsageError for an error of a model that must run."""
    try:
        with model_errors(model.title):
            try:
                return capture(model)
            except CaptureError as error:
                return first_line(error)
    except UsageError as error:
        if not model.optional:
            raise
        return str(error)


@dataclass(eq=False)
class _Group:
    """Calls that run the code of the `first`."""

    place: int
    first: _Call
    alike: list[AlikeCall]

    @property
    def weight(self) -> float:
        return sum(each.weight for each in (self.first.model, *(each.model for each in self.alike)))


class _Call:
    """A recorded call, its code in a form that can be compared, and the tensors that the code needs."""

    def __init__(self, model: LoadedModel, graph: CallGraph) -> None:
        from search.optimize.models.templates import tensor_names

        self.model = model
        template, self.tensors = model.call()
        names = tensor_names(template)
        self._name = {node: names[number] for number, node in enumerate(graph.inputs)}
        needed = _needed(graph)
        self.inputs = [self._name[node] for node in graph.inputs]
        self.needed = [self._name[node] for node in graph.inputs if node in needed]
        self.read = {
            self._name[node]
            for node in graph.inputs
            if node not in needed and any(_follows(user, graph.reads) for user in node.users)
        }
        self.constants: list[torch.Tensor] = []
        self.lines = list(self._lines(graph, needed))
        self.output = graph.output

    def alike(self, other: _Call) -> AlikeCall | None:
        """The other call, if this one's code is right for it, too."""
        import torch

        if (self.lines, self.output, self.needed) != (other.lines, other.output, other.needed):
            return None
        if not all(torch.equal(*pair) for pair in zip(self.constants, other.constants, strict=True)):
            return None
        if not {*self.inputs} <= {*other.inputs}:
            return None
        filled = {}
        for name in other.read - {*self.inputs}:
            number = other.inputs.index(name)
            tensor = other.tensors[number]
            if not tensor.numel() or not bool((tensor == tensor.flatten()[0]).all()):
                return None
            filled[number] = tensor.flatten()[0].item()
        passed = [other.inputs.index(name) for name in self.inputs]
        return AlikeCall(model=other.model, passed=passed, filled=filled)

    def _lines(self, graph: CallGraph, needed: set[fx.Node]) -> Iterator[Any]:
        """What the needed nodes do, in order, with numbers in place of nodes."""
        from torch import fx

        number: dict[fx.Node, int] = {}
        kinds = dict(zip(graph.inputs, self.tensors, strict=True))

        def plain(value: Any) -> Any:
            return fx.node.map_arg(value, lambda node: f"%{number[node]}")

        for node in graph.graph.nodes:
            if node not in needed:
                continue
            number[node] = len(number)
            if node in kinds:
                own = kinds[node]
                yield self._name[node], own.shape, own.dtype, own.stride(), own.device
            elif node.op == "get_attr" and node.target in graph.constants:
                self.constants.append(graph.constants[str(node.target)])
                yield "constant"
            elif node.op != "output":
                read = graph.reads.get(node)
                yield node.op, str(node.target), repr(plain(node.args)), repr(plain(node.kwargs)), repr(read)
        yield [number[each] for each in graph.leaves]


def _needed(graph: CallGraph) -> set[fx.Node]:
    """The nodes that the results depend on: of the reads of numbers, also those that follow from a weight or
    from a tensor that the results depend on."""
    needed: set[fx.Node] = set()
    follows = _inputs_behind(graph)

    def add(node: fx.Node) -> None:
        left = [node]
        while left:
            each = left.pop()
            if each not in needed:
                needed.add(each)
                left.extend(each.all_input_nodes)

    for node in graph.graph.nodes:
        of_weight = node in graph.reads and any(each.op == "get_attr" for each in follows[node])
        if node.op == "output" or is_mutable(node) or is_random(node) or of_weight:
            add(node)
    grown = True
    while grown:
        before = len(needed)
        for node in graph.reads:
            if follows[node] & needed:
                add(node)
        grown = len(needed) > before
    return needed


def _inputs_behind(graph: CallGraph) -> Mapping[fx.Node, set[fx.Node]]:
    """The inputs, weights and random numbers that each node depends on."""
    found: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.graph.nodes:
        weight = node.op == "get_attr" and node.target not in graph.constants
        own = {node} if node.op == "placeholder" or weight or is_random(node) else set()
        found[node] = own.union(*(found[each] for each in node.all_input_nodes))
    return found


def _follows(node: fx.Node, reads: Mapping[fx.Node, Any]) -> bool:
    """Whether a read of a number follows from the node."""
    left, seen = [node], {node}
    while left:
        each = left.pop()
        if each in reads:
            return True
        left += [user for user in each.users if user not in seen]
        seen.update(each.users)
    return False
