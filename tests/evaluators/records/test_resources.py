"""The resources of compiled functions, in words."""

from __future__ import annotations

import pytest

from evaluators.records.resources import FunctionResources, resource_lines, resource_summary

TILED = FunctionResources(name="gemm<float, 128>", registers=168, stack_bytes=2000, shared_bytes=49152)
PLAIN = FunctionResources(name="reduce", registers=32, stack_bytes=0)


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ([], ""),
        ([PLAIN], "32 registers"),
        ([TILED], "168 registers, 2 kB stack"),
        ([TILED, PLAIN], "at most 168 registers, 2 kB stack"),
        ([FunctionResources(name="f", registers=24, stack_bytes=376)], "24 registers, 376 B stack"),
    ],
)
def test_a_summary_has_the_most_registers_and_the_largest_stack(
    functions: list[FunctionResources], text: str
) -> None:
    assert resource_summary(functions) == text


def test_each_function_has_a_line() -> None:
    assert resource_lines([TILED, PLAIN]) == [
        "gemm<float, 128>: 168 registers and 2 kB stack per thread, 49.2 kB static shared memory per block",
        "reduce: 32 registers per thread",
    ]


@pytest.mark.parametrize("field", ["registers", "stack_bytes", "shared_bytes"])
@pytest.mark.parametrize("value", [-1, 2**31])
def test_numbers_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"resources.{field} is {value}; it must be from 0"):
        FunctionResources(**{"name": "f", "registers": 1, field: value})
