"""Dispatch modes, which see every operator call, without importing torch's compiler."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def dispatch_mode() -> Any:
    """The base class for such a mode. Torch disables its compiler inside a `TorchDispatchMode`, and imports
    it at the first call to do so: 1 s, or 4.5 s if torch's files have no bytecode yet. This class skips
    it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return PlainDispatchMode
