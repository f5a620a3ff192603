"""How a worker measures: what can be set of the evaluator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from evaluators.base.option import option
from evaluators.build.build_cache import BuildCache
from evaluators.isolation import confinement
from evaluators.records.timing import Plan
from evaluators.system.user_cache import cache_folder


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a worker measures. Times in seconds."""

    build_timeout_s: float = option(180.0, "to build a kernel")
    timeout_s: float = option(30.0, "to load, check and time a built kernel")
    thorough_timeout_s: float = option(300.0, "the same for the final measurement, torch.compile included")
    open_timeout_s: float = option(300.0, "to open a problem: reference and baseline")
    memory_gb: float = option(16.0, "memory of a candidate")
    scratch_gb: float = option(4.0, "files of a candidate")
    build_cache_gb: float = option(
        4.0, "disk for builds, kept across runs in the user's cache folder; 0: none"
    )
    isolation: str = option(
        "limits", "the least that candidates are confined by: limits | landlock | seccomp | namespaces"
    )
    max_calls: int = option(256, "at most: calls of a block, each with inputs of its own; on a CPU 32")
    plan: Plan = field(
        default_factory=lambda: Plan(block_ms=10.0, precision=0.02, max_s=1.0),
        metadata={"help": "of every evaluation"},
    )
    thorough_plan: Plan = field(
        default_factory=lambda: Plan(block_ms=20.0, precision=0.005, max_s=5.0),
        metadata={"help": "of the final measurement"},
    )
    compile_mode: str = option(
        "max-autotune-no-cudagraphs", 'of the torch.compile baseline; "" leaves it out'
    )
    threads: int | None = option(
        None, "CPU threads of kernels and baselines; null: one a core (on a GPU, of their few)"
    )

    def plan_of(self, thorough: bool) -> Plan:
        """How long a measurement is."""
        return self.thorough_plan if thorough else self.plan

    def session_options(self, keep_range: bool) -> dict[str, Any]:
        """How problems are opened (see `SessionOptions`), in plain JSON types."""
        return {
            "max_calls": self.max_calls,
            "plan": asdict(self.plan),
            "cache": str(cache_folder()),
            "keep_range": keep_range,
        }

    @property
    def build_cache(self) -> BuildCache | None:
        """Where builds are kept."""
        return BuildCache(max_bytes=int(self.build_cache_gb * 2**30)) if self.build_cache_gb > 0 else None

    def __post_init__(self) -> None:
        limits = (
            "build_timeout_s",
            "timeout_s",
            "thorough_timeout_s",
            "open_timeout_s",
            "memory_gb",
            "scratch_gb",
            "max_calls",
        )
        for name in (*limits, *(["threads"] if self.threads is not None else [])):
            if not getattr(self, name) > 0:
                raise ValueError(f"evaluator.{name} is {getattr(self, name):g}; it must be positive")
        confinement.missing("", self.isolation)
