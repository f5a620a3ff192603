"""Kernels for use from code: `softmax = best("softmax", like=x)`."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from evaluators.atomic_write import write_atomically
from evaluators.problem import Kernel
from evaluators.runner import thin_headers
from evaluators.system.user_cache import cache_folder
from kernel_library.entry import Entry, Measurement, architecture_of, fits, shape_text
from kernel_library.library import FolderLibrary
from kernel_library.retrieval import slower

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

    Each kernel that fits is judged by its measurement that is closest to the case: one on this architecture
    and at this dtype is preferred, then one that was not slower than another when one session measured both,
    then the larger share of the roofline, then the larger lower end of the speedup's interval. Runs the
    kernel's source in this process: give a `root` that you trust. Raises LookupError, in one line, when none
    fits. The function has no backward: it raises RuntimeError for inputs that need a gradient.
    """
    import torch

    tensors = [like] if isinstance(like, torch.Tensor) else list(like)
    device, dtype = tensors[0].device, str(tensors[0].dtype).removeprefix("torch.")
    capability = ""
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    architecture = architecture_of(device.type, capability)
    entries = FolderLibrary(root).entries()
    fitting = [
        entry
        for entry in entries
        if entry.op == op
        and entry.function
        and dtype in entry.dtypes
        and any(m.problem.device == device.type for m in entry.measurements)
        and entry.runs_on(architecture)
        and len(tensors) <= len(entry.shapes)
        and all(fits(pattern, tensor.shape) for pattern, tensor in zip(entry.shapes, tensors, strict=False))
    ]
    if not fitting:
        have = sorted({entry.op for entry in entries if entry.function})
        what = f"{op} of {dtype} {', '.join(shape_text(each.shape) for each in tensors)} on {architecture}"
        raise LookupError(
            f"the library has no function for {what}; it has {', '.join(have) or 'none at all'}"
        )
    behind, elements = slower(fitting), tensors[0].numel()
    chosen = max(fitting, key=lambda entry: _promise(entry, behind, architecture, dtype, elements))
    return _forward_only(load(chosen), chosen.id)


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
    found = getattr(_module(entry.kernel), entry.function)
    function: Callable[..., Any] = found() if isinstance(found, type) else found
    return function


def _promise(
    entry: Entry, behind: Container[tuple[str, str, str]], architecture: str, dtype: str, elements: int
) -> tuple[float, ...]:
    """What it may be expected to be worth, from the measurement that is closest to the case."""

    def closeness(measurement: Measurement) -> tuple[float, ...]:
        sizes = measurement.inputs[0].split("x") if measurement.inputs and measurement.inputs[0] else []
        far = abs(math.log2(1 + elements) - math.log2(1 + math.prod(map(int, sizes))))
        return measurement.architecture == architecture, measurement.problem.dtype == dtype, -far

    closest = max(entry.measurements, key=closeness)
    found = closest.evaluation
    ahead = (closest.problem.id, closest.architecture, entry.id) not in behind
    return (*closeness(closest)[:2], ahead, found.roofline_share or 0.0, found.speedup_low)


@functools.cache
def _module(kernel: Kernel) -> Any:
    """The kernel's source as a module, from a file of its own: Triton reads its functions' source there."""
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
