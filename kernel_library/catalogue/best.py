"""Library kernels for use in programs: `softmax = best("softmax", like=x)`."""

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
"""The folder to which the commands add kernels by default."""


def best(
    op: str, *, like: torch.Tensor | Sequence[torch.Tensor], root: str | Path = ROOT
) -> Callable[..., Any]:
    """Returns the fastest library kernel for an operation.

    The choice uses the closest measurements on record: the same device architecture, then the same dtype,
    then the nearest shapes. A kernel that does not load, for example because a compiler is missing, is
    skipped with a warning. The kernel's source runs in this process, so use only a `root` that you trust.

    Args:
        op: the operation, such as `softmax` or `matmul`.
        like: the operation's first input, or its first inputs; their dtypes, shapes and device are used.
        root: the folder or fsspec URL of your own library; the shipped kernels are always included.

    Returns:
        A function of the operation's inputs. It has no backward, and raises RuntimeError for inputs that
        need a gradient.

    Raises:
        LookupError: no kernel fits; the message names the operations that have one.
        OSError: the root cannot be read.
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
    raise LookupError(f"the library has no kernel for {what}; it has {', '.join(have) or 'none at all'}")


def fitting_entries(
    known: Sequence[Entry], op: str, shapes: Sequence[Sequence[int]], dtype: str, architecture: str
) -> list[Entry]:
    """The entries whose function computes `op` for first inputs with such shapes."""
    return [entry for entry, _ in _fitting(known, op, shapes, dtype, architecture)]


def _fitting(
    known: Sequence[Entry], op: str, shapes: Sequence[Sequence[int]], dtype: str, architecture: str
) -> list[tuple[Entry, Candidate]]:
    of_op = [entry for entry in known if entry.op == op and entry.function]
    pairs = zip(of_op, candidates(of_op), strict=True)
    return [pair for pair in pairs if pair[1].takes(shapes, dtype, architecture)]


def _forward_only(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, but it refuses inputs that need a gradient, which it would silently drop."""
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
    """The entry's function. Runs its source, and raises what that raises."""
    found = getattr(module_of(entry.kernel), entry.function)
    function: Callable[..., Any] = found() if isinstance(found, type) else found
    return function


def candidates(entries: Sequence[Entry]) -> list[Candidate]:
    """The entries as records to choose from, named by their ids."""
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
    """The kernel's source as a module, loaded from a file, from which Triton reads its functions' source.
    Raises what the source raises."""
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
    """A context in which torch builds in a separate folder for the kernel, one process at a time, and with
    thin headers first, as when the kernel was measured. Any of torch's own locks in the folder is from a
    killed build; it is deleted because torch would wait for it forever."""
    folder = cache_folder() / "extensions" / kernel.id
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # released even if the process is killed
        for lock in folder.rglob("lock"):
            lock.unlink()
        with mock.patch.dict(os.environ, {"TORCH_EXTENSIONS_DIR": str(folder)}), thin_headers.installed():
            yield
