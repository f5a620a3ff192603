"""Files of traced calls: BackendBench's text, and the rows of its dataset as JSONL or parquet.

    Operator: aten.add.Tensor
    cnt: 12, ((T([8, 16], f16), T([8, 16], f16)), {})

The environment variable TRACES names a file or a folder of files. `grammar` parses the arguments.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.suites.suite import SuiteMissing
from evaluators.suites.traced.call import TracedCall
from evaluators.suites.traced.grammar import BadTrace, parse_arguments, write_arguments

TRACES = "TRACES"
SUFFIXES = (".txt", ".jsonl", ".parquet")
RENAMED = {"aten.sum.SymInt": "aten.sum.dim_IntList"}
"""Operators that have been renamed in PyTorch."""
COLUMNS = {"operator": ("op_name", "operator name", "operator"), "args": ("args",), "count": ("count",)}
"""Names of each column in the published tables."""
OPERATOR = re.compile(r"\w+(\.\w+)+")


@dataclass(frozen=True, kw_only=True)
class CallTrace:
    """The calls of a file in order, and one message for each line that could not be read."""

    calls: tuple[TracedCall, ...]
    refused: tuple[str, ...] = ()

    def summary(self) -> str:
        """The number of calls, and of lines left out, with the first reason."""
        made = sum(each.count for each in self.calls)
        operators = len({each.operator for each in self.calls})
        found = f"{operators} operators, {len(self.calls)} different calls, made {made} times"
        if not self.refused:
            return found
        return f"{found}; {len(self.refused)} left out, the first: {self.refused[0]}"


def traces() -> CallTrace:
    """The calls in the file or folder that TRACES names, each different call once, with its total count.
    Raises SuiteMissing."""
    if not os.environ.get(TRACES):
        raise SuiteMissing(
            f"no traces: set {TRACES} to a file (.txt, .jsonl or .parquet) or to a folder of such files"
        )
    found = read_trace(Path(os.environ[TRACES]).expanduser())
    return replace(found, calls=merge_counts(found.calls))


def merge_counts(calls: Iterable[TracedCall]) -> tuple[TracedCall, ...]:
    """Each different call once, in order of first occurrence, with its total count."""
    found: dict[tuple[str, str], TracedCall] = {}
    for call in calls:
        key = call.operator, write_arguments(call)
        before = found.get(key)
        found[key] = call if before is None else replace(before, count=before.count + call.count)
    return tuple(found.values())


def read_trace(path: Path) -> CallTrace:
    """The calls of a file, or of all files in a folder with one of SUFFIXES. Files that end neither in
    `.jsonl` nor in `.parquet` are text. Invalid lines are left out and reported. Raises SuiteMissing for an
    unreadable file."""
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and each.is_file())
    if not files:
        raise SuiteMissing(f"the folder {path} has no traces ({', '.join(SUFFIXES)})")
    found: list[TracedCall] = []
    refused: list[str] = []
    try:
        for file in files:
            where = "" if file == path else f"{file.relative_to(path)}: "
            for each in _calls_in(file):
                if isinstance(each, TracedCall):
                    found.append(each)
                else:
                    refused.append(f"{where}{each}")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteMissing(f"the traces {path} cannot be read: {error}") from error
    return CallTrace(calls=tuple(found), refused=tuple(refused))


def write_trace(path: Path, calls: Iterable[TracedCall]) -> None:
    """Writes the calls as text, by operator, the most frequent first. Raises OSError, and ValueError for a
    call that cannot be written."""
    write_atomically(path, trace_text(calls))


def trace_text(calls: Iterable[TracedCall]) -> str:
    """The calls as text, by operator, the most frequent first."""
    lines: list[str] = []
    operator = ""
    for call in sorted(calls, key=lambda each: (each.operator, -each.count)):
        if call.operator != operator:
            operator = call.operator
            lines.append(f"Operator: {operator}")
        lines.append(f"cnt: {call.count}, {write_arguments(call)}")
    return "".join(f"{line}\n" for line in lines)


def calls_in_text(lines: Iterable[str]) -> Iterator[TracedCall | BadTrace]:
    """The calls in lines of text; for an invalid line, its error."""
    operator = ""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            if line.startswith("Operator:"):
                operator = ""  # calls below an invalid name do not belong to the operator before
                operator = _operator(line.removeprefix("Operator:").strip(), where)
                continue
            yield _call_in(line.rstrip(), operator, where)
        except BadTrace as error:
            yield error


def calls_in_rows(rows: Iterable[Mapping[str, Any]], what: str = "row") -> Iterator[TracedCall | BadTrace]:
    """The calls in rows of the dataset; for an invalid row, its error."""
    for number, row in enumerate(rows, 1):
        where = f"{what} {number}"
        try:
            yield _call_of_row(row, where)
        except BadTrace as error:
            yield error


def _calls_in(path: Path) -> Iterator[TracedCall | BadTrace]:
    if path.suffix == ".parquet":
        yield from calls_in_rows(_rows_of_parquet(path))
        return
    with path.open(encoding="utf-8") as file:
        in_rows = path.suffix == ".jsonl"
        yield from calls_in_rows(map(_row, file), "line") if in_rows else calls_in_text(file)


def _call_in(line: str, operator: str, where: str) -> TracedCall:
    matched = re.match(r"cnt:\s*(\d{1,18})\s*,", line)
    if matched is None:
        raise BadTrace(where, 1, "neither 'Operator: NAME' nor 'cnt: NUMBER, ((…), {…})'")
    if not operator:
        raise BadTrace(where, 1, "a call without an operator above it")
    arguments, keywords = parse_arguments(line[matched.end() :], where=where, column=matched.end() + 1)
    return TracedCall(operator=operator, arguments=arguments, keywords=keywords, count=int(matched[1]))


def _call_of_row(row: Mapping[str, Any], where: str) -> TracedCall:
    given = {
        key: next((row[name] for name in names if row.get(name) is not None), None)
        for key, names in COLUMNS.items()
    }
    operator, text, count = given["operator"], given["args"], given["count"]
    if not isinstance(operator, str) or not isinstance(text, str):
        reason = row.get("unreadable") or f"the row has no {'operator' if isinstance(text, str) else 'args'}"
        raise BadTrace(where, 1, str(reason))
    count = 1 if count is None else count
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadTrace(where, 1, f"the count is {count!r}; it must be a whole number")
    name = _operator(operator, where)
    arguments, keywords = parse_arguments(text, where=where)
    return TracedCall(operator=name, arguments=arguments, keywords=keywords, count=count)


def _operator(name: str, where: str) -> str:
    if OPERATOR.fullmatch(name) is None:
        raise BadTrace(where, 1, f"{name!r} is not an operator name like aten.add.Tensor")
    return RENAMED.get(name, name)


def _row(line: str) -> Mapping[str, Any]:
    """A row of a JSONL file; an invalid one gives the reason in `unreadable`."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {"unreadable": f"not JSON: {error}"}
    return row if isinstance(row, dict) else {"unreadable": "not a JSON object"}


def _rows_of_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SuiteMissing(
            f"reading {path} needs pyarrow: run pip install -e '.[kernelbench]' in Ideatree's clone"
        ) from error
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise SuiteMissing(f"{path} is not a parquet file: {str(error).partition(chr(10))[0]}") from error
    return rows
