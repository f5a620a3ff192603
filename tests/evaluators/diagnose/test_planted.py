"""Each level that can see a planted fault names it first, and no level names a fault that is not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.profiling.diagnosing import diagnosis_of
from evaluators.profiling.rules import RULES, findings
from evaluators.records.diagnosis import Diagnosis, Level
from tests.evaluators.diagnose.measured import SOURCES, facts, unpack

STATIC, TRACE, COUNTERS = Level.STATIC, Level.TRACE, Level.COUNTERS
SEEN = {
    "uncoalesced": ("uncoalesced", (COUNTERS,)),
    "bank_conflicts": ("bank conflicts", (COUNTERS,)),
    "spills": ("spills", (STATIC,)),
    "wave_and_a_half": ("partial wave", (TRACE, COUNTERS)),
    "latency_bound": ("latency-bound", (TRACE, COUNTERS)),
    "launch_bound": ("launch-bound", (TRACE, COUNTERS)),
    "idle_tensor_cores": ("tensor cores idle", (STATIC,)),
    "starved_tensor_cores": ("tensor cores idle", (COUNTERS,)),
    "no_tf32": ("TF32 missing", (STATIC, COUNTERS)),
    "contended_atomics": ("atomics contended", (STATIC, COUNTERS)),
    "register_limited": ("occupancy limited by registers", (STATIC, TRACE, COUNTERS)),
    "no_spills": ("", ()),
    "scale": ("", ()),
}
"""The planted fault of each kernel, and the levels that can see it of those that were recorded."""
ALSO_TRUE = {("starved_tensor_cores", COUNTERS): ("bank conflicts", "partial wave")}
"""What is true of a kernel in addition: 35 % of its passes through shared memory are conflicts, and its 3.1
waves leave the multiprocessors idle for 21 % of the time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    unpack(found := tmp_path_factory.mktemp("measured"))
    return found


def recorded(folder: Path, name: str) -> list[Level]:
    return [level for level, suffix in SOURCES.items() if (folder / f"{name}{suffix}").exists()]


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("level", Level)
def test_a_level_names_the_faults_that_it_can_see_and_no_other(folder: Path, name: str, level: Level) -> None:
    fault, levels = SEEN[name]
    if level not in recorded(folder, name):
        assert level not in levels
        return
    named = [each.name for each in findings(facts(folder, name, level))]
    expected = [fault, *ALSO_TRUE.get((name, level), ())] if level in levels else []
    assert named == expected


@pytest.mark.parametrize("name", [name for name, (fault, _) in SEEN.items() if fault])
def test_all_levels_together_name_the_fault_first(folder: Path, name: str) -> None:
    fault, levels = SEEN[name]
    found = findings(facts(folder, name, *recorded(folder, name)))
    assert found[0].name == fault
    assert found[0].confidence in levels
    others = {other for (kernel, _), names in ALSO_TRUE.items() if kernel == name for other in names}
    assert {each.name for each in found[1:]} <= others


def test_every_planted_fault_has_a_rule_and_a_level() -> None:
    faults = {fault: levels for fault, levels in SEEN.values() if fault}
    assert len(faults) == 10
    assert set(faults) <= {rule.name for rule in RULES}
    assert all(levels for levels in faults.values())


def test_counters_name_spills(folder: Path) -> None:
    """The report of a kernel with spills is missing: another's, with the accesses that the code shows."""
    known = facts(folder, "no_spills", COUNTERS)
    assert known.counters is not None
    kernel = known.counters.kernels[0]
    local = {
        f"smsp__sass_inst_executed_op_local_{code}.sum": count for code, count in (("ld", 2e6), ("st", 1e6))
    }
    spilling = replace(kernel, metrics={**kernel.metrics, **local})
    found = findings(replace(known, counters=replace(known.counters, kernels=(spilling,))))
    assert [each.name for each in found] == ["spills"]
    assert "85% of all" in found[0].evidence


def test_counters_overrule_the_code(folder: Path) -> None:
    """Code with one atomic operation a block looks like code with one a thread, but its counters do not."""
    known = facts(folder, "contended_atomics", STATIC, COUNTERS)
    assert known.counters is not None
    kernel = known.counters.kernels[0]
    few = {"l1tex__t_requests_pipe_lsu_mem_global_op_red.sum": 132.0}
    calm = replace(kernel, metrics={**kernel.metrics, **few})
    assert not findings(replace(known, counters=replace(known.counters, kernels=(calm,))))


@pytest.mark.parametrize("metric", ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"])
def test_a_missing_metric_is_no_evidence(folder: Path, metric: str) -> None:
    known = facts(folder, "no_tf32", COUNTERS)
    assert known.counters is not None
    kernel = known.counters.kernels[0]
    without = replace(kernel, metrics={name: v for name, v in kernel.metrics.items() if name != metric})
    assert not findings(replace(known, counters=replace(known.counters, kernels=(without,))))


@pytest.mark.parametrize("name", [name for name, (fault, _) in SEEN.items() if fault])
def test_the_diagnosis_is_short_and_survives_its_json(folder: Path, name: str) -> None:
    known = facts(folder, name, *recorded(folder, name))
    diagnosis = diagnosis_of(known, device="NVIDIA H200", missing={TRACE: "not asked for"})
    assert Diagnosis.from_json(json.loads(json.dumps(diagnosis.to_json()))).text() == diagnosis.text()
    text = diagnosis.text()
    assert len(text) <= 4000
    assert "[…" not in text
    assert SEEN[name][0] in text.splitlines()[2]


@pytest.mark.slow
def test_the_diagnosis_has_what_a_reader_needs(folder: Path) -> None:
    known = facts(folder, "no_tf32", STATIC, TRACE, COUNTERS)
    known = replace(known, task=replace(known.task, least_bytes=3 * 2048**2 * 4))
    text = diagnosis_of(known).text()
    for words in (
        "Kernel: matmul_kernel: 1 launch per call, 417.6 us each.",
        "Busy: multiprocessor 72 % of its peak; its busiest part: issue slots, 72 %.",
        "at no_tf32.py:18 (65%)",
        "Memory: read 34.2 MB, wrote 8.946 MB; a call must move at least 50.33 MB.",
        "Occupancy: at most 31.2%, limited by registers (95 registers per thread",
        "achieved 26.1 %",
        "Profiler's advice: Tail Effect (50 % of the time)",
    ):
        assert words in text, text
