"""PyTorch's own computation of the families of the library, with the interface of their kernels."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluators.reference.loading import load_module, make_model
from kernel_library.catalogue.entry import Entry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Original:
    """PyTorch's computation of a family. `tensors` is the number of tensors that identify a call;
    `arguments` completes the first of them to the arguments of a whole call, with which it can be timed.
    `constants` are the places of arguments that have no gradient in training."""

    function: Callable[..., Any]
    tensors: int
    arguments: Callable[..., list[Any]]
    constants: tuple[int, ...] = ()

    def call(self, like: Sequence[Tensor], needs: Sequence[bool] = ()) -> list[Any]:
        """The arguments of a whole call whose first inputs are `like`. With `needs`, the call is one of a
        forward and a backward pass: which of `like` need a gradient; what is drawn needs one, too."""
        import torch

        found = self.arguments(*(each.detach() for each in like))
        for place, each in enumerate(found if needs else ()):
            wanted = needs[place] if place < len(needs) else place not in self.constants
            if isinstance(each, torch.Tensor) and each.is_floating_point() and wanted:
                found[place] = each.detach().requires_grad_()
        return found


def needed(like: Sequence[Tensor]) -> list[bool]:
    """Which of the first inputs of a call in training need a gradient: all, if none says so."""
    return [each.requires_grad or not any(other.requires_grad for other in like) for each in like]


def original_of(op: str, entry: Entry) -> Original | None:
    """The original of the family `op`; of other operations, the reference of the entry, if it has no weights
    and no arguments. None if there is neither. Runs the reference's source."""
    return ORIGINALS.get(op) or _reference(entry)


def compiled(original: Original) -> Callable[..., Any]:
    """The original under `torch.compile`, apart from what was compiled of it for other calls."""
    import torch

    function: Any = original.function
    if isinstance(function, types.FunctionType):
        code = function.__code__.replace()  # compiled code belongs to this object
        function = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    found: Callable[..., Any] = torch.compile(function, dynamic=False)
    return found


def _reference(entry: Entry) -> Original | None:
    problem = entry.measurements[0].problem
    module = load_module(problem.source, problem.overrides)
    if list(module.get_init_inputs()):
        return None
    model = make_model(module, "Model", [], seed=0, device=problem.device, dtype=problem.dtype)
    if [*model.parameters(), *model.buffers()]:
        return None
    return Original(
        function=model, tensors=len(entry.measurements[0].inputs) or 1, arguments=lambda *like: [*like]
    )


def _softmax(x: Tensor) -> Tensor:
    import torch

    return torch.softmax(x, -1)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _layernorm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, dims: int = 1
) -> Tensor:
    from torch.nn import functional

    return functional.layer_norm(x, x.shape[-dims:], weight, bias, eps)


def _rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    from torch.nn import functional

    return functional.rms_norm(x, x.shape[-1:], weight, eps)


def _residual_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return _rmsnorm(residual, weight, eps), residual


def _residual_layernorm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return _layernorm(residual, weight, bias, eps), residual


def _router(logits: Tensor, chosen: int = 8) -> tuple[Tensor, Tensor]:
    """The weights of the chosen experts, which add up to 1, and their numbers."""
    import torch

    weights, experts = torch.topk(torch.softmax(logits.float(), dim=-1), chosen, dim=-1)
    return weights / weights.sum(-1, keepdim=True), experts


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn import functional

    grouped = q.shape[-3] != k.shape[-3]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _decode_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    places = torch.arange(k_cache.shape[2], device=q.device)
    filled = (places < lengths[:, None])[:, None, None]
    return functional.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=filled, enable_gqa=True)


def _int4_linear(x: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    quantised = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    weight = (quantised.to(x.dtype) - 8) * scales.repeat_interleave(128, dim=1)
    return functional.linear(x, weight)


def _cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    from torch.nn import functional

    return functional.cross_entropy(logits, target, ignore_index=ignore_index, reduction="none")


def _linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    from torch.nn import functional

    return _cross_entropy(functional.linear(x, weight).float(), target, ignore_index)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    import torch

    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def _qk_norm_rotary(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Of queries and keys [batch, length, heads, size], with angles [length, 1, at most size / 2]."""
    import torch

    def turned(x: Tensor, weight: Tensor) -> Tensor:
        normed, size = _rmsnorm(x, weight, eps), 2 * cos.shape[-1]
        return torch.cat([_rotary(normed[..., :size], cos, sin), normed[..., size:]], dim=-1)

    return turned(q, q_weight), turned(k, k_weight)


def _groupnorm_silu(x: Tensor, weight: Tensor, bias: Tensor, groups: int = 32, eps: float = 1e-5) -> Tensor:
    from torch.nn import functional

    return functional.silu(functional.group_norm(x, groups, weight, bias, eps))


def _sliding_window(q: Tensor, k: Tensor, v: Tensor, window: int = 1024) -> Tensor:
    """Causal: a query sees itself and the `window` - 1 keys before it."""
    import torch
    from torch.nn import functional

    places = torch.arange(q.shape[2], device=q.device)
    back = places[:, None] - places[None, :]
    seen = (back >= 0) & (back < window)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    from torch.nn import functional

    hidden = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(hidden, down)


def _conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0
) -> Tensor:
    from torch.nn import functional

    return functional.conv2d(x, weight, bias, stride, padding)


def _conv2d_relu_maxpool(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    pool_size: int = 3,
    pool_stride: int = 2,
) -> Tensor:
    from torch.nn import functional

    return functional.max_pool2d(
        functional.conv2d(x, weight, bias, stride, padding).relu(), pool_size, pool_stride
    )


def _drawn(like: Tensor, *shape: int) -> Tensor:
    import torch

    return torch.randn(shape, device=like.device, dtype=torch.float32).to(like.dtype)


def _layernorm_arguments(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> list[Any]:
    shape = x.shape[-1:] if weight is None else weight.shape
    return [x, *(_drawn(x, *shape) if each is None else each for each in (weight, bias)), 1e-5, len(shape)]


def _attention_arguments(q: Tensor, *others: Tensor) -> list[Any]:
    return [q, *others, *(_drawn(q, *q.shape) for _ in range(2 - len(others)))]


def _decode_attention_arguments(
    q: Tensor, k_cache: Tensor | None = None, v_cache: Tensor | None = None, lengths: Tensor | None = None
) -> list[Any]:
    """Caches of 4,096 tokens, which are full, with a head for each of the queries."""
    import torch

    caches = [each for each in (k_cache, v_cache) if each is not None]
    shape = caches[0].shape if caches else (*q.shape[:2], 4096, q.shape[3])
    caches += [_drawn(q, *shape) for _ in range(2 - len(caches))]
    if lengths is None:
        lengths = torch.full(q.shape[:1], shape[2], device=q.device)
    return [q, *caches, lengths]


def _int4_linear_arguments(
    x: Tensor, packed: Tensor | None = None, scales: Tensor | None = None
) -> list[Any]:
    """As many outputs as features."""
    import torch

    features = x.shape[-1]
    if packed is None:
        sizes = features, features // 2
        packed = torch.randint(256, sizes, dtype=torch.uint8, device=x.device)
    return [x, packed, _drawn(x, len(packed), features // 128) if scales is None else scales]


def _rotary_arguments(x: Tensor, cos: Tensor | None = None, sin: Tensor | None = None) -> list[Any]:
    angles = (x.shape[-2], x.shape[-1] // 2)
    return [x, *(_drawn(x, *angles) if each is None else each for each in (cos, sin))]


def _cross_entropy_arguments(logits: Tensor, target: Tensor | None = None) -> list[Any]:
    import torch

    rows, classes = logits.shape
    drawn = torch.randint(classes, (rows,), device=logits.device) if target is None else target
    return [logits, drawn]


def _residual_rmsnorm_arguments(
    x: Tensor, residual: Tensor | None = None, weight: Tensor | None = None
) -> list[Any]:
    residual = _drawn(x, *x.shape) if residual is None else residual
    return [x, residual, _drawn(x, x.shape[-1]) if weight is None else weight]


def _residual_layernorm_arguments(
    x: Tensor, residual: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None
) -> list[Any]:
    residual = _drawn(x, *x.shape) if residual is None else residual
    return [x, residual, *(_drawn(x, x.shape[-1]) if each is None else each for each in (weight, bias))]


def _linear_cross_entropy_arguments(
    x: Tensor, weight: Tensor | None = None, target: Tensor | None = None
) -> list[Any]:
    """A vocabulary of 32,768."""
    import torch

    weight = _drawn(x, 32768, x.shape[-1]) / x.shape[-1] ** 0.5 if weight is None else weight
    drawn = torch.randint(len(weight), x.shape[:1], device=x.device) if target is None else target
    return [x, weight, drawn]


def _qk_norm_rotary_arguments(
    q: Tensor,
    k: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> list[Any]:
    """As many keys as queries; all of a head is turned."""
    _, length, _, size = q.shape
    weights = (_drawn(q, size) if each is None else each for each in (q_weight, k_weight))
    angles = (_drawn(q, length, 1, size // 2) if each is None else each for each in (cos, sin))
    return [q, _drawn(q, *q.shape) if k is None else k, *weights, *angles]


def _groupnorm_silu_arguments(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> list[Any]:
    """Groups of 16 channels, and of all if these are fewer."""
    channels = x.shape[1]
    given = (_drawn(x, channels) if each is None else each for each in (weight, bias))
    return [x, *given, max(1, channels // 16)]


def _swiglu_arguments(x: Tensor, *weights: Tensor) -> list[Any]:
    """A hidden layer of 8/3 times the features, rounded up to a multiple of 256, as in LLaMA."""
    features = x.shape[-1]
    hidden = -(-8 * features // 3 // 256) * 256
    shapes = [(hidden, features), (hidden, features), (features, hidden)]
    return [x, *weights, *(_drawn(x, *shape) / shape[1] ** 0.5 for shape in shapes[len(weights) :])]


def _convolution_arguments(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> list[Any]:
    """A window of 3 x 3 pixels with as many results as channels, and a padding that keeps the size."""
    weight = _drawn(x, x.shape[1], x.shape[1], 3, 3) if weight is None else weight
    bias = _drawn(x, weight.shape[0]) if bias is None else bias
    return [x, weight, bias, 1, weight.shape[-1] // 2]


ORIGINALS = {
    "softmax": Original(function=_softmax, tensors=1, arguments=lambda x: [x]),
    "sum": Original(function=_sum, tensors=1, arguments=lambda x: [x]),
    "matmul": Original(
        function=_matmul,
        tensors=2,
        arguments=lambda a, b=None: [a, _drawn(a, a.shape[1], a.shape[1]) if b is None else b],
    ),
    "layernorm": Original(
        function=_layernorm,
        tensors=3,
        arguments=_layernorm_arguments,
    ),
    "rmsnorm": Original(
        function=_rmsnorm,
        tensors=2,
        arguments=lambda x, weight=None: [x, _drawn(x, x.shape[-1]) if weight is None else weight],
    ),
    "attention": Original(function=_attention, tensors=3, arguments=_attention_arguments),
    "sliding_window": Original(function=_sliding_window, tensors=3, arguments=_attention_arguments),
    "decode_attention": Original(
        function=_decode_attention, tensors=4, arguments=_decode_attention_arguments
    ),
    "int4_linear": Original(function=_int4_linear, tensors=3, arguments=_int4_linear_arguments),
    "residual_rmsnorm": Original(
        function=_residual_rmsnorm, tensors=3, arguments=_residual_rmsnorm_arguments
    ),
    "residual_layernorm": Original(
        function=_residual_layernorm, tensors=4, arguments=_residual_layernorm_arguments
    ),
    "router": Original(function=_router, tensors=1, arguments=lambda logits: [logits]),
    "linear_cross_entropy": Original(
        function=_linear_cross_entropy, tensors=3, arguments=_linear_cross_entropy_arguments
    ),
    "cross_entropy": Original(function=_cross_entropy, tensors=2, arguments=_cross_entropy_arguments),
    "groupnorm_silu": Original(function=_groupnorm_silu, tensors=3, arguments=_groupnorm_silu_arguments),
    "qk_norm_rotary": Original(
        function=_qk_norm_rotary, tensors=6, arguments=_qk_norm_rotary_arguments, constants=(4, 5)
    ),
    "rotary": Original(function=_rotary, tensors=3, arguments=_rotary_arguments, constants=(1, 2)),
    "swiglu": Original(function=_swiglu, tensors=4, arguments=_swiglu_arguments),
    "conv2d": Original(function=_conv2d, tensors=3, arguments=_convolution_arguments),
    "conv2d_relu_maxpool": Original(
        function=_conv2d_relu_maxpool, tensors=3, arguments=_convolution_arguments
    ),
}
"""By the family. What `like` of `best` does not give is drawn at the most usual size."""
