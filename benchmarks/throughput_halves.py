"""Shared by both halves of `benchmarks/throughput.py`: options, samples, verdicts and their rates."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from evaluators.records.problem import Kernel

KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line options."""

    kernelbench: str
    only: str = "both"
    count: int = 24
    timeout_s: float = 30.0
    their_timeout_s: float = 120.0
    limit_s: float = 480.0
    cores: int = os.cpu_count() or 1
    device: str = "cuda"
    kernels: str = str(KERNELS)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One kernel and its problem's file in KernelBench."""

    name: str
    reference: Path
    kernel: Kernel
    fails: bool


@dataclass(frozen=True, kw_only=True)
class Done:
    """A verdict: its time since the start and its time on the device, both in seconds."""

    correct: bool
    words: str
    at_s: float
    device_s: float


@dataclass(kw_only=True)
class Half:
    """The result of one side. `ready_s`: start-up time of all its runs; `wall_s`: when it ended."""

    title: str
    done: dict[str, Done] = field(default_factory=dict)
    ready_s: float = 0.0
    wall_s: float = 0.0

    def rate(self, samples: Iterable[Sample], *, cold: bool, all_of_them: bool) -> float:
        """Verdicts per minute. Without failing kernels, their time on the device is not counted either."""
        fails = {sample.name for sample in samples if sample.fails and not all_of_them}
        kept = [done for name, done in self.done.items() if name not in fails]
        if not kept:
            return 0.0
        end_s = max(done.at_s for done in kept)
        failed = [done for name, done in self.done.items() if name in fails]
        lost_s = sum(done.device_s for done in failed if done.at_s < end_s)
        return len(kept) / (end_s - lost_s - (0.0 if cold else self.ready_s)) * 60


def load_samples(kernels: Path, kernelbench: Path, count: int) -> list[Sample]:
    """`count` of the kernels, spread evenly, failing ones last; `level1_40/cuda_atomics.py` is for problem 40
    of level 1. Raises FileNotFoundError when the clone lacks a problem."""
    samples = []
    for file in sorted(kernels.glob("level*_*/*.py")):
        level, _, number = file.parent.name.partition("_")
        found = sorted((kernelbench / "KernelBench" / level).glob(f"{number}_*.py"))
        if not found:
            raise FileNotFoundError(f"{kernelbench}: no problem {number} in KernelBench/{level}")
        language = file.stem.partition("_")[0]
        samples.append(
            Sample(
                name=f"{file.parent.name}/{file.stem}",
                reference=found[0],
                kernel=Kernel(source=file.read_text(), language=language),
                fails="_fails_" in file.stem,
            )
        )
    samples.sort(key=lambda sample: sample.fails)
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]
