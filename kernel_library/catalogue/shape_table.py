"""The CSV table of an entry's times at many shapes, compared with eager PyTorch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Problem
from kernel_library.catalogue.entry import AtShape, architecture_of

DIGITS = 4


def at_shape(problem: Problem, inputs: str, found: Evaluation) -> AtShape:
    """The record of a correct evaluation. Raises ValueError for one without a timing."""
    if found.timing is None:
        raise ValueError(f"the evaluation has no timing: {found.status.value}")
    return AtShape(
        inputs=inputs,
        dtype=problem.dtype,
        precision=problem.precision,
        device=found.environment.get("device", "unknown device"),
        architecture=architecture_of(problem.device, found.environment.get("architecture", "")),
        kernel_ms=_rounded(found.timing.kernel_ms),
        eager_ms=_rounded(found.timing.eager_ms),
        speedup=_rounded(found.timing.speedup),
        speedup_low=_rounded(found.timing.speedup_low),
        speedup_high=_rounded(found.timing.speedup_high),
        roofline_share=_rounded(found.roofline_share or 0.0),
        backward=problem.backward,
    )


def dump(rows: Iterable[AtShape]) -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [each.name for each in fields(AtShape)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(each) for each in rows)
    return text.getvalue()


def load(text: str) -> tuple[AtShape, ...]:
    """The inverse of `dump`. Raises ValueError, TypeError or KeyError for an invalid table."""
    return tuple(_row(each) for each in csv.DictReader(io.StringIO(text)))


def merged(*tables: Iterable[AtShape]) -> tuple[AtShape, ...]:
    """The rows of all tables; later ones replace earlier ones with the same place."""
    found = {each.place: each for table in tables for each in table}
    return tuple(found.values())


def _row(texts: Mapping[str, Any]) -> AtShape:
    numbers = {each.name for each in fields(AtShape) if each.type == "float"}
    values: dict[str, Any] = {name: float(text) if name in numbers else text for name, text in texts.items()}
    return AtShape(**{**values, "backward": values.get("backward") == "True"})


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
