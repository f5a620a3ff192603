"""Captures a model's forward as a `torch.fx` graph of one run's calls, as PyTorch dispatches them.

Weights are attributes of the model by their names, so none is copied; in-place calls stay in place and in
order. Where the model reads a number from a tensor (`item()`), the graph has that call and its result in the
run (`CallGraph.reads`): with another result, the graph does not represent the model.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.reference.inputs.strided_layouts import clone
from search.optimize.extraction.readable import EXPAND, RESHAPES
from search.optimize.models.source import LoadedModel, without_fastpath
from search.optimize.profiling.recording import changed_by
from search.optimize.profiling.values import Values, place_of

if TYPE_CHECKING:
    import torch
    from torch import fx, nn

INLINED = ("torch.nn.utils.weight_norm:WeightNorm", "torch.nn.utils.spectral_norm:SpectralNorm")
"""Hooks that only compute a weight from other weights: a recorded forward computes it, too."""
TAKES = "tensors, numbers, strings, None, and containers and objects of them whose classes can be imported"
"""What a recorded call may contain."""
DETACH = "aten.detach.default"
CONSTANT = "_constant_{}"
"""Attribute name of a tensor that is neither a weight nor made in the run."""


class CaptureError(Exception):
    """The model's calls cannot be written as a graph; the message says why."""


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """A forward as a graph: the nodes of the recorded `calls` and of the tensor arguments (`inputs`), in
    order; `constants` by attribute name, which are neither weights nor made in the run; `reads`: results of
    calls that return no tensor; the `output`'s template and its tensors' nodes, the `leaves`. Of a model in
    training: the nodes that need gradients (`differentiated`), the other nodes of floating-point tensors
    (`undifferentiated`), and calls that were made `without_gradients` although an argument needs one."""

    graph: fx.Graph
    calls: Sequence[fx.Node]
    inputs: Sequence[fx.Node]
    constants: Mapping[str, torch.Tensor]
    reads: Mapping[fx.Node, Any]
    output: Any
    leaves: Sequence[fx.Node]
    differentiated: Set[fx.Node] = frozenset()
    undifferentiated: Set[fx.Node] = frozenset()
    without_gradients: Set[fx.Node] = frozenset()

    @property
    def operators(self) -> list[str]:
        """The operators of the calls."""
        return [str(node.target) for node in self.calls]


def capture(model: LoadedModel) -> CallGraph:
    """Runs the model's forward once, in training with gradients. Raises CaptureError, and what the model
    raises."""
    from search.optimize.models.templates import differences, finder, maker, take_apart, without_form

    _check_hooks(model.module)
    args, kwargs = model.fresh()
    template, tensors = model.signature.call(args, kwargs)
    if unknown := without_form(template, ""):
        raise CaptureError(f"the argument {unknown}; a recorded call may contain {TAKES}")
    builder = _Builder(model, tensors)
    with without_fastpath(), model.mode(), builder.recording():
        out = model.module(*args, **kwargs)
    after, kept = model.signature.call(args, kwargs)
    if changed := next(differences(template, after), ""):
        raise CaptureError(f"it changes its arguments: {changed}")
    if any(one is not other for one, other in zip(tensors, kept, strict=True)):
        raise CaptureError("it replaces a tensor in its arguments")
    leaves: list[torch.Tensor] = []
    output = take_apart(out, leaves)
    if unknown := without_form(output, "its output"):
        raise CaptureError(f"{unknown}; a recorded output may contain {TAKES}")
    try:
        maker(output, finder(model.module))
    except (LookupError, ValueError) as error:
        raise CaptureError(f"its output cannot be made again: {error}") from error
    found = [builder.used(each) for each in leaves]
    if model.backward:
        _check_functions(leaves)
    if builder.changes and builder.reads:
        raise CaptureError("it changes its inputs or weights, and reads a number from a tensor")
    builder.drop_aliases()
    builder.graph.output(found)
    builder.graph.lint()
    return CallGraph(
        graph=builder.graph,
        calls=builder.calls,
        inputs=builder.inputs,
        constants=builder.constants,
        reads=builder.reads,
        output=output,
        leaves=found,
        differentiated=builder.differentiated,
        undifferentiated=builder.undifferentiated,
        without_gradients=builder.without_gradients,
    )


def _check_functions(outputs: Sequence[torch.Tensor]) -> None:
    """Raises CaptureError for a function with its own backward, of which the recorded calls are the forward
    alone."""
    from torch.autograd.function import BackwardCFunction

    left = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen = {*left}
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction):
            name = type(node).__name__.removesuffix("Backward")
            raise CaptureError(
                f"its forward calls {name}, a torch.autograd.Function, whose backward cannot be recorded"
            )
        below = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= below
        left += below


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters, buffers and other tensors in attributes of a module and its submodules, by name."""
    import torch

    others = {
        f"{path}.{name}" if path else name: value
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if isinstance(value, torch.Tensor)
    }
    return {**dict(module.named_parameters()), **dict(module.named_buffers()), **others}


def _check_hooks(module: nn.Module) -> None:
    """Raises CaptureError for hooks that a recorded forward would not run."""
    from search.optimize.models.templates import hooks_of

    for name, hooks in hooks_of(module).items():
        if other := [each for each in hooks if each not in INLINED]:
            hook = other[0].partition(":")[2]
            raise CaptureError(f"the module {name} has the hook {hook}, which would not run; remove it first")


def run(graph: CallGraph, model: LoadedModel, wanted: Sequence[fx.Node]) -> dict[fx.Node, torch.Tensor]:
    """Runs the graph on the model's example inputs; returns copies of these nodes' tensors, each taken when
    it is computed, before later in-place calls."""
    import torch
    from torch import fx

    found: dict[fx.Node, torch.Tensor] = {}
    asked = set(wanted)

    class Noting(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            value = super().run_node(node)
            if node in asked:
                found[node] = clone(value)
            return value

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target in graph.constants:
                return graph.constants[target]
            return operator.attrgetter(target)(model.module)

    _, tensors = model.call()
    with torch.no_grad():
        Noting(torch.nn.Module(), graph=graph.graph).run(*tensors, enable_io_processing=False)
    return found


class _Builder:
    """Grows the graph, call by call."""

    def __init__(self, model: LoadedModel, tensors: Sequence[torch.Tensor]) -> None:
        from torch import fx
        from torch.utils.weak import WeakTensorKeyDictionary

        self.graph = fx.Graph()
        self._trains = model.backward
        self.calls: list[fx.Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.reads: dict[fx.Node, Any] = {}
        self.differentiated: set[fx.Node] = set()
        self.undifferentiated: set[fx.Node] = set()
        self.without_gradients: set[fx.Node] = set()
        self.changes = False
        """Whether a call writes to an input or weight, so that the forward cannot be restarted."""
        self._node: Any = WeakTensorKeyDictionary()
        self._written = Values()
        self.inputs = [self._input(each, number) for number, each in enumerate(tensors)]
        self._weights = {tensor: name for name, tensor in reversed(weights_of(model.module).items())}
        self._places = {place: tensor for tensor in self._weights if (place := place_of(tensor)) is not None}
        self._lasting = {place_of(each) for each in (*tensors, *self._weights)} - {None}

    def _input(self, tensor: torch.Tensor, number: int) -> fx.Node:
        node = self.graph.placeholder(f"input_{number}")
        self._node[tensor] = node
        return node

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor. Raises CaptureError where its origin was not recorded."""
        node: fx.Node
        if (found := self._node.get(tensor)) is not None:
            node = found
            while str(node.target) == DETACH and (tensor.requires_grad or not self._trains):
                [node] = node.all_input_nodes  # an alias that autograd made, or that makes no difference
            return node
        if tensor in self._weights:
            node = self.graph.get_attr(self._weights[tensor])
        elif self._written.known(tensor) is not None:
            raise CaptureError(f"a tensor of shape {tuple(tensor.shape)} bypassed the dispatcher")
        elif (base := self._places.get(place_of(tensor) or 0)) is not None:
            where = tensor.shape, tensor.stride(), tensor.storage_offset()
            if base.dtype is not tensor.dtype:
                raise CaptureError(f"a weight is read as {tensor.dtype}, bypassing the dispatcher")
            as_strided = _operator("aten.as_strided.default")
            node = self.graph.call_function(as_strided, (self.node_of(base), *map(_plain, where)))
        else:
            name = CONSTANT.format(len(self.constants))
            self.constants[name] = tensor
            node = self.graph.get_attr(name)
        self._node[tensor] = node
        return node

    def used(self, tensor: torch.Tensor) -> fx.Node:
        """The node of a tensor that is read; notes whether it needs a gradient. Raises CaptureError."""
        node = self.node_of(tensor)
        if self._trains and tensor.is_floating_point():
            (self.differentiated if tensor.requires_grad else self.undifferentiated).add(node)
        return node

    def drop_aliases(self) -> None:
        """Erases the aliases that autograd makes of results that it keeps; nothing reads them."""
        for node in reversed(self.calls):
            if str(node.target) == DETACH and not node.users:
                self.graph.erase_node(node)

    def recording(self) -> Any:
        """A context in which every call becomes a node."""
        from torch.utils._python_dispatch import TorchDispatchMode

        note = self._note

        class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return note(func, args, kwargs or {})

        return Recording()  # type: ignore[no-untyped-call]

    def _note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        import torch

        if _shape_depends_on_numbers(func, args):
            raise CaptureError(f"the output shape of {func} depends on the values in a tensor")
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            raise CaptureError("its forward checkpoints activations; switch that off while it is recorded")
        self.changes |= any(place_of(each) in self._lasting for each in changed_by(func, args, kwargs))
        given = [self._as_argument(each) for each in args]
        named = {name: self._as_argument(each) for name, each in kwargs.items()}
        out = func(*args, **kwargs)
        if str(func) in (*RESHAPES, EXPAND):
            given[1] = _sizes(str(func), args[0], out)
        node = self.graph.call_function(func, tuple(given), named)
        self.calls.append(node)
        if any(each in self.differentiated for each in node.all_input_nodes) and not torch.is_grad_enabled():
            self.without_gradients.add(node)
        if isinstance(out, torch.Tensor):
            self._made(out, node)
        elif isinstance(out, tuple | list):
            for place, each in enumerate(out):
                if isinstance(each, torch.Tensor):
                    self._made(each, self.graph.call_function(operator.getitem, (node, place)))
        elif out is not None:
            self.reads[node] = out
        return out

    def _made(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._node[tensor] = node
        if place_of(tensor) not in self._places:
            self._written.of(tensor)

    def _as_argument(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return self.used(value)
        if isinstance(value, list | tuple):
            return [self._as_argument(each) for each in value]
        if isinstance(value, torch.Generator):
            raise CaptureError("a call takes a random generator")
        return value


def _shape_depends_on_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether the output shape depends on values. Indexing does with a mask, not with integers."""
    import torch

    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if str(func) == "aten.index.Tensor":
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return True


def _sizes(operator: str, tensor: torch.Tensor, out: torch.Tensor) -> list[int]:
    """The sizes to write into the call: all of a reshape's, because a later step decides which one to infer;
    of an expand, those that it changes."""
    if operator != EXPAND:
        return list(out.shape)
    before = [0] * (out.dim() - tensor.dim()) + list(tensor.shape)
    return [-1 if size == own else size for size, own in zip(out.shape, before, strict=True)]


def _plain(value: Any) -> Any:
    """A size tuple as a list; an int as it is."""
    return value if isinstance(value, int) else list(value)


def _operator(name: str) -> Any:
    import torch

    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload)
