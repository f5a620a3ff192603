"""How a worker measures: the options of the evaluator."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evaluators.base.option import option
from evaluators.build.build_cache import BuildCache
from evaluators.isolation import confinement
from evaluators.records.configurations import ConfigurationLimits
from evaluators.records.timing import Effort, Plan
from evaluators.system.user_cache import cache_folder

QUICK_PRECISION, QUICK_SHARE, QUICK_BLOCK = 0.05, 0.25, 0.25
"""Precision of a quick measurement, and its time as a share of a usual one's: what may win is timed again."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The evaluator's options, which `evaluator.*` sets on the command line.

    Attributes:
        plan: how long an evaluation measures.
        thorough_plan: how long the final measurement measures.
    """

    build_timeout_s: float = option(180.0, "time limit for building a kernel, in s")
    timeout_s: float = option(30.0, "time limit for loading, checking and timing a built kernel, in s")
    thorough_timeout_s: float = option(
        300.0, "time limit for a thorough measurement, which is longer and also times torch.compile, in s"
    )
    open_timeout_s: float = option(300.0, "time limit for opening a problem, in s")
    memory_gb: float = option(16.0, "limit on a candidate's host memory, in GB")
    scratch_gb: float = option(4.0, "limit on the files that a candidate writes, in GB")
    build_cache_gb: float = option(
        4.0, "size of the build cache in the user's cache folder, in GB; 0: no cache"
    )
    isolation: str = option(
        "limits", "minimum isolation of candidates: limits | landlock | seccomp | namespaces"
    )
    max_calls: int = option(256, "most calls in a timed block, each on new inputs; on a CPU at most 32")
    plan: Plan = field(
        default_factory=lambda: Plan(block_ms=10.0, precision=0.02, max_s=1.0),
        metadata={"help": "how long an evaluation measures, unless it is thorough"},
    )
    thorough_plan: Plan = field(
        default_factory=lambda: Plan(block_ms=20.0, precision=0.005, max_s=5.0),
        metadata={
            "help": "how long a thorough measurement measures (thorough=true, or a search's final one)"
        },
    )
    compile_mode: str = option(
        "max-autotune-no-cudagraphs", 'mode of the torch.compile baseline; "": no such baseline'
    )
    configs: ConfigurationLimits = field(
        default_factory=ConfigurationLimits,
        metadata={"help": "how far the configurations that a kernel declares are searched"},
    )
    threads: int | None = option(
        None, "CPU threads of kernels and baselines; null: one per core that they may use"
    )

    def plan_of(self, effort: Effort) -> Plan:
        """How long a measurement takes."""
        if effort is Effort.QUICK:
            return replace(
                self.plan,
                block_ms=QUICK_BLOCK * self.plan.block_ms,
                precision=max(self.plan.precision, QUICK_PRECISION),
                max_s=QUICK_SHARE * self.plan.max_s,
            )
        return self.thorough_plan if effort is Effort.THOROUGH else self.plan

    def session_options(self, keep_range: bool) -> dict[str, Any]:
        """How to open problems (see `SessionOptions`), as plain JSON types."""
        return {
            "max_calls": self.max_calls,
            "plan": asdict(self.plan),
            "cache": str(cache_folder()),
            "keep_range": keep_range,
        }

    @property
    def build_cache(self) -> BuildCache | None:
        """The cache of builds; None if it is switched off."""
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
