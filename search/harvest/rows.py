"""A row of training data and the columns that every format has: which problem, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluators.records.evaluation import Evaluation

STRINGS = "list of string"
"""The type of a column with several texts a row; the others are `string`, `float64`, `int64` and `bool`."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """`type` is the name of a plain type, `STRINGS`, or the columns of the records in a list."""

    name: str
    type: str | tuple[Column, ...]
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """`values` by column, provenance included. Of rows whose texts in `compared` are all alike, the one with
    the larger `worth` is kept."""

    values: Mapping[str, Any]
    compared: tuple[str, ...]
    worth: float

    @property
    def problem_key(self) -> str:
        """Rows with the same one stand in the same split."""
        return str(self.values["problem_key"])


def columns(types: str, **meanings: str) -> tuple[Column, ...]:
    """Columns of one type."""
    return tuple(Column(name=name, type=types, meaning=meaning) for name, meaning in meanings.items())


TASK = columns(
    "string",
    reference="the PyTorch module to replace, with the sizes that were measured",
    dtype="of its floating inputs and weights",
    tolerance="the profile by which outputs were compared",
    target="`cuda` or `cpu`",
)
ORIGIN = (
    *columns(
        "string",
        problem="its name",
        problem_id="hash of the problem with its sizes and rules",
        problem_key="hash of the reference without sizes and names: what splits go by",
        run="the run's folder, below the folder that was read; empty for a library entry",
        entry="id of the library entry; empty for a run",
    ),
    Column(name="variants", type=STRINGS, meaning="ids of the run's variants in the row"),
    Column(name="proposers", type=STRINGS, meaning="who had the ideas"),
    Column(name="models", type=STRINGS, meaning="the language models among them"),
    *columns(
        "string",
        device="on which the times were taken",
        versions="JSON: driver, torch, isolation, measured peaks",
        command="that repeats the run; empty where it is not known",
        reference_license="of the reference",
        kernel_license="of the kernels",
    ),
)


def timed(prefix: str, what: str) -> tuple[Column, ...]:
    """The columns that `times` fills."""
    return columns(
        "float64",
        **{
            f"{prefix}ms": f"median time of a call of {what}",
            f"{prefix}speedup": "eager PyTorch's time over it, paired in one session",
            f"{prefix}speedup_low": "lower end of its 95 % interval",
            f"{prefix}speedup_high": "upper end",
        },
    )


def times(prefix: str, evaluation: Evaluation) -> dict[str, float | None]:
    """The figures of an evaluation, as the journal has them; nulls for a kernel that was not correct."""
    timing = evaluation.timing
    return {
        f"{prefix}ms": timing.kernel_ms if timing else None,
        f"{prefix}speedup": timing.speedup if timing else None,
        f"{prefix}speedup_low": timing.speedup_low if timing else None,
        f"{prefix}speedup_high": timing.speedup_high if timing else None,
    }
