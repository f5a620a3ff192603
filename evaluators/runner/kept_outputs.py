"""What a caller would keep: the outputs of one call, while other calls follow.

If a later call has changed them, outputs of different calls share memory. A kernel that hands out buffers of
a long ring shows that only once it is through. Until then it keeps the memory of every output, each in
another place, which this process can see.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef


class KeptOutputs:
    """The outputs of one call, and where those of the calls since then were."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self.outputs = outputs
        self._places: list[list[int]] = [[] for _ in outputs]
        self._storages: list[list[StorageWeakRef | None]] = [[] for _ in outputs]
        """None for memory that torch did not allocate: it may outlive the storage."""

    def note(self, outputs: list[torch.Tensor]) -> None:
        """Remembers where the outputs of a later call are, without keeping them alive."""
        from torch.multiprocessing.reductions import StorageWeakRef

        for each, places, storages in zip(outputs, self._places, self._storages, strict=True):
            if each.numel():
                storage = each.untyped_storage()
                places.append(each.data_ptr())
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                storages.append(weak if storage.resizable() else None)

    def pile_up(self) -> bool:
        """Whether some output was in another place in every later call, and the kernel keeps the memory of
        all of them."""
        apart = [number for number, each in enumerate(self._places) if each and len({*each}) == len(each)]
        if not any(self._all_kept(number) for number in apart):
            return False
        gc.collect()  # they may only wait for it: it is off while calls are timed
        return any(self._all_kept(number) for number in apart)

    def _all_kept(self, number: int) -> bool:
        kept = self._storages[number]
        return not any(each is not None and each.expired() for each in kept)  # type: ignore[no-untyped-call]
