"""The *values* of a run: the memory of each tensor, and what was last written there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Values:
    """Numbers the values by their memory."""

    def __init__(self) -> None:
        self._there: dict[int, tuple[int, Any]] = {}
        self._next = 0

    def known(self, tensor: torch.Tensor) -> int | None:
        """The value of a tensor that was seen before; None for others and for tensors without memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        place = place_of(tensor)
        if place is None or place not in self._there:
            return None
        value, storage = self._there[place]
        assert isinstance(storage, StorageWeakRef)
        return None if storage.expired() else value  # type: ignore[no-untyped-call]

    def of(self, tensor: torch.Tensor) -> int | None:
        """The value of a tensor, a new one if it was not seen before; None without memory."""
        found = self.known(tensor)
        return self.new(tensor) if found is None else found

    def new(self, tensor: torch.Tensor) -> int | None:
        """A new value for a tensor that was just written; None without memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        place = place_of(tensor)
        if place is None:
            return None
        self._next += 1
        self._there[place] = self._next, StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return self._next


def place_of(tensor: torch.Tensor) -> int | None:
    """The address of a tensor's memory; None where it has none, or is not strided."""
    import torch

    if tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage().data_ptr() or None
