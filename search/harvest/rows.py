"""Rows of training data, and the columns that all formats share: the task and the provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluators.records.evaluation import Evaluation

STRINGS = "list of string"
"""The type of a column with several strings per row; other types are `string`, `float64`, `int64`, `bool`."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. `type` is a plain type's name, `STRINGS`, or the columns of a list of records."""

    name: str
    type: str | tuple[Column, ...]
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its `values` by column. Of rows whose `compared` texts are duplicates, the one with the larger
    `worth` is kept."""

    values: Mapping[str, Any]
    compared: tuple[str, ...]
    worth: float

    @property
    def problem_key(self) -> str:
        """Rows with the same key go to the same split."""
        return str(self.values["problem_key"])


def columns(types: str, **meanings: str) -> tuple[Column, ...]:
    """Columns of one type."""
    return tuple(Column(name=name, type=types, meaning=meaning) for name, meaning in meanings.items())


TASK = columns(
    "string",
    reference="the PyTorch module to replace, with the measured sizes",
    dtype="dtype of its floating inputs and weights",
    tolerance="tolerance profile used to compare outputs",
    target="device: `cuda` or `cpu`",
)
ORIGIN = (
    *columns(
        "string",
        problem="name of the problem",
        problem_id="hash of the problem with its sizes and rules",
        problem_key="hash of the reference without sizes and names; decides the split",
        run="run folder, relative to the folder that was read; empty for a library entry",
        entry="id of the library entry; empty for a run",
    ),
    Column(name="variants", type=STRINGS, meaning="ids of the run's variants in the row"),
    Column(name="proposers", type=STRINGS, meaning="proposers of the ideas"),
    Column(name="models", type=STRINGS, meaning="language models among the proposers"),
    *columns(
        "string",
        device="device on which the times were measured",
        versions="JSON: driver, torch, isolation, measured peaks",
        command="command that repeats the run; empty if unknown",
        reference_license="license of the reference",
        kernel_license="license of the kernels",
    ),
)


def timed(prefix: str, what: str) -> tuple[Column, ...]:
    """The columns that `times` fills."""
    return columns(
        "float64",
        **{
            f"{prefix}ms": f"median time per call of {what}",
            f"{prefix}speedup": "speedup over eager PyTorch, from paired measurements in one session",
            f"{prefix}speedup_low": "lower end of its 95 % interval",
            f"{prefix}speedup_high": "upper end of its 95 % interval",
        },
    )


def times(prefix: str, evaluation: Evaluation | None) -> dict[str, float | None]:
    """The values for the columns of `timed`; None without a correct kernel."""
    timing = evaluation.timing if evaluation else None
    return {
        f"{prefix}ms": timing.kernel_ms if timing else None,
        f"{prefix}speedup": timing.speedup if timing else None,
        f"{prefix}speedup_low": timing.speedup_low if timing else None,
        f"{prefix}speedup_high": timing.speedup_high if timing else None,
    }
