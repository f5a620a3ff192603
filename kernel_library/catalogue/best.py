"""Library kernels for use in programs: `softmax = best("softmax", like=x)`."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.records.problem import Kernel
from evaluators.reference.cost.machine_peaks import device_name
from evaluators.runner import thin_headers
from evaluators.system.user_cache import cache_folder
from kernel_library.catalogue.entry import AtShape, Entry, Measurement, architecture_of
from kernel_library.catalogue.fastest import COMPILED, EAGER, FastestFunction
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.measuring import milliseconds
from kernel_library.catalogue.originals import ORIGINALS, Original, compiled, needed, original_of
from kernel_library.catalogue.retrieval import slower
from kernel_library.overrides.choice import Candidate, MeasuredCase, ranked
from kernel_library.overrides.shapes import shape_text, sizes_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

ROOT = "outputs/library"
"""The folder to which the commands add kernels by default."""
MOST_TIMED = 3
"""The most kernels that `best` times for a call."""
MARGIN = 0.02
"""A kernel replaces the original if it was faster by this share; compiled code by twice this share."""


def best(
    op: str,
    *,
    like: torch.Tensor | Sequence[torch.Tensor],
    root: str | Path = ROOT,
    measure: bool = True,
    backward: bool = False,
) -> FastestFunction:
    """Returns the fastest function for an operation: a library kernel, or PyTorch's original.

    If the closest measurement on record is near, it decides: the kernel if it was significantly faster than
    eager PyTorch there, otherwise the original. Near means the same device and dtype, no size that differs by
    more than a factor of 1.25, and last two sizes of each tensor that are multiples of the same powers of two
    up to 16. If none is near, the kernels that fit, the original and the original under `torch.compile` are
    timed here, once: for two seconds, after what has to be built. The result is kept in the user's cache
    folder. Without a measurement, the closest one on record decides although it is not near. If no kernel
    fits, the original is returned, compiled or not, whichever is faster here.

    A kernel that does not load, for example because a compiler is missing, is skipped with a warning. The
    kernel's source runs in this process, so use only a `root` that you trust.

    Args:
        op: the operation, such as `softmax` or `matmul`.
        like: the operation's first input, or its first inputs; their dtypes, shapes and device are used, and
            the tensors themselves if the kernels are timed. Missing inputs are drawn: a square second factor
            of a product, a convolution with windows of 3 x 3.
        root: the folder or fsspec URL of your own library; the shipped kernels are always included.
        measure: time the kernels if no measurement on record is near.
        backward: for calls whose inputs need gradients: only kernels count whose backward pass was judged, by
            measurements of both passes together; without any, the original is returned. When the kernels are
            timed, the inputs of `like` need gradients as they say, or all if none does.

    Returns:
        A function of the operation's inputs. `name` is the kernel's, `original` says whether it is PyTorch's
        own computation, `differentiable` whether its inputs may need a gradient, and `why` gives the reason.
        A kernel that is not differentiable raises RuntimeError for such inputs.

    Raises:
        LookupError: no kernel fits, and PyTorch's own computation is not known; the message names the
            operations that have a kernel.
        OSError: the root cannot be read.
    """
    choice = _Choice.of(op, like, FolderLibrary(root).entries(), backward=backward)
    order = choice.by_measuring() if measure and not choice.is_near else []
    for name, why in order or choice.by_records():
        if (found := choice.function(name)) is not None:
            kernel = next((each for each in choice.kernels if each.name == name), None)
            return FastestFunction(
                found,
                name=name,
                why=why,
                supports=None if kernel is None else partial(_supports, kernel, choice.architecture),
                instead=None if choice.original is None else choice.original.function,
                differentiable=backward,
            )
    raise LookupError(f"no kernel of the library for {op} loads here; the log says why")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Choice:
    """What may compute a call: the library's `kernels` that fit it, best first, and PyTorch's own
    computation. `missing` says that there is no kernel."""

    op: str
    tensors: list[torch.Tensor]
    dtype: str
    shapes: Sequence[Sequence[int]]
    backward: bool
    architecture: str
    device: str
    entries: Mapping[str, Entry]
    kernels: Sequence[Candidate]
    original: Original | None
    missing: str
    functions: dict[str, Callable[..., Any] | None] = field(default_factory=dict)
    """Those that were asked for."""

    @classmethod
    def of(
        cls, op: str, like: torch.Tensor | Sequence[torch.Tensor], known: Sequence[Entry], *, backward: bool
    ) -> _Choice:
        """Among the known entries. Raises LookupError if nothing may compute the call."""
        import torch

        tensors = [like] if isinstance(like, torch.Tensor) else list(like)
        dtype, shapes = str(tensors[0].dtype).removeprefix("torch."), [each.shape for each in tensors]
        architecture, device = _device(tensors[0].device)
        fitting = [
            (entry, candidate)
            for entry, candidate in _fitting(known, op, shapes, dtype, architecture, backward=backward)
            if entry.function
        ]
        entries = {candidate.name: entry for entry, candidate in fitting}
        kernels = ranked([candidate for _, candidate in fitting], architecture, dtype, shapes)
        original = (
            original_of(op, entries[kernels[0].name]) if kernels else _original_of_any(known, op, len(shapes))
        )
        what = f"{op} of {dtype} {', '.join(map(shape_text, shapes))} on {architecture}"
        missing = f"the library has no kernel{' with a backward pass' if backward else ''} for {what}"
        if not kernels and original is None:
            have = ", ".join(sorted({entry.op for entry in known if entry.function}))
            raise LookupError(f"{missing}; it has {have or 'none at all'}")
        return cls(
            op=op,
            tensors=tensors,
            dtype=dtype,
            shapes=shapes,
            backward=backward,
            architecture=architecture,
            device=device,
            entries=entries,
            kernels=kernels,
            original=original,
            missing=missing,
        )

    @property
    def is_near(self) -> bool:
        """Whether the closest measurement of the best kernel tells about the call."""
        return bool(self.kernels) and self._closest(self.kernels[0]).is_near(
            self.device, self.dtype, self.shapes
        )

    def function(self, name: str) -> Callable[..., Any] | None:
        """Of a kernel or the original, by name; None if it does not load here."""
        if name not in self.functions:
            found: Callable[..., Any] | None
            if self.original is not None and name in (EAGER, COMPILED):
                found = self.original.function if name == EAGER else compiled(self.original)
            else:
                found = _loaded(self.entries[name]) if name in self.entries else None
            self.functions[name] = found
        return self.functions[name]

    def by_measuring(self) -> list[tuple[str, str]]:
        """What to use, the fastest first, with the reason: the best kernels, the original and the compiled
        original are timed here. Empty if they cannot be."""
        import torch

        if self.original is None:
            return []
        kinds = [[str(each.dtype), *each.shape, *each.stride()] for each in self.tensors]
        kernels = {each.name: self.entries[each.name].kernel.id for each in self.kernels[:MOST_TIMED]}
        needs = needed(self.tensors) if self.backward else []
        key = [self.op, self.device, torch.__version__, kinds, kernels, *([needs] if self.backward else [])]
        arguments = partial(self.original.call, self.tensors, needs)
        names = [EAGER, COMPILED, *kernels]
        return _by_times(_times(json.dumps(key), self.function, names, arguments, self.tensors[0]))

    def by_records(self) -> Iterator[tuple[str, str]]:
        """What to use, with the reason: the kernels in this order up to the first one that the original beats
        in its closest measurement, then the original."""
        for each in self.kernels:
            found = self._closest(each)
            texts = ", ".join(map(shape_text, found.shapes))
            why = f"{each.name}: at least {found.speedup_low:.2f}x at {texts} {found.dtype} on {found.device}"
            if self.original is not None and not found.speedup_low > 1:
                yield EAGER, why
                return
            yield each.name, why
        if self.original is not None:
            yield EAGER, "no kernel loads here" if self.kernels else self.missing

    def _closest(self, kernel: Candidate) -> MeasuredCase:
        return kernel.closest(self.architecture, self.dtype, self.shapes)


def fitting_entries(
    known: Sequence[Entry],
    op: str,
    shapes: Sequence[Sequence[int]],
    dtype: str,
    architecture: str,
    *,
    backward: bool = False,
) -> list[Entry]:
    """The entries that compute `op` for first inputs with such shapes, those without a function included if
    `backward`."""
    fitting = _fitting(known, op, shapes, dtype, architecture, backward=backward)
    return [entry for entry, _ in fitting if entry.function or backward]


def _has_too_many(op: str, tensors: int) -> bool:
    """Whether a call with as many tensors is none of this family."""
    return op in ORIGINALS and tensors > ORIGINALS[op].tensors


def _original_of_any(known: Sequence[Entry], op: str, tensors: int) -> Original | None:
    """PyTorch's own computation of a family, or of an operation that some entry has; None if it does not take
    as many tensors."""
    if _has_too_many(op, tensors):
        return None
    entry = next((each for each in known if each.op == op and each.function), None)
    return ORIGINALS.get(op) if entry is None else original_of(op, entry)


def _fitting(
    known: Sequence[Entry],
    op: str,
    shapes: Sequence[Sequence[int]],
    dtype: str,
    architecture: str,
    *,
    backward: bool = False,
) -> list[tuple[Entry, Candidate]]:
    """`backward`: the entries that were measured with their backward pass, and these measurements alone."""
    of_op = {entry.id: entry for entry in known if entry.op == op}
    if _has_too_many(op, len(shapes)):
        return []
    return [
        (of_op[candidate.name], candidate)
        for candidate in candidates([*of_op.values()], backward=backward)
        if candidate.takes(
            shapes[: len(candidate.shapes)] if op in ORIGINALS else shapes, dtype, architecture
        )
    ]


def _device(device: torch.device) -> tuple[str, str]:
    """The architecture and the name of a device."""
    import torch

    if device.type != "cuda":
        return architecture_of(device.type, ""), device_name("cpu")
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return capability, torch.cuda.get_device_name(device)


def _by_times(times: Mapping[str, float]) -> list[tuple[str, str]]:
    """What to use, the fastest first, with the reason."""
    why = "timed here: " + ", ".join(f"{name} {ms:.4g} ms" for name, ms in times.items())
    margins = {EAGER: 0.0, COMPILED: 2 * MARGIN}
    order = sorted(times, key=lambda name: times[name] * (1 + margins.get(name, MARGIN)))
    return [(name, why) for name in order]


def _times(
    key: str,
    function: Callable[[str], Callable[..., Any] | None],
    names: Sequence[str],
    arguments: Callable[[], Sequence[Any]],
    first: torch.Tensor,
) -> Mapping[str, float]:
    """Milliseconds of a call of these functions, measured or from the cache; empty if the device, that of the
    first input, has no room or is recording a graph."""
    import torch

    cache = JsonlStore(cache_folder() / "best.jsonl")
    if (known := cache.get(key)) is not None:
        return dict(known)
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return {}
    logger.info("timing %s, once", ", ".join(names))
    runs = {name: found for name in names if (found := function(name)) is not None}
    there = torch.cuda.device(first.device) if first.is_cuda else contextlib.nullcontext()
    try:
        with there:
            times = milliseconds(runs, arguments())
    except torch.OutOfMemoryError:
        logger.warning("%s are not timed: the device has no memory left", ", ".join(names))
        return {}
    try:
        if times:
            cache.put(key, times)
    except OSError as error:
        logger.warning("%s is not written: %s", cache.path, first_line(error))
    return times


def _supports(kernel: Candidate, architecture: str, shapes: Sequence[Sequence[int]], dtype: str) -> bool:
    return kernel.takes(shapes[: len(kernel.shapes)], dtype, architecture)


def _loaded(entry: Entry) -> Callable[..., Any] | None:
    """The entry's function; None, with a warning, if it does not load."""
    try:
        return load(entry)
    except Exception as error:  # the kernel's source, which may raise anything
        logger.warning("%s does not load here: %s", entry.id, first_line(error))
        return None


def load(entry: Entry) -> Callable[..., Any]:
    """The entry's function. Runs its source, and raises what that raises."""
    found = getattr(module_of(entry.kernel), entry.function)
    function: Callable[..., Any] = found() if isinstance(found, type) else found
    return function


def candidates(entries: Sequence[Entry], *, backward: bool = False) -> list[Candidate]:
    """The entries as records to choose from, named by their ids, with the measurements of the forward pass
    or, with `backward`, of both; without those that have none."""
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
            device=found.environment.get("device", ""),
        )

    def at_shape(row: AtShape) -> MeasuredCase:
        return MeasuredCase(
            architecture=row.architecture,
            dtype=row.dtype,
            shapes=tuple(map(sizes_of, row.inputs.split())),
            roofline_share=row.roofline_share,
            speedup_low=row.speedup_low,
            precision=row.precision,
            device=row.device,
        )

    found = [
        Candidate(
            name=entry.id,
            op=entry.op,
            function=entry.function,
            dtypes=entry.dtypes,
            shapes=entry.shapes,
            measured=(
                *(measured(entry, each) for each in entry.measurements if each.problem.backward == backward),
                *(at_shape(row) for row in entry.at_shapes if row.backward == backward),
            ),
            architectures=entry.architectures,
            failed=tuple(sorted({each.architecture for each in entry.checks if not each.evaluation.timing})),
        )
        for entry in entries
    ]
    return [each for each in found if each.measured]


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
