"""What an audit of a reference found: what it is worth as a judge of kernels. Records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LazyAnswer:
    """An answer that leaves something out. `error` is its normwise difference from the right one on the
    problem's own inputs; `passes`: whether the problem's rule takes it there, on every distribution and with
    other weights; `benchmark_rules`: whether KernelBench's own rules take it, on its own inputs alone."""

    says: str
    error: float
    passes: bool
    benchmark_rules: Mapping[str, bool]


@dataclass(frozen=True, kw_only=True)
class ReferenceAudit:
    """One reference. `unfit` says why it cannot be run as a judge at all, "" where it can.

    `lazy` has the lazy answers that some rule takes. `tolerance` is the smallest normwise error of any lazy
    answer: a rule has to be stricter than that to judge, None where there was none to compare. `untried`: see
    `ReferenceModel.untried`. `eager_error` is eager PyTorch's against float64, where it runs there
    (`in_float64`). Sizes in bytes, of one call; `peak_bytes` is the most that the audit held on a GPU, 0 on a
    CPU. `seconds` is where the time went.
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
        """Whether the problem's rule tells right kernels from those that leave something out."""
        return not self.unfit and not any(each.passes for each in self.lazy)

    def fooled(self, rule: str) -> list[str]:
        """The lazy answers that one of KernelBench's own rules takes."""
        return [each.says for each in self.lazy if each.benchmark_rules.get(rule)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, from which `from_json` restores an equal record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReferenceAudit:
        """Raises TypeError when `data` is not what `to_json` writes."""
        lazy = tuple(LazyAnswer(**each) for each in data["lazy"])
        return cls(**{**data, "lazy": lazy, "distributions": tuple(data["distributions"])})
