"""The operation of a reference and its sizes (`Workload`), read with torch.fx."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import LOWER, Problem
from evaluators.reference.loading import constructor_arguments, inputs_of, load_module
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.formulas import Formula
from search.proposers.playbook.meta_calls import attribute
from search.proposers.playbook.passes import Rows

if TYPE_CHECKING:
    from torch import fx, nn

logger = logging.getLogger(__name__)

CONV_SIZES = (
    *("N", "C", "H", "W", "K", "R", "S"),
    *("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
    *("groups", "bias", "P", "Q"),
)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The types of a call.

    Attributes:
        tensors: The type of each argument that may be a tensor, such as `float32`; "" for an omitted one.
        deciding: Python expressions for the constants that the output types depend on.
        outputs: The types of the results.
        compute: The type of the computation: `float32`, `float64` or `int64`.
    """

    tensors: tuple[str, ...]
    deciding: tuple[str, ...]
    outputs: tuple[str, ...]
    compute: str


@dataclass(frozen=True, kw_only=True)
class Around:
    """A forward around the kernel: its `arguments`, its `lines`, one of which calls `self.kernel`, and for
    each case the `types` of its arguments."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    types: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The operation that a reference computes, as the templates need it.

    A workload is either for one shape (`op` is `conv2d`, `matmul`, `softmax` or `layernorm`, with `sizes`) or
    for all shapes (`op` is the family `pointwise`, `rows` or `product`, with `signatures`).

    Attributes:
        op: The operation or the family of operators.
        sizes: Integers by name. conv2d: N C H W K R S stride_h stride_w pad_h pad_w dilation_h dilation_w
            groups bias P Q (output height and width), with maxpool also pool pool_stride pool_pad PP PQ;
            matmul: M N K; softmax: rows cols; layernorm: rows cols (normalised elements) affine bias (0 or 1
            each).
        module: The expression after `self.` for the layer with the weights, such as `conv` or `net[0]`; "" if
            there are none.
        epilogue: The operations that follow: `relu`, `maxpool`, in this order, because they commute.
        eps: The epsilon of a layer norm.
        header: The imports and constants of the reference that its constructor needs.
        constructor: The lines of `Model.__init__`, with `def` at column 0; "" if there is none.
        lower: The types to which factors of products may be rounded (`Problem.lower_precisions`).
        dtype: The floating dtype of inputs and weights.
        shape: The shape of the first input.
        operator: The name of a single operator; "" for a chain.
        signatures: The types of the calls.
        formula: What a chain of element-wise operators computes.
        inputs: The arguments of a chain's kernel.
        rows: The passes of a reduction, a normalisation or a chain with such.
        around: The forward around a kernel that computes a part of it.
    """

    op: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    module: str = ""
    epilogue: tuple[str, ...] = ()
    eps: float = 0.0
    header: str = ""
    constructor: str = ""
    lower: tuple[str, ...] = LOWER
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    operator: str = ""
    signatures: tuple[Signature, ...] = ()
    formula: Formula | None = None
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None
    around: Around | None = None


def recognise(problem: Problem) -> Workload | None:
    """The operation of the problem's reference; None if it is not one of those with a template for one
    shape."""
    try:
        model, graph = _trace(problem)
    except Exception as error:
        # The reference is the user's code and may raise anything.
        logger.info("the playbook cannot trace %s: %s", problem.name, error)
        return None
    steps = _chain(model, graph)
    if not steps:
        return None
    first, *rest = steps
    if any(step.kind not in ("relu", "maxpool") for step in rest) or first.kind in ("relu", "maxpool"):
        return None
    kinds = [step.kind for step in rest]
    epilogue = tuple(kind for kind in ("relu", "maxpool") if kind in kinds)
    if len(epilogue) < len(kinds) or (epilogue and first.kind != "conv2d"):
        return None
    code = constructor_of(problem)
    if code is None:
        return None
    return Workload(
        op=first.kind,
        sizes={name: size for step in steps for name, size in step.sizes.items()},
        module=first.module,
        epilogue=epilogue,
        eps=first.eps,
        header=code[0],
        constructor=code[1],
        lower=problem.lower_precisions,
        dtype=problem.dtype,
        shape=_shape(next(iter(graph.nodes))),
    )


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One node of a reference's graph."""

    kind: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    module: str = ""
    eps: float = 0.0


def _trace(problem: Problem) -> tuple[nn.Module, fx.Graph]:
    """The model on the meta device and its graph; every node has its result in `meta["value"]`."""
    import torch
    from torch import fx

    module = load_module(problem.source, problem.overrides, name="playbook_reference")
    with torch.device("meta"), torch.no_grad():
        model = constructor_arguments(module).make(module.Model)
        inputs = inputs_of(module)
        if type(model).__bases__ != (torch.nn.Module,):
            raise TypeError("Model inherits from more than nn.Module")
        traced = fx.symbolic_trace(model)
        _Shapes(traced).run(*inputs)
    return model, traced.graph


def _Shapes(traced: fx.GraphModule) -> Any:  # noqa: N802
    """An interpreter that stores each node's result in `meta["value"]`."""
    from torch import fx

    class Shapes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["value"] = super().run_node(n)
            return n.meta["value"]

    return Shapes(traced)


def _chain(model: nn.Module, graph: fx.Graph) -> list[_Step]:
    """The steps of a graph that is one straight chain from its inputs to its output; otherwise []."""
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    calls = [node for node in nodes if node.op.startswith("call_")]
    output = nodes[-1].args[0]
    if not calls or output is not calls[-1] or len(inputs) + len(calls) + 1 != len(nodes):
        return []
    steps = []
    given: Sequence[fx.Node] = inputs
    for node in calls:
        step = _step(model, node) if list(node.all_input_nodes) == list(given) else None
        if step is None:
            return []
        steps.append(step)
        given = [node]
    return steps


def _step(model: nn.Module, node: fx.Node) -> _Step | None:
    """The operation of a node; None if the playbook does not know it."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        known = _LAYERS.get(type(layer).__name__)
        if known is None or not type(layer).__module__.startswith("torch.nn."):
            return None
        return known(layer, node)
    name = node.target if node.op == "call_method" else _function_name(node.target)
    called = _FUNCTIONS.get(str(name))
    return called(node) if called else None


def _function_name(target: Any) -> str:
    import torch
    from torch.nn import functional

    names = {
        operator.matmul: "matmul",
        functional.max_pool2d: "max_pool2d",
        functional.softmax: "softmax",
        functional.layer_norm: "layer_norm",
        functional.relu: "relu",
        torch.max_pool2d: "max_pool2d",
    }
    ours = getattr(torch, getattr(target, "__name__", ""), None) is target
    return names.get(target) or (str(target.__name__) if ours else "")


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta["value"]
    return tuple(int(size) for size in value.shape)


def _arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    """The given arguments after the input, by name."""
    return {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _conv2d(layer: Any, node: fx.Node) -> _Step | None:
    dilation, kernel, padding = layer.dilation, layer.kernel_size, layer.padding
    if padding == "valid":
        padding = (0, 0)
    if padding == "same":
        spread = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if any(total % 2 for total in spread):
            return None
        padding = (spread[0] // 2, spread[1] // 2)
    shape = _shape(node.args[0])
    if layer.groups != 1 or layer.padding_mode != "zeros" or len(shape) != 4:
        return None
    out = _shape(node)
    bias = layer.bias is not None
    values = (*shape, out[1], *kernel, *layer.stride, *padding, *dilation, 1, bias, *out[2:])
    sizes = {name: int(value) for name, value in zip(CONV_SIZES, values, strict=True)}
    return _Step(kind="conv2d", sizes=sizes, module=attribute(str(node.target)))


def _relu(node: fx.Node) -> _Step:
    return _Step(kind="relu")


def _pool(node: fx.Node, size: Any, stride: Any, padding: Any, dilation: Any, plain: bool) -> _Step | None:
    sizes, paddings = _pair(size), _pair(padding)
    strides = _pair(size if stride in (None, [], ()) else stride)
    square = all(a == b for a, b in (sizes, strides, paddings))
    if not plain or not square or _pair(dilation) != (1, 1) or len(_shape(node)) != 4:
        return None
    out = _shape(node)
    found = {"pool": sizes[0], "pool_stride": strides[0], "pool_pad": paddings[0], "PP": out[2], "PQ": out[3]}
    return _Step(kind="maxpool", sizes=found)


def _pool_layer(layer: Any, node: fx.Node) -> _Step | None:
    plain = not layer.ceil_mode and not layer.return_indices
    return _pool(node, layer.kernel_size, layer.stride, layer.padding, layer.dilation, plain)


def _pool_call(node: fx.Node) -> _Step | None:
    given = _arguments(node, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    plain = not given.get("ceil_mode") and not given.get("return_indices")
    size, stride = given["kernel_size"], given.get("stride")
    return _pool(node, size, stride, given.get("padding", 0), given.get("dilation", 1), plain)


def _matmul(node: fx.Node) -> _Step | None:
    if len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    shapes = [_shape(each) for each in (left, right)]
    placeholders = [each for each in node.graph.nodes if each.op == "placeholder"]
    if any(len(shape) != 2 for shape in shapes) or [left, right] != placeholders:
        return None
    return _Step(kind="matmul", sizes={"M": shapes[0][0], "N": shapes[1][1], "K": shapes[0][1]})


def _softmax(node: fx.Node, dim: Any) -> _Step | None:
    shape = _shape(node.args[0])
    if not shape or dim not in (-1, len(shape) - 1):
        return None
    return _Step(kind="softmax", sizes=_rows(shape, shape[-1:]))


def _softmax_call(node: fx.Node) -> _Step | None:
    given = _arguments(node, "dim")
    if given.get("dtype") is not None or "dim" not in given:
        return None
    return _softmax(node, given["dim"])


def _rows(shape: Sequence[int], trailing: Sequence[int]) -> dict[str, int]:
    cols = _product(trailing)
    return {"rows": _product(shape) // cols if cols else 0, "cols": cols}


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _norm_layer(layer: Any, node: fx.Node) -> _Step | None:
    sizes = _rows(_shape(node.args[0]), layer.normalized_shape)
    sizes |= {"affine": int(layer.weight is not None), "bias": int(layer.bias is not None)}
    path = attribute(str(node.target)) if layer.weight is not None else ""
    return _Step(kind="layernorm", sizes=sizes, module=path, eps=float(layer.eps))


def _norm_call(node: fx.Node) -> _Step | None:
    given = _arguments(node, "normalized_shape", "weight", "bias", "eps")
    if given.get("weight") is not None or given.get("bias") is not None:
        return None
    sizes = _rows(_shape(node.args[0]), [int(size) for size in given["normalized_shape"]])
    eps = float(given.get("eps", 1e-5))
    return _Step(kind="layernorm", sizes={**sizes, "affine": 0, "bias": 0}, eps=eps)


_LAYERS = {
    "Conv2d": _conv2d,
    "ReLU": lambda layer, node: _relu(node),
    "MaxPool2d": _pool_layer,
    "Softmax": lambda layer, node: _softmax(node, layer.dim),
    "LayerNorm": _norm_layer,
}

_FUNCTIONS = {
    "relu": _relu,
    "relu_": _relu,
    "max_pool2d": _pool_call,
    "matmul": _matmul,
    "mm": _matmul,
    "softmax": _softmax_call,
    "layer_norm": _norm_call,
}
