"""Runs a model once and records the operators that it calls, with their arguments:

    ideatree trace model=my_model.py
    ideatree trace model=my_model.py dtype=bfloat16 backward=true out=traces/my_model.txt
    ideatree trace model=level1/softmax device=cpu

The model is a file that defines `Model`, `get_inputs` and `get_init_inputs`, or a problem's name, for example
`kernelbench/level3/5`. The file `out` has the calls by operator, in BackendBench's format. The command prints
a table with the number of calls and of different shapes of each operator. Exit status 0: all calls were
written; 1: some could not be; 2: the call was wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import command, log_to, say
from evaluators.app.config import DEVICE_HELP, NO_FOLDER, hydra_settings
from evaluators.app.device_config import settle_device
from evaluators.app.suite_config import open_problem
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from evaluators.reference.loading import load_problem
from evaluators.suites.traced.call import TracedCall, tensors_of
from evaluators.suites.traced.files import CallTrace, write_trace
from evaluators.suites.traced.recording import CREATION, VIEW, Recorded, kind_of, record


@dataclass
class TraceConfig:
    """The config of the command."""

    model: str = option(MISSING, "file (my_model.py) or problem (level1/softmax, kernelbench/level3/5)")
    dtype: str | None = option(None, "dtype of floating-point inputs and weights; null: the model's own")
    device: str = option("auto", DEVICE_HELP)
    backward: bool = option(False, "also record the backward pass")
    out: str = option("traces.txt", "file to which the calls are written")
    hydra: Any = hydra_settings(NO_FOLDER)


@command("evaluators.trace", TraceConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    settle_device(config)
    problem = open_model(str(config.model), device=config.device, dtype=config.dtype)
    try:
        recorded = record(problem, backward=config.backward)
    except Exception as error:  # the model is the user's code, and may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"model={config.model} cannot be traced: {reason}") from error
    path = Path(str(config.out)).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trace(path, recorded.calls)
    except OSError as error:
        raise UsageError(f"out={path} cannot be written: {error.strerror}") from error
    say(output, *table(recorded.calls), "", *summary(recorded), f"written to {path}")
    return 1 if recorded.unwritable else 0


def open_model(name: str, *, device: str, dtype: str | None) -> Problem:
    """The reference in a file, or a problem's. Raises UsageError."""
    if not name.endswith(".py"):
        return open_problem(name, device=device, rules=OmegaConf.create({"dtype": dtype}))
    try:
        return load_problem("file", path=name, device=device, dtype=dtype)
    except ValueError as error:
        raise UsageError(first_line(error)) from error


def table(calls: Sequence[TracedCall]) -> list[str]:
    """The operators, most calls first, with their numbers of calls and of different shapes."""
    by_name = sorted(calls, key=lambda each: each.operator)
    rows = []
    for operator, group in groupby(by_name, key=lambda each: each.operator):
        own = list(group)
        rows.append((sum(each.count for each in own), len({shapes_of(each) for each in own}), operator))
    rows.sort(key=lambda row: (-row[0], row[2]))
    width = max((len(operator) for *_, operator in rows), default=0)
    lines = [f"{operator:<{width}}  {n:>7}  {shapes:>6}  {kind_of(operator)}" for n, shapes, operator in rows]
    return [f"{'operator':<{width}}  {'calls':>7}  {'shapes':>6}", *(line.rstrip() for line in lines)]


def shapes_of(call: TracedCall) -> tuple[tuple[int, ...], ...]:
    """The shapes of a call's tensors, in order."""
    return tuple(each.shape for each in tensors_of((*call.arguments, *call.keywords.values())))


def summary(recorded: Recorded) -> list[str]:
    """The totals, and the calls that could not be written."""
    kinds = dict.fromkeys((VIEW, CREATION), 0)
    for each in recorded.calls:
        if (kind := kind_of(each.operator)) in kinds:
            kinds[kind] += each.count
    found = CallTrace(calls=tuple(recorded.calls)).summary()
    lines = [f"{found}, of which {kinds[VIEW]} make views and {kinds[CREATION]} create tensors"]
    if recorded.unwritable:
        left = ", ".join(f"{name} ({count})" for name, count in sorted(recorded.unwritable.items()))
        lines.append(f"not written, because the format cannot express their arguments: {left}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
