"""The audit of a reference: how well it can judge kernels. Records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluators.base.json_record import JsonRecord


@dataclass(frozen=True, kw_only=True)
class LazyAnswer:
    """An answer that omits part of the computation.

    Attributes:
        says: The answer in words.
        error: Normwise difference from the right answer on the problem's own inputs.
        passes: Whether the problem's rule accepts it, on every distribution and with other weights.
        benchmark_rules: Whether each of KernelBench's own rules accepts it, on the problem's own inputs only.
    """

    says: str
    error: float
    passes: bool
    benchmark_rules: Mapping[str, bool]


@dataclass(frozen=True, kw_only=True)
class ReferenceAudit(JsonRecord):
    """The audit of one reference.

    Attributes:
        problem: The problem's name.
        unfit: Why the reference cannot run as a judge at all; "" if it can.
        lazy: The lazy answers that some rule accepts.
        untried: See `ReferenceModel.untried`.
        distributions: The input distributions that were tried.
        in_float64: Whether the reference runs in float64.
        eager_error: Eager PyTorch's normwise error against float64.
        tolerance: The smallest normwise error of any lazy answer. A rule can judge only if it is stricter.
            None if there was no lazy answer to compare.
        input_bytes: Bytes of one call's inputs; `output_bytes` and `weight_bytes` likewise.
        peak_bytes: Most GPU memory that the audit used; 0 on a CPU.
        seconds: The audit's time, by step.
    """

    problem: str
    unfit: str = ""
    lazy: Sequence[LazyAnswer] = ()
    untried: Mapping[str, str] = field(default_factory=dict)
    distributions: Sequence[str] = ()
    draws_numbers: bool = False
    changes_inputs: bool = False
    in_float64: bool = False
    eager_error: float = 0.0
    tolerance: float | None = None
    input_bytes: int = 0
    output_bytes: int = 0
    weight_bytes: int = 0
    peak_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def judges(self) -> bool:
        """Whether the problem's rule rejects every lazy answer."""
        return not self.unfit and not any(each.passes for each in self.lazy)

    def fooled(self, rule: str) -> list[str]:
        """The lazy answers that one of KernelBench's own rules accepts."""
        return [each.says for each in self.lazy if each.benchmark_rules.get(rule)]
