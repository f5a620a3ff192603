"""The configurations that a kernel's file declares, read and filled in without running it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from evaluators.records.configurations import (
    ConfigurationLimits,
    InvalidConfigurations,
    configuration_lines,
    configuration_summary,
    configurations,
    judged_kernel,
)
from evaluators.records.evaluation import ConfigurationResult, Evaluation, Status, Timing
from evaluators.records.problem import Kernel

SOURCE = '''"""Größen."""
CONFIGS = {
    "BLOCK": [64, 128],  # rows
    "FAST": [False, True],
    "HOW": ("a", "b'c"),
}
BLOCK: int = (64)  # ä
FAST = True; HOW = "b'c"


class ModelNew:
    def size(self, BLOCK=BLOCK):
        return BLOCK, FAST, HOW
'''


def kernel(source: str) -> Kernel:
    return Kernel(source=source, language="cpp")


def declared(source: str, most: int = 32) -> list[dict[str, object]]:
    return [dict(each.values) for each in configurations(kernel(source), most)]


def test_values_are_filled_in_and_the_declaration_is_removed() -> None:
    found = configurations(kernel(SOURCE), 8)
    assert len(found) == 8
    assert found[0].values == {"BLOCK": 64, "FAST": True, "HOW": "b'c"}, "the defaults come first"
    last = found[-1]
    assert last.values == {"BLOCK": 128, "FAST": True, "HOW": "b'c"}
    declaration = SOURCE[SOURCE.index("CONFIGS") : SOURCE.index("BLOCK: ")]
    assert last.kernel.source == SOURCE.replace(declaration, "").replace("(64)", "(128)")
    for each in found:
        scope: dict[str, object] = {}
        exec(each.kernel.source, scope)
        assert scope["ModelNew"]().size() == tuple(each.values.values())  # type: ignore[operator]
        assert configurations(each.kernel, 8) == [], "what is filled in is plain"


@pytest.mark.parametrize(
    "source",
    [
        "BLOCK = 64\n",
        "CONFIGS = [triton.Config({})]\nBLOCK = 64\n",
        'CONFIGS = {"BLOCK": [1, 2]}\nBLOCK = 1\nprint(CONFIGS["BLOCK"])\n',
        'def f():\n    CONFIGS = {"BLOCK": [1, 2]}\n',
        'CONFIGS = {"BLOCK": [1, 2]}\nBLOCK = = 1\n',
        "# CONFIGS\n",
    ],
    ids=["none", "a list", "read by the file", "local", "no Python", "a comment"],
)
def test_any_other_use_of_the_name_is_the_kernels_own(source: str) -> None:
    assert declared(source) == []


@pytest.mark.parametrize(
    ("declaration", "defaults", "why"),
    [
        ('{"B": [i for i in range(9)]}', "B = 1", "CONFIGS must be a literal, as in CONFIGS = {"),
        ("{}", "B = 1", "CONFIGS names no constant"),
        ('{"B": 64}', "B = 1", "CONFIGS has 'B': 64; give each name a list"),
        ('{"B": []}', "B = 1", "CONFIGS has 'B': []; give each name a list"),
        ('{"B": [1, None]}', "B = 1", "CONFIGS has None for B; use a finite number"),
        ('{"B": [1e999]}', "B = 1", "CONFIGS has inf for B; use a finite number"),
        ('{"B": [0x' + "f" * 6000 + "]}", "B = 1", "Exceeds the limit (4300 digits)"),
        ('{"B": ["a\\nb"]}', "B = 1", "a string of at most 64 characters"),
        ('{"B": [1, 2]}', "C = 1", "'B', which needs one assignment of a default value"),
        ('{"B": [1, 2]}', "B = 1\nB = 2", "'B', which needs one assignment"),
        ('{"B": [1, 2]}', "B = f(1)", "'B', which needs one assignment"),
        ('{"B": [1, 2]}; C = 2', "B = 1", "CONFIGS must not share its lines"),
        (f'{{"B": {[*range(6)]}, "C": {[*range(6)]}}}', "B = 1\nC = 2", "36 combinations; evaluator.configs"),
    ],
)
def test_an_invalid_declaration_is_refused_in_one_line(declaration: str, defaults: str, why: str) -> None:
    with pytest.raises(InvalidConfigurations, match=re.escape(why)) as refused:
        declared(f"CONFIGS = {declaration}\n{defaults}\n")
    assert "\n" not in str(refused.value)


def test_repeated_values_count_once() -> None:
    assert declared('CONFIGS = {"B": [1, 1, 2]}\nB = 2\n', 2) == [{"B": 2}, {"B": 1}]


def test_a_limit_of_one_leaves_the_kernel_as_it_is_written() -> None:
    assert declared('CONFIGS = {"B": [1, 2]}\nB = 2\n', 1) == []


TIMING = Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1)
RESULTS = (
    ConfigurationResult(values={"B": 1}, timing=TIMING, chosen=True),
    ConfigurationResult(values={"B": 16}, timing=replace(TIMING, kernel_ms=1.5)),
    ConfigurationResult(values={"B": 32}, cause="incorrect: off by one"),
)


def test_the_table_in_words() -> None:
    assert configuration_lines(RESULTS) == [
        "B=1   1.00 ms, 2.00x [1.90, 2.10] against eager; chosen",
        "B=16  1.50 ms, 2.00x [1.90, 2.10] against eager",
        "B=32  incorrect: off by one",
    ]
    assert configuration_summary(RESULTS) == (
        "B=1 is the best of 3 configurations, which take 1.00 to 1.50 ms; "
        "1 excluded: B=32 (incorrect: off by one)"
    )
    assert configuration_summary(RESULTS[1:]) == ""


def test_the_judged_kernel_has_the_chosen_values() -> None:
    written = kernel('CONFIGS = {"B": [1, 2]}\nB = 2\n')
    verdict = Evaluation(status=Status.CORRECT, timing=TIMING, configurations=RESULTS)
    assert judged_kernel(written, verdict).source == "B = 1\n"
    assert judged_kernel(written, replace(verdict, configurations=RESULTS[1:])) is written
    plain = kernel("B = 7\n")
    assert judged_kernel(plain, verdict) is plain
    assert Evaluation.from_json(verdict.to_json()) == verdict


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match=r"evaluator\.configs\.most is 0; it must be positive"):
        ConfigurationLimits(most=0)
