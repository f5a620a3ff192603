"""Records of one traced call of an operator: its arguments, without the numbers in the tensors.

`grammar` converts them to and from text, and `inputs` draws arguments for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

DTYPES = {
    "bf16": "bfloat16",
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "b8": "bool",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}
"""PyTorch's names of the types, by their short names in traces."""
SHORT = {name: short for short, name in DTYPES.items()}
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
CONSTANTS = (*SHORT, *LAYOUTS, *MEMORY_FORMATS)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor argument: `dtype` is PyTorch's name. `stride` None means contiguous, `device` None the call's
    device. Raises ValueError for invalid fields."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        _check_sizes("shape", self.shape)
        if self.dtype not in SHORT:
            raise ValueError(f"{self.dtype!r} is not a tensor type")
        if self.stride is not None:
            _check_sizes("stride", self.stride)
            if len(self.stride) != len(self.shape):
                raise ValueError(f"{len(self.stride)} strides do not fit {len(self.shape)} dimensions")
        if self.device is not None:
            _check_device(self.device)

    @property
    def is_mask(self) -> bool:
        """Whether it acts as a mask when used as an index."""
        return self.dtype in ("bool", "uint8")


@dataclass(frozen=True)
class Constant:
    """A type, layout or memory format argument: `float16`, `strided`, `channels_last`. Raises ValueError for
    another name."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in CONSTANTS:
            raise ValueError(f"{self.name!r} is not a type, layout or memory format")


@dataclass(frozen=True)
class Device:
    """A device argument: `cuda:0`. Raises ValueError for an invalid name."""

    name: str

    def __post_init__(self) -> None:
        _check_device(self.name)


Value = bool | int | float | str | Tensor | Constant | Device | tuple["Value", ...] | None


@dataclass(frozen=True, kw_only=True)
class TracedCall:
    """An operator (`aten.add.Tensor`) with its arguments, and how often it was called with them; 0 for calls
    that were generated."""

    operator: str
    arguments: tuple[Value, ...]
    keywords: Mapping[str, Value] = field(default_factory=dict)
    count: int = 1


def tensors_of(value: Value) -> Iterator[Tensor]:
    """The tensors of an argument, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from tensors_of(each)


def _check_sizes(what: str, sizes: object) -> None:
    if not isinstance(sizes, tuple) or not all(type(each) is int and each >= 0 for each in sizes):
        raise ValueError(f"a {what} must be a list of non-negative whole numbers")


def _check_device(name: object) -> None:
    if not isinstance(name, str) or re.fullmatch(r"[a-z]+(:\d+)?", name) is None:
        raise ValueError(f"{name!r} is not a device")
