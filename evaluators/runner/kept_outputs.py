"""What a caller would keep: the outputs of one call, while other calls follow.

If a later call has changed them, outputs of different calls share memory. A kernel that hands out the buffers
of a long ring has not shown that yet, but the memory of the outputs that it has returned still exists,
although nobody else holds it. From then on all outputs are held: the same memory, returned again, is the
proof.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

ROUNDS = 3
"""Calls per place in memory that are enough to compare contents: a ring that is made when it is first needed
has been through twice then."""


class KeptOutputs:
    """The outputs of one call, and where those of the calls since then were."""

    def __init__(self, outputs: list[torch.Tensor], *, lent: int) -> None:
        """`lent` is the address of the memory of the inputs: outputs there are not the kernel's."""
        self.outputs = outputs
        self.returned_again = False
        """Whether an output was returned in the memory of one that is held."""
        self._calls, self._lent = 0, lent
        self._places: list[dict[int, StorageWeakRef | None]] = [{} for _ in outputs]
        """By address; None for memory that torch did not allocate: it may outlive the storage."""
        self._held: dict[int, dict[int, torch.Tensor]] = {}
        """By the number of an output whose memory a kernel keeps, and the address."""

    def note(self, outputs: list[torch.Tensor]) -> None:
        """Remembers where the outputs of a later call are, and holds those that are suspect."""
        from torch.multiprocessing.reductions import StorageWeakRef

        self._calls += 1
        for number, (each, places) in enumerate(zip(outputs, self._places, strict=True)):
            storage, place = each.untyped_storage(), each.data_ptr()
            if each.numel() and storage.data_ptr() != self._lent:
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                places[place] = weak if storage.resizable() else None
                if (held := self._held.get(number)) is not None:
                    self.returned_again |= place in held
                    held[place] = each

    def suspects(self) -> bool:
        """Whether a kernel keeps the memory of many outputs, compared with the number of calls. From then on
        they are held."""
        if any(self._is_suspect(number) for number in range(len(self.outputs))):
            gc.collect()  # some may only wait for it: it is off while calls are timed
        for number in range(len(self.outputs)):
            if self._is_suspect(number):
                self._held.setdefault(number, {})
        return bool(self._held)

    def keeps_all(self) -> bool:
        """Whether the memory of all outputs that were held still exists when nobody holds them any more.
        Parts of one block, each given away once, are not kept: the block exists until all are dropped."""
        held = {number: list(places) for number, places in self._held.items()}
        self._held.clear()
        gc.collect()
        for number, places in held.items():
            storages = [self._places[number][place] for place in places]
            known = [each for each in storages if each is not None]
            separate = len({each.cdata for each in known}) == len(known)
            if places and separate and all(map(_exists, storages)):
                return True
        return False

    def _is_suspect(self, number: int) -> bool:
        return self._kept(number) * ROUNDS > self._calls

    def _kept(self, number: int) -> int:
        """The number of places of an output whose memory still exists."""
        return sum(map(_exists, self._places[number].values()))


def _exists(storage: StorageWeakRef | None) -> bool:
    return storage is None or not storage.expired()  # type: ignore[no-untyped-call]
