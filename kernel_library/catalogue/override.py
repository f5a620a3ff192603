"""Kernels in the place of PyTorch's operators: `with override(): ...`."""

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
    """Kernels in the place of operators, inside of a `with`, or from its `enable()` to its `disable()`; for
    the whole process, all threads included.

    Without `kernels` they are the library's, of `root`. `faster=False` also takes those that were measured
    to be slower than eager PyTorch, `lower_precision=True` those that round factors to a lower precision
    than the tensors have; `least_elements` is what the first input of a call has at least (65,536).

    `kernels` are otherwise functions or files by the operators' names, `{"aten.relu": "relu.py"}`, or a
    folder in BackendBench's layout; `device` (`cpu` or `cuda`) confines them. What a file has is said in
    `kernel_library.overrides.kernels`.

    Runs the kernels' source in this process: give what you trust. Raises ValueError for a name that is no
    operator's or a file without a kernel, OSError for what cannot be read, and whatever a file raises.
    """
    from kernel_library.overrides.kernels import DEVICES, files_of, given
    from kernel_library.overrides.library_kernels import LEAST_ELEMENTS, Rules, library_sources
    from kernel_library.overrides.operators import operator
    from kernel_library.overrides.override import Override

    if device not in (None, *DEVICES):
        raise ValueError(f"device is {device}; it must be one of {', '.join(DEVICES)}")
    if kernels is None:
        entries = {entry.id: entry for entry in FolderLibrary(root).entries()}
        least = LEAST_ELEMENTS if least_elements is None else least_elements
        known = library_sources(
            [each for each in candidates([*entries.values()]) if device in (None, *each.devices)],
            load=lambda name: load(entries[name]),
            ids={id: entry.kernel.id for id, entry in entries.items()},
            rules=Rules(faster=faster, lower_precision=lower_precision, least_elements=least),
        )
        return Override(known)
    files = dict(files_of(Path(kernels))) if isinstance(kernels, str | Path) else kernels
    if not files:
        raise ValueError(
            f"{kernels} has no kernel: say {{operator: kernel}}, or a folder of <op>__<overload>/"
        )
    devices = DEVICES if device is None else (device,)
    sources = {operator(name): given(name, what, devices) for name, what in files.items()}
    for each, source in sources.items():
        if each.composite and source.kernel.backward is None:
            said = "torch makes %s of other operators: a call that needs a gradient goes to those"
            logger.warning(said, each.name)
    return Override(sources)
