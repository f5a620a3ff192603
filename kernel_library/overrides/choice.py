"""Which of several kernels for one operation is taken for a call: records, and the rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_library.overrides.shapes import distance, fits


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """What was found of a kernel for one problem: on which `architecture` (compute capability, or `cpu`), at
    which dtype, with which `shapes` of its first inputs. `ahead`: not slower than another kernel that
    was measured beside it. `precision` is the type to which it was allowed to round factors, "" for none."""

    architecture: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    ahead: bool = True
    roofline_share: float = 0.0
    speedup_low: float = 1.0
    precision: str = ""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kernel that may be called: an entry of the library without its source. `failed` are architectures
    where it was tried and did not work; the other fields are those of an entry."""

    name: str
    op: str
    function: str
    dtypes: tuple[str, ...]
    shapes: tuple[str, ...]
    measured: tuple[MeasuredCase, ...]
    architectures: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """`cpu`, `cuda` or both: where it was measured."""
        return tuple(sorted({device_of(each.architecture) for each in self.measured}))

    def takes(self, shapes: Sequence[Sequence[int]], dtype: str, architecture: str) -> bool:
        """Whether it is right there; `shapes` are those of the first inputs, or of all."""
        return (
            dtype in self.dtypes
            and device_of(architecture) in self.devices
            and (not self.architectures or architecture in self.architectures)
            and architecture not in self.failed
            and len(shapes) <= len(self.shapes)
            and all(map(fits, self.shapes, shapes))
        )

    def closest(self, architecture: str, dtype: str, shapes: Sequence[Sequence[int]]) -> MeasuredCase:
        """The measurement that says most about such a call: one on this architecture is preferred, then one
        at this dtype, then one at shapes that are near."""

        def closeness(each: MeasuredCase) -> tuple[float, ...]:
            far = distance(each.shapes, shapes)
            return each.architecture == architecture, each.dtype == dtype, -far

        return max(self.measured, key=closeness)


def device_of(architecture: str) -> str:
    """`cpu`, or `cuda` for a compute capability."""
    return "cpu" if architecture == "cpu" else "cuda"


def best_of(
    candidates: Iterable[Candidate], architecture: str, dtype: str, shapes: Sequence[Sequence[int]]
) -> Candidate | None:
    """The one that may be expected to be the fastest of those that take the call; None of none. Each is
    judged by its closest measurement: one on this architecture and at this dtype is preferred, then one that
    was not slower than another when one session measured both, then the larger share of the roofline, then
    the larger lower end of the speedup's interval."""

    def promise(candidate: Candidate) -> tuple[float, ...]:
        found = candidate.closest(architecture, dtype, shapes)
        here = found.architecture == architecture, found.dtype == dtype
        return (*here, found.ahead, found.roofline_share, found.speedup_low)

    return max(candidates, key=promise, default=None)
