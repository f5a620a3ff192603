"""A folder of each suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluators.suites.definitions.samples import GATHER, SCALE, workloads, write


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of each suite."""
    write(tmp_path / "fib/definitions/scaling/scale_rows_h32.json", SCALE)
    rows = [{"definition": SCALE["name"], "workload": each} for each in workloads(SCALE["name"], 20)]
    write(tmp_path / "fib/workloads/scaling/scale_rows_h32.jsonl", *rows)
    write(tmp_path / "sol/L1/gather/definition.json", GATHER)
    write(tmp_path / "sol/L1/gather/workload.jsonl", *workloads(GATHER["name"], 1))
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "fib"))
    monkeypatch.setenv("SOL_EXECBENCH_ROOT", str(tmp_path / "sol"))
    return tmp_path
