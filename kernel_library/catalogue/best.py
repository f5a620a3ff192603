"""Kernels for use from code: `softmax = best("softmax", like=x)`."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.records.problem import Kernel
from evaluators.runner import thin_headers
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.entry import AtShape, Entry, Measurement, architecture_of
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.retrieval import slower
from kernel_library.overrides.choice import Candidate, MeasuredCase, best_of
from kernel_library.overrides.shapes import shape_text, sizes_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

ROOT = "outputs/library"
"""Where the commands keep what searches add."""


def best(
    op: str, *, like: torch.Tensor | Sequence[torch.Tensor], root: str | Path = ROOT
) -> Callable[..., Any]:
    """The plain function of the fastest kernel that computes `op` for tensors of the dtype, shape and device
    of `like`, the operation's first input or its first inputs.

    Which is the fastest is said by the measurements that are closest to the case (`choice.best_of`). Runs the
    kernel's source in this process: give a `root` that you trust. One that does not load, since it needs a
    compiler that is not here, makes room for the next best, with a warning. Raises LookupError, in one line,
    when none fits. The function has no backward: it raises RuntimeError for inputs that need a gradient.
    """
    import torch

    tensors = [like] if isinstance(like, torch.Tensor) else list(like)
    device, dtype = tensors[0].device, str(tensors[0].dtype).removeprefix("torch.")
    capability = ""
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    architecture = architecture_of(device.type, capability)
    known = FolderLibrary(root).entries()
    shapes = [each.shape for each in tensors]
    fitting = {
        candidate.name: (entry, candidate)
        for entry, candidate in _fitting(known, op, shapes, dtype, architecture)
    }
    while best_one := best_of([each for _, each in fitting.values()], architecture, dtype, shapes):
        entry, _ = fitting.pop(best_one.name)
        try:
            return _forward_only(load(entry), entry.id)
        except Exception as error:  # the kernel's source, which may raise anything
            logger.warning("%s does not load here: %s", entry.id, first_line(error))
    have = sorted({entry.op for entry in known if entry.function})
    what = f"{op} of {dtype} {', '.join(shape_text(each.shape) for each in tensors)} on {architecture}"
    raise LookupError(f"the library has no function for {what}; it has {', '.join(have) or 'none at all'}")


def fitting_entries(
    known: Sequence[Entry], op: str, shapes: Sequence[Sequence[int]], dtype: str, architecture: str
) -> list[Entry]:
    """Those of these entries with a function that computes `op` for first inputs of such shapes."""
    return [entry for entry, _ in _fitting(known, op, shapes, dtype, architecture)]


def _fitting(
    known: Sequence[Entry], op: str, shapes: Sequence[Sequence[int]], dtype: str, architecture: str
) -> list[tuple[Entry, Candidate]]:
    of_op = [entry for entry in known if entry.op == op and entry.function]
    pairs = zip(of_op, candidates(of_op), strict=True)
    return [pair for pair in pairs if pair[1].takes(shapes, dtype, architecture)]


def _forward_only(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, which refuses inputs that need a gradient: it would drop it without a word."""
    import torch

    @functools.wraps(function)
    def forward(*arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in (*arguments, *named.values())
        ):
            raise RuntimeError(f"{name} has no backward: detach its inputs, or call it under torch.no_grad()")
        return function(*arguments, **named)

    return forward


def load(entry: Entry) -> Callable[..., Any]:
    """The entry's function, from its source. Raises whatever the source raises."""
    found = getattr(module_of(entry.kernel), entry.function)
    function: Callable[..., Any] = found() if isinstance(found, type) else found
    return function


def candidates(entries: Sequence[Entry]) -> list[Candidate]:
    """The entries as what is chosen from, named by their ids."""
    behind = slower(entries)

    def measured(entry: Entry, measurement: Measurement) -> MeasuredCase:
        found, problem = measurement.evaluation, measurement.problem
        return MeasuredCase(
            architecture=measurement.architecture,
            dtype=problem.dtype,
            shapes=tuple(map(sizes_of, measurement.inputs)),
            ahead=(problem.id, measurement.architecture, entry.id) not in behind,
            roofline_share=found.roofline_share or 0.0,
            speedup_low=found.speedup_low,
            precision=problem.precision,
        )

    def at_shape(row: AtShape) -> MeasuredCase:
        return MeasuredCase(
            architecture=row.architecture,
            dtype=row.dtype,
            shapes=tuple(map(sizes_of, row.inputs.split())),
            roofline_share=row.roofline_share,
            speedup_low=row.speedup_low,
            precision=row.precision,
        )

    return [
        Candidate(
            name=entry.id,
            op=entry.op,
            function=entry.function,
            dtypes=entry.dtypes,
            shapes=entry.shapes,
            measured=(
                *(measured(entry, each) for each in entry.measurements),
                *map(at_shape, entry.at_shapes),
            ),
            architectures=entry.architectures,
            failed=tuple(sorted({each.architecture for each in entry.checks if not each.evaluation.timing})),
        )
        for entry in entries
    ]


@functools.cache
def module_of(kernel: Kernel) -> Any:
    """The kernel's source as a module, from a file of its own: Triton reads its functions' source there.
    Raises whatever the source raises."""
    file = cache_folder() / "kernels" / f"kernel_{kernel.id}.py"
    if not file.exists() or file.read_text(encoding="utf-8") != kernel.source:
        if "load_inline" in kernel.source:
            logger.warning("compiling a kernel, which may take a minute; the next process finds it compiled")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, kernel.source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    with _extensions_of(kernel) if "load_inline" in kernel.source else contextlib.nullcontext():
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _extensions_of(kernel: Kernel) -> Iterator[None]:
    """In the block torch builds in a folder of the kernel's own, one process at a time, and with thin headers
    first, as where the kernel was measured. A lock of torch's that is there is that of a build which was
    killed: torch would wait for it without end."""
    folder = cache_folder() / "extensions" / kernel.id
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # given back when the process ends, however it does
        for lock in folder.rglob("lock"):
            lock.unlink()
        with mock.patch.dict(os.environ, {"TORCH_EXTENSIONS_DIR": str(folder)}), thin_headers.installed():
            yield
