"""What the machine allows: its measured ceilings, the work of a reference, and the time below which no
measurement can be true (after Williams, Waterman & Patterson, Roofline, CACM 2009).

Two counts of the work. The plain one is for the reader. The cautious one is for rejecting a kernel: only what
no honest kernel can leave out, so that it errs on the kernel's side.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.evaluation import Roofline
from evaluators.reference import tensors_of

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

TRUST = {"cuda": 0.9, "cpu": 0.5}
"""The share of a floor that is held against a claim: a CPU is shared, and its ceilings are noisy."""
SHORT_CUTS = 4.0
"""How much less arithmetic than the cautious count an honest kernel may get by with: Winograd's convolution
saves 2.25 times, 8-bit floats run at twice the half-precision rate."""
LARGEST_BYTES = 2**30
"""Of a buffer in the bandwidth measurements: some twenty times the L2 of an H200."""
UNKNOWN_CACHE_BYTES = 2**29
"""Where the system does not say: more than most have, so that nobody is rejected for hitting it."""
MATMUL_SIZES = (1024, 2048, 4096, 8192)
LONG_ENOUGH_S = {"cuda": 1e-3, "cpu": 0.03}
"""A matmul that takes this long has reached its peak: larger ones are not tried."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What one device reached: `device` is `cuda` or `cpu`, `cache_bytes` its last-level cache,
    `operations_per_s` the rate of large matmuls by dtype (and for `tf32`). Raises ValueError for values that
    no measurement gives."""

    device: str
    bytes_per_s: float
    cache_bytes: int
    operations_per_s: Mapping[str, float]

    def __post_init__(self) -> None:
        values = (self.bytes_per_s, self.cache_bytes, *self.operations_per_s.values())
        if self.device not in TRUST or "float32" not in self.operations_per_s:
            raise ValueError(f"ceilings of the device {self.device!r} without a rate for float32")
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError(f"ceilings must be finite and positive: {values}")

    def raised_to(self, other: Ceilings) -> Ceilings:
        """The better of two measurements, value by value."""
        mine, theirs = self.operations_per_s, other.operations_per_s
        return replace(
            self,
            bytes_per_s=max(self.bytes_per_s, other.bytes_per_s),
            cache_bytes=max(self.cache_bytes, other.cache_bytes),
            operations_per_s={
                name: max(mine.get(name, 0.0), theirs.get(name, 0.0)) for name in {**mine, **theirs}
            },
        )

    def peak(self, dtype: str, tolerance: str) -> float:
        """Operations/s of the fastest precision that the tolerance lets pass.

        A flat tolerance lets half precision pass, and so does a half task. `strict` at float32 needs about
        three products of half precision for one (bf16x3 on a 4096³ matmul: normwise error 4.4e-6, four
        times that of eager), or float32 itself.
        """
        rates = self.operations_per_s
        fastest = max(rates.values())
        if tolerance != "strict" or dtype not in ("float32", "float64"):
            return fastest
        return max(rates["float32"], fastest / 3) if dtype == "float32" else rates.get(dtype, fastest)


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one call. `bytes`: inputs, parameters and buffers read once, outputs written once;
    `operations`: multiplications and additions of matmuls, convolutions and attention.

    The `needed_` figures are the cautious ones: 0 where nothing could be shown.
    """

    bytes: int
    operations: int
    needed_input_bytes: int = 0
    needed_output_bytes: int = 0
    needed_parameter_bytes: int = 0
    needed_operations: int = 0


def roofline(work: Work, ceilings: Ceilings, dtype: str, tolerance: str) -> Roofline:
    """The floor for the problem's dtype and tolerance: the larger of memory and compute time, in ms."""
    memory_ms = max(work.bytes, 1) / ceilings.bytes_per_s * 1e3
    compute_ms = work.operations / ceilings.peak(dtype, tolerance) * 1e3
    return Roofline(
        bytes=work.bytes,
        operations=work.operations,
        floor_ms=max(memory_ms, compute_ms),
        bound="memory" if memory_ms >= compute_ms else "compute",
    )


def too_fast(
    *, kernel_ms: float, eager_ms: float, work: Work, ceilings: Ceilings, footprint_bytes: int
) -> str | None:
    """Why `kernel_ms` a call cannot be true; None where it can.

    `footprint_bytes` is that of all input sets through which the calls rotate. A cache of C bytes holds C of
    them, so that at the median call at most 2 C / footprint of the inputs are warm. The parameters may be in
    the cache when a call begins, the outputs when it ends. Where eager PyTorch itself is below the floor, the
    floor is wrong for this problem.
    """
    cold = max(0.0, 1 - 2 * ceilings.cache_bytes / max(footprint_bytes, 1))
    moved = work.needed_input_bytes * cold + sum(
        max(0, each - ceilings.cache_bytes)
        for each in (work.needed_output_bytes, work.needed_parameter_bytes)
    )
    fastest = max(ceilings.operations_per_s.values())
    memory_ms = moved / ceilings.bytes_per_s * 1e3 * TRUST[ceilings.device]
    compute_ms = work.needed_operations / fastest * 1e3 * TRUST[ceilings.device] / SHORT_CUTS
    floor_ms = max(memory_ms, compute_ms)
    if kernel_ms >= floor_ms or eager_ms < floor_ms:
        return None
    if memory_ms >= compute_ms:
        what = f"{moved / 1e6:.4g} MB must move, and memory gives {ceilings.bytes_per_s / 1e9:.4g} GB/s"
    else:
        what = (
            f"{work.needed_operations / 1e9:.4g} billion operations are asked for, and the fastest matmul "
            f"reaches {fastest / 1e12:.4g} TFLOP/s"
        )
    return (
        f"the kernel was seen to take {kernel_ms:.4g} ms a call, but none can take less than {floor_ms:.4g} "
        f"ms here: {what} (problem.floor=false lifts this check for a problem with an algebraic short cut)"
    )


# The work of a reference


def count(module: nn.Module, inputs: list[Any], outputs: list[torch.Tensor]) -> Work:
    """The work of `module(*inputs)`, which gives `outputs`.

    Runs copies of the module, forward and backward: an input or parameter counts as needed as far as its
    gradient is not zero for a random cotangent, an operation as far as its factors are not zero, forward and
    backward. Attention runs as its two matmuls, so that what a mask leaves out is seen. Inputs and module
    stay as they are. Never raises for an odd reference: what could not be counted is 0, and a warning says
    so.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    moved = (*tensors, *outputs, *module.parameters(), *module.buffers())
    work = Work(
        bytes=sum(map(_bytes, moved)),
        operations=0,
        needed_output_bytes=_written_bytes(outputs, inputs),
    )
    try:
        with sdpa_kernel(SDPBackend.MATH):
            work, products = _add_operations(work, module, inputs)
            work = _add_needed(work, module, inputs, products)
    except Exception as error:  # the reference's code may raise anything; it runs well without this count
        logger.warning("the work of the reference could not be counted: %s: %s", type(error).__name__, error)
    if any(v.is_cuda for v in (*tensors, *outputs)):
        torch.cuda.empty_cache()  # candidates need the memory; the gradients are gone by now
    return work


def _add_operations(work: Work, module: nn.Module, inputs: list[Any]) -> tuple[Work, int]:
    """Runs a copy of the module. Returns the operations with no factor that is zero, too."""
    import torch

    twin = copy.deepcopy(module)
    with torch.no_grad():
        _, operations, products = _counted(lambda: twin(*_cloned(inputs)))
    return replace(work, operations=operations), products


def _add_needed(work: Work, module: nn.Module, inputs: list[Any], products: int) -> Work:
    """Runs a copy of the module forward and backward."""
    import torch

    twin = copy.deepcopy(module)
    leaves = [v.detach().requires_grad_() if _is_floating(v) else v for v in inputs]
    parameters = [p.requires_grad_() for p in twin.parameters() if p.is_floating_point()]
    with torch.enable_grad():
        given = _cloned(leaves)
        outputs = [v for v in tensors_of(twin(*given)) if v.requires_grad and not _is_view(v, given)]
    wanted = [v for v in leaves if _is_floating(v)]
    if not outputs or not wanted + parameters:
        return work
    cotangents = [torch.randn_like(each) for each in outputs]
    gradients, _, backward = _counted(
        lambda: torch.autograd.grad(outputs, wanted + parameters, cotangents, allow_unused=True)
    )
    needed = [0 if g is None or g.is_sparse else _nonzeros(g) * g.element_size() for g in gradients]
    return replace(
        work,
        needed_input_bytes=sum(needed[: len(wanted)]),
        needed_parameter_bytes=sum(needed[len(wanted) :]),
        # Backward has at most two products for each one that the outputs depend on, none for the others.
        needed_operations=min(products, backward // 2),
    )


def _counted(run: Callable[[], Any]) -> tuple[Any, int, int]:
    """What `run` returns, its operations but for those that an attention's mask leaves out, and those of all
    with no factor that is zero."""
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    attended = 1.0

    class Masks(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal attended
            if func is scaled_dot_product_attention:
                attended = _attended_share(*args, **(kwargs or {}))
            try:
                return func(*args, **(kwargs or {}))
            finally:
                attended = 1.0

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        operations = 0
        products = 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # torch would import its compiler, for seconds, to keep it out of here

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if (formula := flop_registry.get(func._overloadpacket)) is not None:
                operations = formula(*args, **(kwargs or {}), out_val=out)
                self.operations += round(operations * attended)
                self.products += _products(func._overloadpacket.__name__, operations, args)
            return out

    with Masks(), Counter() as counter:  # type: ignore[no-untyped-call]
        result = run()
    return result, counter.operations, counter.products


def _attended_share(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> float:
    """The share of the pairs of a query and a key that `scaled_dot_product_attention` does not mask."""
    if attn_mask is not None:
        seen = attn_mask if not _is_floating(attn_mask) else attn_mask.isfinite()
        return _nonzeros(seen) / max(seen.numel(), 1)
    if not is_causal:
        return 1.0
    queries, keys = query.shape[-2], key.shape[-2]
    return sum(min(row + 1, keys) for row in range(queries)) / max(queries * keys, 1)


def _products(name: str, operations: int, args: tuple[Any, ...]) -> int:
    """The operations of one call whose factors are not zero: exact for a matmul, so that diagonal and
    triangular factors count for what they are, expected from the densities for anything else."""
    factors = [v for v in args if _is_floating(v) and v.dim() >= 2 and v.element_size() > 1]
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = factors[-2:]
        return int(2 * ((left != 0).sum(-2) * (right != 0).sum(-1)).sum())
    return int(operations * math.prod(_nonzeros(v) / max(v.numel(), 1) for v in factors))


def _written_bytes(outputs: list[torch.Tensor], inputs: list[Any]) -> int:
    """Outputs in full, but for repeated elements (`expand`) and what need not be written to be returned."""
    new = [each for each in outputs if not _is_view(each, inputs)]
    return sum({_place(each): min(each.untyped_storage().nbytes(), _bytes(each)) for each in new}.values())


def _is_view(output: torch.Tensor, inputs: list[Any]) -> bool:
    """Whether the output lies in the memory of an input."""
    import torch

    return any(isinstance(v, torch.Tensor) and _place(v) == _place(output) for v in inputs)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _nonzeros(tensor: torch.Tensor) -> int:
    import torch

    return int(torch.count_nonzero(tensor).item())


def _is_floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(values: list[Any]) -> list[Any]:
    """Copies of the tensors: a reference may work in place."""
    import torch

    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


# The ceilings of a machine


def default_cache() -> Path:
    """Where ceilings are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ideatree" / "ceilings.json"


def ceilings_of(device: str, cache: Path | None, *, again: bool = False) -> Ceilings:
    """The ceilings of this machine's device, `cuda` or `cpu`: measured once, then from the file `cache`.

    `again` measures in any case and keeps the better of the two: before a kernel is rejected, lest a machine
    that was busy at the first measurement blames it. A cache that cannot be read or written is none.
    """
    import torch

    key = f"{_device_name(device)}, torch {torch.__version__}"
    kept = _read_cache(cache)
    known: Ceilings | None = None
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        known = Ceilings(**kept[key])
    if known is not None and not again:
        return known
    found = measure_ceilings(device)
    if known is not None:
        found = found.raised_to(known)
    if cache is not None:
        _write_cache(cache, {**kept, key: asdict(found)})
    return found


def measure_ceilings(device: str) -> Ceilings:
    """Measures bandwidth and matmul rates: 2.5 s on two cores of an EPYC."""
    import torch

    rates = _matmul_rates(device)
    cache_bytes = _cpu_cache_bytes()
    if device == "cuda":
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size or UNKNOWN_CACHE_BYTES
    found = Ceilings(
        device=device,
        bytes_per_s=_bandwidth(device, cache_bytes),
        cache_bytes=cache_bytes,
        operations_per_s=rates,
    )
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def _bandwidth(device: str, cache_bytes: int) -> float:
    """Bytes/s of the best of copy (read and written), sum (read) and fill (written)."""
    import torch

    size = LARGEST_BYTES
    if device == "cuda":
        size = min(size, torch.cuda.get_device_properties(0).total_memory // 16)
    else:
        size = min(size, max(8 * cache_bytes, LARGEST_BYTES // 4))
    source = torch.ones(size // 4, device=device)
    target = torch.zeros_like(source)
    times = {
        2 * size: _seconds(lambda: target.copy_(source), device),
        size: min(_seconds(source.sum, device), _seconds(lambda: target.fill_(1.0), device)),
    }
    return max(moved / took_s for moved, took_s in times.items())


def _matmul_rates(device: str) -> dict[str, float]:
    """Operations/s of square matmuls of random numbers, by precision."""
    import torch

    precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if device == "cuda":
        precisions |= {"float16": torch.float16, "tf32": torch.float32}
    rates = {}
    before = torch.get_float32_matmul_precision()
    try:
        for name, dtype in precisions.items():
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            rates[name] = _matmul_rate(device, dtype)
    finally:
        torch.set_float32_matmul_precision(before)
    return rates


def _matmul_rate(device: str, dtype: torch.dtype) -> float:
    import torch

    best = 0.0
    for size in MATMUL_SIZES:
        a = torch.randn(size, size, device=device).to(dtype)
        out = torch.empty_like(a)
        took_s = _seconds(functools.partial(torch.mm, a, a, out=out), device)
        best = max(best, 2 * size**3 / took_s)
        if took_s > LONG_ENOUGH_S[device]:
            break
    return best


def _seconds(run: Callable[[], Any], device: str) -> float:
    """One call's time: the median of GPU events, or on a CPU, where all noise is delay, the least."""
    import torch

    run()
    if device != "cuda":
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(10)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))) / 1e3


def _device_name(device: str) -> str:
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name(0)
    model = "CPU"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        model = next(names, model)
    return f"{model}, {torch.get_num_threads()} threads"


def _cpu_cache_bytes() -> int:
    """All caches of all cores together: a process may run on any; some hold what no other does."""
    found = {}
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            size = (folder / "size").read_text().strip()
            shared = tuple((folder / name).read_text() for name in ("level", "type", "shared_cpu_list"))
            found[shared] = int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]
    return sum(found.values()) or UNKNOWN_CACHE_BYTES


def _read_cache(cache: Path | None) -> dict[str, Any]:
    kept: Any = None
    if cache is not None:
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads(cache.read_text())
    return kept if isinstance(kept, dict) else {}


def _write_cache(cache: Path, kept: dict[str, Any]) -> None:
    """Replaces the file at once, so that no other process reads half of it."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = cache.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(kept, indent=1))
        fresh.replace(cache)
    except OSError as error:
        logger.warning("the ceilings of this machine cannot be kept in %s: %s", cache, error)
