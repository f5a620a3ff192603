"""Modes that see every operator that is called, without torch's compiler."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def dispatch_mode() -> Any:
    """The class to derive such a mode from. Of its own `TorchDispatchMode` torch keeps the compiler out, for
    which it imports that at the first call: 1 s, and 4.5 s where Python has not compiled torch's files."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

    return PlainDispatchMode
