"""Memory that the judge process and a runner share, and the tensors in it.

On a CPU it is an anonymous shared file, on a GPU device memory; the channel carries a descriptor of either.
Both are one flat range of bytes, in which a `Layout` places each tensor of each call.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evaluators.reference.inputs.strided_layouts import extent
from evaluators.system import cuda_driver, process_inspection

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512
GUARD = 0xFF
"""The byte around inputs, in front of each and behind it, at least ALIGNMENT of them: NaN in every floating
type. A kernel that reads there and multiplies by zero gets NaN."""
PROBES = 64
"""Elements of each output that are examined after every call, to detect that they were not written."""
POISON = {
    "float16": ("int16", 0x7D5A),
    "bfloat16": ("int16", 0x7FA5),
    "float32": ("int32", 0x7FA5A5A5),
    "float64": ("int64", 0x7FF5A5A5A5A5A5A5),
    "complex64": ("int32", 0x7FA5A5A5),
    "complex128": ("int64", 0x7FF5A5A5A5A5A5A5),
}
"""Contents of the outputs before a call, as integers: signalling NaNs, which no operation returns, whereas
PyTorch rounds a NaN to all bits one in bfloat16. For other types all bits are one."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One tensor's place within a call; `dtype` is torch's name, `offset` the bytes from the call's start to
    the first element."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`calls` groups of equal slots, `call_bytes` apart."""

    slots: tuple[Slot, ...]
    call_bytes: int
    calls: int

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], calls: int, *, as_they_are: bool = False) -> Layout:
        """Space for `calls` copies of these tensors. Strides of dense tensors are kept. `as_they_are` keeps
        all strides, including gaps and repeated elements, and the offset of the first element from an aligned
        address; GUARD lies around the tensors."""
        guard = ALIGNMENT if as_they_are else 0
        slots, offset = [], guard
        for tensor in tensors:
            stride, skew = tuple(tensor.stride()), 0
            if as_they_are:
                skew = int(tensor.storage_offset()) * tensor.element_size() % ALIGNMENT
            elif not (tensor.is_contiguous() or _is_dense(tensor)):
                stride = _contiguous(tuple(tensor.shape))
            slots.append(
                Slot(
                    shape=tuple(tensor.shape), stride=stride, dtype=_name(tensor.dtype), offset=offset + skew
                )
            )
            offset += _aligned(skew + extent(tensor.shape, stride) * tensor.element_size() + guard)
        return cls(slots=tuple(slots), call_bytes=max(offset, ALIGNMENT), calls=calls)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """The inverse of `to_json`."""
        slots = tuple(
            Slot(shape=tuple(s["shape"]), stride=tuple(s["stride"]), dtype=s["dtype"], offset=s["offset"])
            for s in data["slots"]
        )
        return cls(slots=slots, call_bytes=data["call_bytes"], calls=data["calls"])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @property
    def bytes(self) -> int:
        """The size of all calls together."""
        return self.call_bytes * self.calls

    def views(self, memory: torch.Tensor) -> list[list[torch.Tensor]]:
        """The tensors of each call as views of `memory`, a flat uint8 tensor of at least `bytes` bytes."""
        return [
            [_view(memory, slot, call * self.call_bytes) for slot in self.slots] for call in range(self.calls)
        ]


def create_shared(size: int, device: str) -> tuple[torch.Tensor, dict[str, Any], int]:
    """New shared memory. Returns a flat uint8 tensor over it, the description that the other side needs to
    open it, and the descriptor to send along, which the caller closes. Raises MemoryError if the device has
    no room."""
    if device == "cpu":
        fd = os.memfd_create("shared_buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return _map(fd, size), {"bytes": size, "device": device}, fd
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"{size} bytes of shared memory: {error}") from error
    address, fd = cuda_driver.allocate_shareable(size)
    return _on_device(address, size), {"bytes": size, "device": device}, fd


def free_shared(memory: torch.Tensor) -> None:
    """Frees device memory of `create_shared`; on a CPU shared memory is freed with its last tensor."""
    if memory.is_cuda:
        cuda_driver.free_shareable(memory.data_ptr(), memory.numel())


def open_shared(description: dict[str, Any], fd: int) -> torch.Tensor:
    """The memory that another process created, as a flat uint8 tensor. Takes ownership of the descriptor."""
    size = description["bytes"]
    try:
        if description["device"] == "cpu":
            return _map(fd, size)
        return _on_device(cuda_driver.open_shareable(fd, size), size)
    finally:
        os.close(fd)


class _DeviceBytes:
    """A device pointer in the form that `torch.as_tensor` accepts without a copy."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def _on_device(pointer: int, size: int) -> torch.Tensor:
    import torch

    return torch.as_tensor(_DeviceBytes(pointer, size), device="cuda")


def _map(fd: int, size: int) -> torch.Tensor:
    import torch

    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def _view(memory: torch.Tensor, slot: Slot, start: int) -> torch.Tensor:
    import torch

    dtype, first = getattr(torch, slot.dtype), start + slot.offset
    flat = memory[first : first + extent(slot.shape, slot.stride) * dtype.itemsize].view(dtype)
    return flat.as_strided(slot.shape, slot.stride)


def _is_dense(tensor: torch.Tensor) -> bool:
    pairs = sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    )
    expected = 1
    for stride, size in pairs:
        if stride != expected:
            return False
        expected *= size
    return True


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, kw_only=True)
class SampledOutput:
    """Private copies of the outputs of one call of a block, chosen at random, and which calls left outputs
    unwritten."""

    call: int
    outputs: list[torch.Tensor]
    unwritten: torch.Tensor
    """Per call, on the device. It is not read while the clock runs, because reading takes longer if some are
    unwritten."""

    @property
    def missing(self) -> int | None:
        """A call with unwritten outputs, or None."""
        return int(self.unwritten.nonzero()[0]) if self.unwritten.any() else None


class SharedBuffers:
    """Shared memory for `calls` calls: inputs, outputs, and the word of the gate at the end."""

    def __init__(
        self,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        calls: int,
        device: str,
        changed: Sequence[int] = (),
    ) -> None:
        """`changed` are the indices of the inputs that the reference writes to, which also count as outputs.
        Raises MemoryError if the device has no room."""
        self.inputs, self.outputs = Layout.of(inputs, calls, as_they_are=True), Layout.of(outputs, calls)
        self._changed = tuple(changed)
        size = self.inputs.bytes + self.outputs.bytes
        self.memory, self.description, self.fd = create_shared(size + ALIGNMENT, device)
        self.results = self.memory[self.inputs.bytes :]
        """All outputs: what the runner leaves there, or, private, what was read out of its memory."""
        self.fetches = device == "cpu" and process_inspection.can_peek()
        if self.fetches:
            self.results = self.memory.new_empty(self.outputs.bytes)
        self.input_views = self.inputs.views(self.memory)
        self.output_views = self.outputs.views(self.results)
        self._gate = gate_of(self.memory)
        self._turn = 0

    def free(self) -> None:
        """Frees the memory; it must not be used afterwards."""
        free_shared(self.memory)
        os.close(self.fd)

    def next_turn(self) -> int:
        """The number for which the gate opens next."""
        self._turn += 1
        return self._turn

    def clear(self) -> None:
        """Erases what the last runner left and closes the gate."""
        self.memory.zero_()
        self._turn = 0

    def poison(self, calls: int) -> None:
        """Fills the outputs of the first `calls` calls with POISON, so that unwritten elements cannot pass.
        Nobody looks at those of other calls before they are filled, too."""
        for slot in self.outputs.slots:
            words, value = self._words(slot, calls)
            words.fill_(value)

    def _words(self, slot: Slot, calls: int) -> tuple[torch.Tensor, int]:
        """One output of `calls` calls as integers, one row per call, and the integer that marks poison."""
        import torch

        name, value = POISON.get(slot.dtype, ("uint8", 255))
        size = getattr(torch, name).itemsize
        words = math.prod(slot.shape) * getattr(torch, slot.dtype).itemsize // size
        whole = self.results[slot.offset : self.outputs.bytes].view(getattr(torch, name))
        return whole.as_strided((calls, words), (self.outputs.call_bytes // size, 1)), value

    def snapshot(self, call: int) -> list[torch.Tensor]:
        """A private copy of the outputs of a call, and of the inputs that it had to change."""
        return [*(place.clone() for place in self.output_views[call]), *self.changed(call)]

    def changed(self, call: int) -> list[torch.Tensor]:
        """A private copy of the inputs that a call had to change, as they are now."""
        return [self.input_views[call][number].clone() for number in self._changed]

    def altered(self, staged: torch.Tensor, call: int) -> int | None:
        """The index of an input that the runner changed without permission during a call; None if all are as
        staged, including gaps."""
        import torch

        start = call * self.inputs.call_bytes
        now, before = (each[start : start + self.inputs.call_bytes] for each in (self.memory, staged))
        words = now.view(torch.int64), before.view(torch.int64)  # a comparison allocates a byte per word
        if not self._changed and torch.equal(*words):
            return None
        for number, slot in enumerate(self.inputs.slots):
            size = extent(slot.shape, slot.stride) * getattr(torch, slot.dtype).itemsize
            part = slice(slot.offset, slot.offset + size)
            if number not in self._changed and not torch.equal(now[part], before[part]):
                return number
        return None

    def unwritten(self, calls: int) -> torch.Tensor:
        """For each call of the last block, whether its outputs were not fully written, judging by a few
        elements; bool."""
        import torch

        found = torch.zeros(calls, dtype=torch.bool, device=self.results.device)
        for slot in self.outputs.slots:
            words, value = self._words(slot, calls)
            if slot.dtype not in POISON or not words.numel():
                continue  # all bits one is a valid number in this type
            at = torch.randint(words.shape[1], (PROBES,), device=words.device)
            found |= (words[:, at] == value).any(-1)
        return found

    def rehearse_sampling(self, calls: int) -> None:
        """Samples outputs once and discards them, so that torch's allocator already has the memory for the
        next sample. That one runs while the clock runs, and a request to the device costs about 0.1 ms, and
        for 6 GiB as much as the kernel that writes them."""
        self.sample_output(calls)

    def sample_output(self, calls: int) -> SampledOutput:
        """A sample of the last block, which had `calls` calls."""
        call = secrets.randbelow(calls)
        return SampledOutput(call=call, outputs=self.snapshot(call), unwritten=self.unwritten(calls))

    def show_one(self, staged: torch.Tensor, call: int) -> None:
        """Copies one call's inputs from private memory."""
        start = call * self.inputs.call_bytes
        end = start + self.inputs.call_bytes
        self.memory[start:end].copy_(staged[start:end])

    def show(self, staged: torch.Tensor, calls: int) -> None:
        """Copies the inputs of the first `calls` calls from private memory, then opens the gate."""
        size = calls * self.inputs.call_bytes
        self.memory[:size].copy_(staged[:size])
        self._gate.fill_(self._turn)

    def hide(self) -> None:
        """Erases all inputs."""
        self.memory[: self.inputs.bytes].zero_()


def gate_of(memory: torch.Tensor) -> torch.Tensor:
    """The word at the end of the shared buffers for which a runner's stream waits."""
    import torch

    return memory[-ALIGNMENT:][:4].view(torch.int32)
