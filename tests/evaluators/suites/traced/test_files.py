"""Files of traces: text, JSONL and parquet; bad lines are named, and the others kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.suites.suite import SuiteMissing
from evaluators.suites.traced.call import Tensor, TracedCall
from evaluators.suites.traced.files import TRACES, read_trace, trace_text, traces, write_trace

X = Tensor(shape=(2, 3), dtype="float16")
TEXT = """Operator: aten.add.Tensor
cnt: 12, ((T([2, 3], f16), 1), {'alpha': 2})
cnt: 0, ((T([2, 3], f16), 2), {})

Operator: aten.sum.SymInt
cnt: 3, ((T([2, 3], f16), [1]), {})
"""
CALLS = (
    TracedCall(operator="aten.add.Tensor", arguments=(X, 1), keywords={"alpha": 2}, count=12),
    TracedCall(operator="aten.add.Tensor", arguments=(X, 2), count=0),
    TracedCall(operator="aten.sum.dim_IntList", arguments=(X, (1,)), count=3),
)
ROWS = [
    {"op_name": "aten.relu.default", "args": "((T([2, 3], f16),), {})", "count": 5, "uuid": "0"},
    {"op_name": "aten.relu.default", "args": "((T([2, 3], f61),), {})", "count": 5, "uuid": "1"},
    {"operator name": "aten.relu.default", "used in model": "m", "args": "((), {})"},
    {"op_name": "aten.relu.default", "count": 5},
    {"op_name": "aten.relu.default", "args": "((), {})", "count": -1},
    {"op_name": "relu()", "args": "((), {})", "count": 1},
]
OF_ROWS = (
    TracedCall(operator="aten.relu.default", arguments=(X,), count=5),
    TracedCall(operator="aten.relu.default", arguments=(), count=1),
)
REFUSED = [
    "2, column 13: unknown name f61; did you mean f64?",
    "4, column 1: the row has no args",
    "5, column 1: the count is -1; it must be a whole number",
    "6, column 1: 'relu()' is not an operator name like aten.add.Tensor",
]


def test_the_text_of_the_published_traces(tmp_path: Path) -> None:
    file = tmp_path / "traces.txt"
    file.write_text(TEXT)
    found = read_trace(file)
    assert (found.calls, found.refused) == (CALLS, ())
    assert found.summary() == "2 operators, 3 different calls, made 15 times"


def test_bad_lines_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    """A call below a bad name is not one of the operator above it."""
    file = tmp_path / "traces.txt"
    file.write_text(
        "cnt: 1, ((), {})\n" + TEXT + "cnt: 1, ((T([2, 3] f16),), {})\nOperator: a b\ncnt: 1, ((), {})\nx\n"
    )
    found = read_trace(file)
    assert found.calls == CALLS
    assert found.refused == (
        "line 1, column 1: a call without an operator above it",
        "line 8, column 20: ',' or ')' is expected, not 'f16'",
        "line 9, column 1: 'a b' is not an operator name like aten.add.Tensor",
        "line 10, column 1: a call without an operator above it",
        "line 11, column 1: neither 'Operator: NAME' nor 'cnt: NUMBER, ((…), {…})'",
    )
    assert found.summary().endswith(
        "; 5 left out, the first: line 1, column 1: a call without an operator above it"
    )


def test_rows_as_jsonl(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{\n[]\n")
    found = read_trace(file)
    assert found.calls == OF_ROWS
    *rest, no_json, no_object = found.refused
    assert rest == [f"line {each}" for each in REFUSED]
    assert no_json.startswith("line 7, column 1: not JSON: ")
    assert no_object == "line 8, column 1: not a JSON object"


def test_rows_as_parquet(tmp_path: Path) -> None:
    """A table has the same columns in every row; here the one of both published names is null in turn."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    columns = {key for row in ROWS for key in row}
    parquet.write_table(arrow.Table.from_pylist([dict.fromkeys(columns) | row for row in ROWS]), file)
    found = read_trace(file)
    assert found.calls == OF_ROWS
    assert list(found.refused) == [f"row {each}" for each in REFUSED]


def test_what_is_written_is_sorted_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "traces.txt"
    write_trace(file, reversed(CALLS))
    assert read_trace(file).calls == CALLS
    assert trace_text(()) == ""


@pytest.mark.parametrize("name", ["none.txt", "none.jsonl", "none.parquet", "bad.parquet", "bad.txt"])
def test_an_unreadable_file_costs_one_line(name: str, tmp_path: Path) -> None:
    for bad in ("bad.parquet", "bad.txt"):
        (tmp_path / bad).write_bytes(b"\xff" * 20)
    with pytest.raises(SuiteMissing) as caught:
        read_trace(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACES, raising=False)
    with pytest.raises(SuiteMissing, match="set TRACES to a file"):
        traces()
    (tmp_path / "t.txt").write_text(TEXT)
    monkeypatch.setenv(TRACES, str(tmp_path / "t.txt"))
    assert traces().calls == CALLS


def test_the_variable_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file a model, as they are published; the same call in two of them is one."""
    monkeypatch.setenv(TRACES, str(tmp_path))
    with pytest.raises(SuiteMissing, match="has no traces"):
        traces()
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "a.txt").write_text(TEXT)
    (tmp_path / "first" / "README.md").write_text("Of two models.")
    (tmp_path / "second.txt").write_text(TEXT + "cnt: 4, ((T([2, 3], f16), [0]), {})\ncnt: x\n")
    found = traces()
    twice = [replace(each, count=2 * each.count) for each in CALLS]
    assert list(found.calls) == [*twice, replace(CALLS[2], arguments=(X, (0,)), count=4)]
    assert [each.partition(":")[0] for each in found.refused] == ["second.txt"]
