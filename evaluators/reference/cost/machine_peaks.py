"""A machine's peak memory bandwidth and matmul rates, measured once and cached."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.base.atomic_write import write_atomically

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

LARGEST_BYTES = 2**30
"""Largest buffer of the bandwidth measurements: about twenty times the L2 cache of an H200."""
UNKNOWN_CACHE_BYTES = 2**29
"""Cache size if the system does not report it: more than most have, so that no kernel is rejected for using
it."""
MATMUL_SIZES = (1024, 2048, 4096, 8192)
QUEUED, GATE_CYCLES = 256, 20_000_000
"""Launches of the smallest kernel, and the clock cycles (about 10 ms) for which they wait, to be queued."""
LONG_ENOUGH_S = {"cuda": 1e-3, "cpu": 0.03}
"""A matmul that takes this long has reached the peak rate; larger ones are not tried."""


@dataclass(frozen=True, kw_only=True)
class MachinePeaks:
    """The peaks of one device: `device` is `cuda` or `cpu`, `cache_bytes` its last-level cache,
    `operations_per_s` the rate of large matmuls by dtype (and for `tf32`), `empty_kernel_s` the time of a
    queued launch that does next to nothing; None: unknown. Raises ValueError for impossible values."""

    device: str
    bytes_per_s: float
    cache_bytes: int
    operations_per_s: Mapping[str, float]
    empty_kernel_s: float | None = None

    def __post_init__(self) -> None:
        values = [self.bytes_per_s, self.cache_bytes, *self.operations_per_s.values()]
        values += [] if self.empty_kernel_s is None else [self.empty_kernel_s]
        if self.device not in LONG_ENOUGH_S or "float32" not in self.operations_per_s:
            raise ValueError(f"peaks of the device {self.device!r} without a rate for float32")
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError(f"peaks must be finite and positive: {values}")

    def raised_to(self, other: MachinePeaks) -> MachinePeaks:
        """The larger of each value of two measurements; of the times, the smaller."""
        mine, theirs = self.operations_per_s, other.operations_per_s
        times = [each for each in (self.empty_kernel_s, other.empty_kernel_s) if each is not None]
        return replace(
            self,
            bytes_per_s=max(self.bytes_per_s, other.bytes_per_s),
            cache_bytes=max(self.cache_bytes, other.cache_bytes),
            operations_per_s={
                name: max(mine.get(name, 0.0), theirs.get(name, 0.0)) for name in {**mine, **theirs}
            },
            empty_kernel_s=min(times, default=None),
        )

    def peak(self, dtype: str, *, lower: bool) -> float:
        """Operations/s of the fastest precision that is accurate enough: half precision with `lower` or in a
        half-precision task. One float32 product needs about three half-precision products (bf16x3 on a 4096³
        matmul: normwise error 4.4e-6, four times that of eager).
        """
        rates = self.operations_per_s
        fastest = max(rates.values())
        if lower or dtype not in ("float32", "float64"):
            return fastest
        return max(rates["float32"], fastest / 3) if dtype == "float32" else rates.get(dtype, fastest)


def peaks_of(device: str, cache: Path | None, *, again: bool = False) -> MachinePeaks:
    """The peaks of this machine's device, `cuda` or `cpu`: measured once, then read from the file `cache`.

    `again` measures in any case and keeps the better of both measurements. It is used before a kernel is
    rejected, in case the machine was busy at the first measurement. An unreadable or unwritable cache is
    ignored.
    """
    import torch

    key = f"{device_name(device)}, torch {torch.__version__}"
    kept = _read_cache(cache)
    known: MachinePeaks | None = None
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        known = MachinePeaks(**kept[key])
    is_complete = known is not None and (device == "cpu" or known.empty_kernel_s is not None)
    if known is not None and is_complete and not again:
        return known
    found = measure_peaks(device)
    if known is not None:
        found = found.raised_to(known)
    if cache is not None:
        _write_cache(cache, {**kept, key: asdict(found)})
    return found


def measure_peaks(device: str) -> MachinePeaks:
    """Measures bandwidth and matmul rates; takes 2.5 s on two cores of an EPYC."""
    import torch

    rates = _matmul_rates(device)
    cache_bytes = _cpu_cache_bytes()
    if device == "cuda":
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size or UNKNOWN_CACHE_BYTES
    found = MachinePeaks(
        device=device,
        bytes_per_s=_bandwidth(device, cache_bytes),
        cache_bytes=cache_bytes,
        operations_per_s=rates,
        empty_kernel_s=_empty_kernel_s() if device == "cuda" else None,
    )
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def _empty_kernel_s() -> float:
    """Seconds that a launch takes that does next to nothing, among many that were queued before."""
    import torch

    target = torch.zeros(1, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    target.fill_(1.0)
    torch.cuda._sleep(GATE_CYCLES)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(QUEUED):
        target.fill_(1.0)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / QUEUED


def _bandwidth(device: str, cache_bytes: int) -> float:
    """Bytes/s of the fastest of copy (reads and writes), sum (reads) and fill (writes)."""
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
    """Operations/s of square matmuls of random matrices, by precision."""
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
    """One call's time: the median of GPU events, or on a CPU, where noise only adds time, the minimum."""
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


def device_name(device: str) -> str:
    """The name of the GPU, or of the CPU with the number of threads that torch uses."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name(0)
    model = "CPU"
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        model = next(names, model)
    return f"{model}, {torch.get_num_threads()} threads"


def _cpu_cache_bytes() -> int:
    """The sum of all caches of all cores: a process may run on any core, and some caches are exclusive."""
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
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache, json.dumps(kept, indent=1))
    except OSError as error:
        logger.warning("the peaks of this machine cannot be cached in %s: %s", cache, error)
