"""Replaces PyTorch's operators with kernels: `with override(): ...`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_library.catalogue.best import ROOT, candidates, load
from kernel_library.catalogue.library import FolderLibrary

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from kernel_library.overrides.override import Override

    Given = Mapping[str, Callable[..., Any] | str | Path]


def override(
    kernels: Given | str | Path | None = None,
    *,
    device: str | None = None,
    root: str | Path = ROOT,
    faster: bool = True,
    lower_precision: bool = False,
    least_elements: int | None = None,
) -> Override:
    """Replaces PyTorch's operators with kernels, in the whole process, including all threads.

    Use it in a `with` statement, or call `enable()` and `disable()`. A call that needs a gradient gets a
    library kernel whose backward pass was judged, if there is one that was fast for both passes. The kernels'
    source runs in this process, so use only kernels that you trust.

    Args:
        kernels: functions or files by operator name (`{"aten.relu": "relu.py"}`), or a folder in
            BackendBench's layout; `kernel_library.overrides.kernels` describes the files. None uses the
            library's kernels.
        device: `cpu` or `cuda` to use the kernels only there; None for both.
        root: the folder or fsspec URL of your own library; the shipped kernels are always included.
        faster: use only library kernels that were measured to be faster than eager PyTorch.
        lower_precision: also use library kernels that round factors to a lower precision than the tensors'.
        least_elements: the fewest elements of a call's first input for which a library kernel is used
            (default 65,536).

    Returns:
        The override, not yet enabled. Its `report()` shows which calls used a kernel.

    Raises:
        ValueError: an operator's name is unknown, or a file has no kernel.
        OSError: a file cannot be read.
        Exception: any error of a kernel's file.
    """
    from kernel_library.overrides.kernels import DEVICES, files_of, given
    from kernel_library.overrides.library_kernels import LEAST_ELEMENTS, Rules, library_sources
    from kernel_library.overrides.operators import operator
    from kernel_library.overrides.override import Override

    if device not in (None, *DEVICES):
        raise ValueError(f"device is {device}; it must be {' or '.join(DEVICES)}")
    if kernels is None:
        entries = {entry.id: entry for entry in FolderLibrary(root).entries()}
        least = LEAST_ELEMENTS if least_elements is None else least_elements
        forward, trained = (
            [
                each
                for each in candidates([*entries.values()], backward=backward)
                if device in (None, *each.devices)
            ]
            for backward in (False, True)
        )
        known = library_sources(
            forward,
            load=lambda name: load(entries[name]),
            ids={id: entry.kernel.id for id, entry in entries.items()},
            rules=Rules(faster=faster, lower_precision=lower_precision, least_elements=least),
            trained=trained,
        )
        return Override(known)
    files = dict(files_of(Path(kernels))) if isinstance(kernels, str | Path) else kernels
    if not files:
        raise ValueError(
            f"{kernels} has no kernel; give {{operator: kernel}} or a folder of <op>__<overload>/ folders"
        )
    devices = DEVICES if device is None else (device,)
    sources = {operator(name): given(name, what, devices) for name, what in files.items()}
    for each, source in sources.items():
        if each.composite and source.kernel.backward is None:
            message = "%s is a composite operator: calls that need a gradient do not use the kernel"
            logger.warning(message, each.name)
    return Override(sources)
