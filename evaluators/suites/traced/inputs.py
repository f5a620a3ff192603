"""Draws arguments for a traced call: tensors with its shapes, types and strides, and indices in range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluators.reference.inputs.strided_layouts import extent, rewritten
from evaluators.suites.traced.call import Constant, Device, Tensor, TracedCall, Value, tensors_of

if TYPE_CHECKING:
    import torch

BELOW = 10
"""Integers that are not indices are below this, or within this of a number that they meet (`_met_number`)."""
ROWS_OF = {
    "embedding": ("weight", "indices"),
    "embedding_renorm": ("self", "indices"),
    "embedding_bag": ("weight", "indices"),
}
"""Operators whose indices select rows: the names of the table and of the indices."""
ALONG_DIM = (
    *("gather", "gather_backward", "scatter", "scatter_add", "scatter_reduce"),
    *("index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
)
"""Operators whose `index` selects along their `dim`."""
BY_DIMENSION = ("index", "index_put", "index_put_impl", "unsafe_index", "unsafe_index_put")
"""Operators with a list of indices, one per dimension."""
EACH_ONCE = ("scatter", "index_copy", "put", "index_put", "index_put_impl", "unsafe_index_put")
"""Operators that write to indices, which must be unique: the result of duplicate ones is undefined."""
POOLED = {"max_pool2d_with_indices_backward": 2, "max_pool3d_with_indices_backward": 3}
"""Operators whose indices are places in the last dimensions, and the number of these dimensions."""
UNPOOLED = {"max_unpool2d": 2, "max_unpool3d": 3}
"""Operators that write to unique places in the last dimensions of their outputs, and the number of these
dimensions."""
SEGMENTED = ("embedding_bag", "segment_reduce")
"""Operators that take the offsets of bags or segments."""
PROBABILITIES = ("bernoulli", "multinomial", "binary_cross_entropy", "binary_cross_entropy_backward")
"""Operators whose floating-point inputs are between 0 and 1."""
NOT_NEGATIVE = {"normal": "std", "poisson": "self"}
"""Operators with an argument that must not be negative, and its name."""
DIVIDING = ("div", "floor_divide", "fmod", "remainder")
"""Operators that divide: integer division by zero is an error on a CPU and undefined on a GPU."""
MEETING = ("Tensor", "number", "Optional[number]")
"""Schema types of arguments that are numbers like those in tensors, not sizes or dimensions."""


def operator_of(name: str) -> torch._ops.OpOverload:
    """PyTorch's operator with this name: `aten.add.Tensor`, or `aten.relu`. Raises ValueError for an unknown
    one."""
    import torch

    namespace, base, overload = [*name.split(".", 2), "default"][:3]
    try:
        found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    except AttributeError as error:
        raise ValueError(f"this PyTorch has no operator {name}") from error
    return found


def arguments_by_name(call: TracedCall) -> dict[str, Any]:
    """All arguments of a call by name, with defaults for omitted ones."""
    schema = operator_of(call.operator)._schema.arguments
    defaults = {each.name: each.default_value for each in schema if each.has_default_value()}
    given = zip((each.name for each in schema), call.arguments, strict=False)
    return {**defaults, **dict(given), **call.keywords}


def takes_tensors(argument: torch.Argument) -> bool:
    """Whether an argument of an operator's schema takes a tensor or several."""
    return "Tensor" in str(argument.type)


def make_arguments(
    call: TracedCall, device: str, seed: int | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keyword arguments for the call's operator, with the call's strides, drawn from `seed`
    (None: from torch's own generators, which a CUDA graph can record).

    Floating-point numbers are normally distributed, indices are in range, and other integers are small.
    Tensors are on `device`, except those that the call has on the CPU. Raises ValueError if this PyTorch has
    no such operator, or if the operator does not accept such arguments.
    """
    operator = operator_of(call.operator)
    base = base_of(call.operator)
    names = [each.name for each in operator._schema.arguments]
    if len(call.arguments) > len(names) or not set(call.keywords) <= set(names):
        raise ValueError(f"the call has other arguments than {call.operator} takes: {', '.join(names)}")
    given = {**dict(zip(names, call.arguments, strict=False)), **call.keywords}
    maker = _Maker(
        device,
        seed,
        probabilities=base in PROBABILITIES,
        least=int(base in DIVIDING),
        met=_met_number(operator, given),
    )
    try:
        ranges = ranges_of(call.operator, given)
    except (LookupError, StopIteration) as error:
        raise ValueError(f"the arguments do not fit {call.operator}") from error
    along = _once_along(base, given)
    made = {name: maker.argument(value, ranges.get(name), once_along=along) for name, value in given.items()}
    spread = made.get(NOT_NEGATIVE.get(base, ""))
    if spread is not None and not isinstance(spread, int | float):
        spread.abs_()
    if isinstance(made.get("device"), str):
        made["device"] = maker.place(made["device"])
    if base == "embedding_bag":
        _sort_offsets(made["offsets"], len(made["indices"]))
    if base == "segment_reduce":
        _fill_segments(made)
    count = len(call.arguments)
    return [made[name] for name in names[:count]], {name: made[name] for name in call.keywords}


def _met_number(operator: torch._ops.OpOverload, given: Mapping[str, Value]) -> int:
    """The integer argument of largest magnitude that tensor elements are combined with (`x // 90`,
    `x == -100`), or 0. Small elements alone would all give the same result."""
    takes = {each.name for each in operator._schema.arguments if str(each.type) in MEETING}
    met = [each for name, each in given.items() if name in takes and type(each) is int]
    return max(met, key=abs, default=0)


def base_of(operator: str) -> str:
    """An operator's name without namespace, overload and the underscores that mark variants."""
    return operator.split(".")[1].strip("_")


def keeps_integers(operator: str) -> bool:
    """Whether its integer inputs must stay as drawn: unique indices to write to, or offsets of bags or
    segments."""
    return base_of(operator) in (*EACH_ONCE, *UNPOOLED, *SEGMENTED)


def ranges_of(operator: str, given: Mapping[str, Value]) -> dict[str, int | tuple[int | None, ...]]:
    """The exclusive upper bounds of arguments with indices, by name; for a list, one bound per item. `given`
    are all arguments by name."""
    base, own = base_of(operator), given.get("self")
    shape = own.shape if isinstance(own, Tensor) else ()
    if base in ROWS_OF:
        table, indices = ROWS_OF[base]
        return {indices: next(tensors_of(given[table])).shape[0]}
    if base == "embedding_dense_backward":
        return {"indices": _whole(given["num_weights"])}
    if base in ALONG_DIM:
        return {"index": shape[_dim(given)] if shape else 1}
    if base in ("take", "put"):
        return {"index": math.prod(shape)}
    if base in BY_DIMENSION:
        return {"indices": _by_dimension(shape, given["indices"])}
    if base.startswith(("nll_loss", "cross_entropy", "multi_margin_loss")):
        return {"target": shape[1 if len(shape) > 1 else 0]}
    if base in POOLED:
        return {"indices": math.prod(shape[-POOLED[base] :])}
    if base in UNPOOLED:
        return {"indices": math.prod(_sizes(given["output_size"]))}
    return {}


def _once_along(base: str, given: Mapping[str, Value]) -> slice | None:
    """The dimensions of an operator's indices within which they must be unique."""
    if base in UNPOOLED:
        return slice(-UNPOOLED[base], None)
    dim = _dim(given) if base in EACH_ONCE else None
    return None if dim is None else slice(dim, dim + 1 or None)


def _by_dimension(shape: tuple[int, ...], indices: Value) -> tuple[int | None, ...]:
    """The bounds of a list of indices: a mask covers as many dimensions as it has, an omitted index one."""
    found: list[int | None] = []
    dimension = 0
    for each in indices if isinstance(indices, tuple) else (indices,):
        is_mask = isinstance(each, Tensor) and each.is_mask
        found.append(None if is_mask or each is None else shape[dimension])
        dimension += len(each.shape) if is_mask and isinstance(each, Tensor) else 1
    return tuple(found)


def _dim(given: Mapping[str, Value]) -> int:
    return _whole(given.get("dim", 0))


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} where a whole number is expected")
    return value


def _sizes(value: Value) -> list[int]:
    return [_whole(each) for each in value] if isinstance(value, tuple) else [_whole(value)]


def _sort_offsets(offsets: torch.Tensor, length: int) -> None:
    """Turns numbers into offsets of bags or segments: the first is 0, none is beyond the end."""
    offsets.copy_(offsets.remainder(length + 1).sort().values)
    offsets[..., :1] = 0


def _fill_segments(made: Mapping[str, Any]) -> None:
    """Makes the segments cover the data exactly. With `unsafe` PyTorch does not check this, and would read
    outside of the tensor."""
    axis, lengths, offsets = made.get("axis", 0), made.get("lengths"), made.get("offsets")
    size = made["data"].shape[axis]
    if offsets is not None:
        _sort_offsets(offsets, size)
        offsets[..., -1:] = size
    if lengths is not None:
        ends = lengths.remainder(size + 1).sort(-1).values
        ends[..., -1:] = size
        lengths.copy_(ends)
        lengths[..., 1:] -= ends[..., :-1]


class _Maker:
    """Draws arguments in order, from one generator per device."""

    def __init__(self, device: str, seed: int | None, *, probabilities: bool, least: int, met: int) -> None:
        """`seed`: None for torch's own generators. `least`: the smallest integer. `met`: see
        `_met_number`."""
        self._device, self._probabilities, self._least = device, probabilities, least
        self._met = met
        self._generators: dict[str, torch.Generator] = {}
        self._seed = seed

    def place(self, name: str) -> torch.device:
        """The device for tensors of a call: GPUs are replaced by the requested device."""
        import torch

        return torch.device(name if name in ("cpu", "meta") else self._device)

    def argument(
        self, value: Value, below: int | tuple[int | None, ...] | None, once_along: slice | None
    ) -> Any:
        """`below` bounds indices; `once_along` are the dimensions within which they are unique."""
        import torch

        if isinstance(value, tuple):
            each = below if isinstance(below, tuple) else (below,) * len(value)
            return [self.argument(one, n, once_along) for one, n in zip(value, each, strict=True)]
        if isinstance(value, Tensor):
            if isinstance(below, int) and once_along is not None:
                return self._each_once(value, below, once_along)
            return self._tensor(value, below if isinstance(below, int) else None)
        if isinstance(value, Constant):
            return getattr(torch, value.name)
        return self.place(value.name) if isinstance(value, Device) else value

    def _tensor(self, of: Tensor, below: int | None) -> torch.Tensor:
        """A tensor drawn for all memory that it spans."""
        if of.stride is None:
            return self._drawn(of, of.shape, below)
        return self._drawn(of, (extent(of.shape, of.stride),), below).as_strided(of.shape, of.stride)

    def _drawn(self, of: Tensor, shape: tuple[int, ...], below: int | None) -> torch.Tensor:
        import torch

        dtype: torch.dtype = getattr(torch, of.dtype)
        place = self.place(of.device or self._device)
        if place.type == "meta":  # has no numbers
            return torch.empty(shape, dtype=dtype, device=place)
        how: Any = {"device": place, "generator": self._generator(place)}
        if dtype is torch.bool:
            return torch.randint(0, 2, shape, **how).bool()
        if not (dtype.is_floating_point or dtype.is_complex):
            if below == 0 and 0 not in shape:
                raise ValueError("there are indices, but nothing to index")
            end = BELOW if below is None else below
            found = torch.randint(self._least, max(self._least + 1, end), shape, **how)
            if below is None and self._may_meet(dtype):
                found += torch.randint(0, 2, shape, **how) * (self._met - BELOW // 2)
            return found.to(dtype)
        if self._probabilities:
            return torch.rand(shape, **how).to(dtype)
        drawn_as = torch.complex64 if dtype.is_complex else torch.float32
        wide = dtype in (torch.float64, torch.complex128)
        return torch.randn(shape, dtype=dtype if wide else drawn_as, **how).to(dtype)

    def _may_meet(self, dtype: torch.dtype) -> bool:
        import torch

        limits = torch.iinfo(dtype)
        return abs(self._met) >= BELOW and limits.min <= self._met - BELOW and self._met + BELOW <= limits.max

    def _each_once(self, of: Tensor, below: int, along: slice) -> torch.Tensor:
        """Indices that are unique within these dimensions. Raises ValueError if there are too few places."""
        import torch

        plain = self._tensor(of, below)
        first, end, _ = along.indices(len(of.shape)) if len(of.shape) > 1 else (0, 1, 1)
        size = math.prod(of.shape[first:end])
        if not of.shape:
            return plain
        if size > below:
            raise ValueError(f"{size} unique indices do not exist below {below}")
        place = plain.device
        shape = [*of.shape[:first], below, *of.shape[end:]]
        order = torch.rand(shape, device=place, generator=self._generator(place)).argsort(first)
        return rewritten(plain, order.narrow(first, 0, size).reshape(of.shape))

    def _generator(self, place: torch.device) -> torch.Generator | None:
        import torch

        if self._seed is None:
            return None
        if str(place) not in self._generators:
            self._generators[str(place)] = torch.Generator(place).manual_seed(self._seed)
        return self._generators[str(place)]
