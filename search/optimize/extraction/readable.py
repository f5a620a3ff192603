"""Writes calls of a graph as Python, in the usual spelling (`x + y`) or as the aten operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx

Words = Callable[..., str | None]
"""How to write an operator: a function of its arguments as text; None where the spelling does not fit."""


def readable(
    node: fx.Node,
    names: Mapping[fx.Node, str],
    words: Mapping[str, Words] = MappingProxyType({}),
    args: Sequence[Any] | None = None,
) -> str:
    """The expression of a call. `names`: the variable of each argument. `words`: per operator, how to write
    it (`x + y` instead of `aten.add.Tensor(x, y)`). `args`: replaces the call's arguments."""
    operator = str(node.target)
    arguments = [_text(each, names) for each in (node.args if args is None else args)]
    if operator == GROUP_NORM:
        arguments = _sizes_from_input(*arguments)
    keywords = {key: _text(each, names) for key, each in node.kwargs.items()}
    first = operator in words and operator in FIRST and is_first_alone(node)
    if operator in words and (operator not in FIRST or first):
        found = words[operator](*arguments, **keywords)
        if found is not None:
            return found
    listed = ", ".join([*arguments, *(f"{key}={each}" for key, each in keywords.items())])
    space, packet, overload = RESHAPES.get(operator, operator).split(".")
    place = "aten" if space == "aten" else f"torch.ops.{space}"
    return f"{place}.{packet}.{overload}({listed}){'[0]' if first else ''}"


def is_first_alone(node: fx.Node) -> bool:
    """Whether the call's usual spelling returns its first result only, and no other result is read."""
    return str(node.target) in FIRST and all(user.args[1] == 0 or not user.users for user in node.users)


def is_same(node: fx.Node) -> bool:
    """Whether the call returns its input unchanged."""
    sizes: Any = node.args[1] if str(node.target) == EXPAND else [0]
    return str(node.target) in SAME or all(size == -1 for size in sizes)


def _text(value: Any, names: Mapping[fx.Node, str]) -> str:
    from torch import device, fx

    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(each, names) for each in value)}]"
    if isinstance(value, device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return repr(value)


def _sizes_from_input(x: str, weight: str, bias: str, *sizes: str) -> list[str]:
    """A group norm's arguments with the sizes taken from its input instead of the recorded run, because they
    differ between input shapes of the model."""
    _, channels, _, groups, eps = sizes
    return [x, weight, bias, f"{x}.shape[0]", channels, f"{x}.shape[2:].numel()", groups, eps]


def _group_norm(x: str, weight: str, bias: str, *sizes: str) -> str:
    groups, eps = sizes[-2:]
    return f"functional.group_norm({x}, {groups}, {weight}, {bias}, {eps})"


REDUCTIONS = ("none", "mean", "sum")


def _nll_loss(x: str, target: str, weight: str, reduction: str, ignored: str) -> str:
    further = f", weight={weight}" if weight != "None" else ""
    further += f", reduction={REDUCTIONS[int(reduction)]!r}" if reduction != "1" else ""
    further += f", ignore_index={ignored}" if ignored != "-100" else ""
    return f"functional.nll_loss({x}, {target}{further})"


def _softmax(name: str) -> Words:
    def words(x: str, dim: str, half_to_float: str) -> str | None:
        return f"{name}({x}, {dim})" if half_to_float == "False" else None

    return words


def _convolution(
    x: str,
    weight: str,
    bias: str,
    stride: str,
    padding: str,
    dilation: str,
    transposed: str,
    output_padding: str,
    groups: str,
) -> str | None:
    if transposed != "False":
        return None
    convolution = {1: "conv1d", 2: "conv2d", 3: "conv3d"}.get(stride.count(",") + 1)
    return f"functional.{convolution}({x}, {weight}, {bias}, {stride}, {padding}, {dilation}, {groups})"


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """The arguments of an attention as text; `scale` is "None" for the default."""

    q: str
    k: str
    v: str
    mask: str
    causal: str
    scale: str


def attention_call(places: tuple[int | None, int, int], *given: str, **named: str) -> AttentionCall | None:
    """The arguments of an operator with mask, dropout and causality at these positions; None with dropout."""
    mask, dropout, causal = places
    if len(given) > dropout and float(given[dropout]) != 0:
        return None
    masked = given[mask] if mask is not None and len(given) > mask else named.get("attn_mask", "None")
    return AttentionCall(
        q=given[0],
        k=given[1],
        v=given[2],
        mask=masked,
        causal=given[causal] if len(given) > causal else "False",
        scale=named.get("scale", "None"),
    )


def _attention(*places: Any) -> Words:
    def words(*given: str, **named: str) -> str | None:
        call = attention_call(places, *given, **named)
        if call is None:
            return None
        further = f", attn_mask={call.mask}" if call.mask != "None" else ""
        further += ", is_causal=True" if call.causal == "True" else ""
        further += f", scale={call.scale}" if call.scale != "None" else ""
        return f"functional.scaled_dot_product_attention({call.q}, {call.k}, {call.v}{further})"

    return words


def _infix(sign: str) -> Words:
    def words(x: str, y: str, alpha: str = "1") -> str | None:
        return f"{x} {sign} {y}" if alpha == "1" else None

    return words


def _function(name: str) -> Words:
    def words(*arguments: str, **keywords: str) -> str:
        return f"{name}({', '.join([*arguments, *(f'{key}={each}' for key, each in keywords.items())])})"

    return words


def _method(name: str) -> Words:
    def words(x: str, *arguments: str, **keywords: str) -> str:
        listed = [*arguments, *(f"{key}={each}" for key, each in keywords.items())]
        return f"{x}.{name}({', '.join(listed)})"

    return words


NORMS = {
    "aten.native_layer_norm.default": "layer_norm",
    "aten._fused_rms_norm.default": "rms_norm",
}
ATTENTIONS = {
    "aten._scaled_dot_product_flash_attention.default": (None, 3, 4),
    "aten._scaled_dot_product_efficient_attention.default": (3, 5, 6),
    "aten._scaled_dot_product_cudnn_attention.default": (3, 5, 6),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (None, 3, 4),
}
"""Positions of mask, dropout and causality among the arguments of attention operators."""
GROUP_NORM = "aten.native_group_norm.default"
NLL_LOSS = "aten.nll_loss_forward.default"
FIRST = (*NORMS, GROUP_NORM, *ATTENTIONS, NLL_LOSS)
"""Operators with several results whose usual spelling returns only the first."""
RESHAPES = dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "aten.reshape.default")
"""Operators to write as reshape, which also works with other strides, as under `torch.compile`."""
EXPAND = "aten.expand.default"
SAME = ("aten.alias.default",)
"""Operators that return their input unchanged."""
FUNCTIONS = (
    "relu",
    "tanh",
    "sigmoid",
    "exp",
    "rsqrt",
    "sqrt",
    "abs",
    "erf",
    "sin",
    "cos",
    "log",
    "mm",
    "bmm",
)

WORDS: Mapping[str, Words] = {
    "aten._softmax.default": _softmax("torch.softmax"),
    "aten._log_softmax.default": _softmax("torch.log_softmax"),
    "aten.convolution.default": _convolution,
    **{
        f"aten.{name}.{kind}": _infix(sign)
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))
        for kind in ("Tensor", "Scalar")
    },
    "aten.pow.Tensor_Scalar": _infix("**"),
    "aten.addmm.default": _function("torch.addmm"),
    "aten.baddbmm.default": _function("torch.baddbmm"),
    "aten.gelu.default": _function("functional.gelu"),
    "aten.silu.default": _function("functional.silu"),
    "aten.neg.default": lambda x: f"-{x}",
    **{f"aten.{name}.default": _function(f"torch.{name}") for name in FUNCTIONS},
    **{name: _function(f"functional.{function}") for name, function in NORMS.items()},
    GROUP_NORM: _group_norm,
    NLL_LOSS: _nll_loss,
    **{name: _attention(*places) for name, places in ATTENTIONS.items()},
    "aten.detach.default": _method("detach"),
    "aten.t.default": _method("t"),
    "aten.transpose.int": _method("transpose"),
    "aten.permute.default": _method("permute"),
    "aten.view.default": _method("reshape"),
    "aten._unsafe_view.default": _method("reshape"),
    "aten.unsqueeze.default": _method("unsqueeze"),
    "aten.squeeze.dim": _method("squeeze"),
    "aten.expand.default": _method("expand"),
    "aten.mean.dim": _function("torch.mean"),
    "aten.clone.default": _function("torch.clone"),
    "aten.cat.default": _function("torch.cat"),
}
"""The usual spelling of operators. A reference that uses them is compared to the model's tensors first."""
SURE: Mapping[str, Words] = {name: words for name, words in WORDS.items() if name not in ATTENTIONS}
"""The spellings that are right for all shapes; attention with fewer key heads would need another one."""
