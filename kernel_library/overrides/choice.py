"""Chooses among several kernels for one operation: records, and the rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_library.overrides.shapes import all_fit, distance, near


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """A measurement of a kernel: the `architecture` (compute capability, or `cpu`), the dtype and the
    `shapes` of its first inputs. `ahead`: it did not lose to another kernel in the same session. `precision`
    is the type to which it may round factors, "" for none; `device` the device's name, "" if unknown."""

    architecture: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    ahead: bool = True
    roofline_share: float = 0.0
    speedup_low: float = 1.0
    precision: str = ""
    device: str = ""

    def is_near(self, device: str, dtype: str, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether it tells about such a call: on the same device, at the same dtype, at near shapes."""
        return (self.device, self.dtype) == (device, dtype) and near(self.shapes, shapes)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A kernel to choose from: a library entry without its source. `failed` are architectures on which a
    check failed; the other fields are those of an entry."""

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
        """The devices on which it was measured: `cpu`, `cuda` or both."""
        return tuple(sorted({device_of(each.architecture) for each in self.measured}))

    def takes(self, shapes: Sequence[Sequence[int]], dtype: str, architecture: str) -> bool:
        """Whether it supports such a call; `shapes` are those of the first inputs, or of all."""
        return (
            dtype in self.dtypes
            and device_of(architecture) in self.devices
            and (not self.architectures or architecture in self.architectures)
            and architecture not in self.failed
            and len(shapes) <= len(self.shapes)
            and all_fit(self.shapes, shapes)
        )

    def closest(self, architecture: str, dtype: str, shapes: Sequence[Sequence[int]]) -> MeasuredCase:
        """The measurement closest to such a call: on the same architecture, then at the same dtype, then at
        the nearest shapes."""

        def closeness(each: MeasuredCase) -> tuple[float, ...]:
            far = distance(each.shapes, shapes)
            return each.architecture == architecture, each.dtype == dtype, -far

        return max(self.measured, key=closeness)


def device_of(architecture: str) -> str:
    """`cpu`, or `cuda` for a compute capability."""
    return "cpu" if architecture == "cpu" else "cuda"


def ranked(
    candidates: Iterable[Candidate], architecture: str, dtype: str, shapes: Sequence[Sequence[int]]
) -> list[Candidate]:
    """The candidates by each one's closest measurement, the probably fastest first. A measurement on this
    architecture and at this dtype is preferred, then one in which the kernel did not lose to another, then
    the largest share of the roofline, then the largest lower end of the speedup's interval."""

    def promise(candidate: Candidate) -> tuple[float, ...]:
        found = candidate.closest(architecture, dtype, shapes)
        here = found.architecture == architecture, found.dtype == dtype
        return (*here, found.ahead, found.roofline_share, found.speedup_low)

    return sorted(candidates, key=promise, reverse=True)
