"""What looks at a kernel's threads, or at rows of its calls, say of who does its work."""

import pytest

from evaluators.census import (
    ENOUGH_LOOKS,
    FEWEST_LOOKS,
    LONGEST_S,
    PATIENCE_S,
    ROW_CALLS,
    ROW_MS,
    SURE_LOOKS,
    Census,
    hidden_in_rows,
    repeats_of,
    undecided,
)


@pytest.mark.parametrize(
    ("own", "library", "is_own"), [(9, 1, True), (5, 5, False), (0, 9, False), (0, 0, True)]
)
def test_most_of_the_computing_must_be_the_kernels_own(own: int, library: int, is_own: bool) -> None:
    assert (Census(own=own, library=library, names=("libtorch_cpu.so",)).reason("cpu") is None) == is_own


@pytest.mark.parametrize(
    ("own", "library", "elapsed_s", "goes_on"),
    [
        (FEWEST_LOOKS - 1, 0, PATIENCE_S / 2, True),
        (FEWEST_LOOKS - 1, 0, PATIENCE_S, False),
        (FEWEST_LOOKS, 0, LONGEST_S / 2, True),
        (FEWEST_LOOKS, 0, LONGEST_S, False),
        (ENOUGH_LOOKS, 0, 0.0, False),
        (ENOUGH_LOOKS // 2, ENOUGH_LOOKS // 2, PATIENCE_S / 2, True),
        (ENOUGH_LOOKS // 2, ENOUGH_LOOKS // 2, PATIENCE_S, False),
        (SURE_LOOKS // 2, SURE_LOOKS // 2, 0.0, False),
    ],
)
def test_a_rejection_takes_more_looks_than_an_acquittal(
    own: int, library: int, elapsed_s: float, goes_on: bool
) -> None:
    assert undecided(own + library, Census(own=own, library=library), "cpu", elapsed_s) is goes_on


@pytest.mark.parametrize("call_ms", [0.0, 0.003, 0.2, 100.0])
def test_a_row_is_long_enough_to_be_seen(call_ms: float) -> None:
    assert ROW_CALLS * repeats_of(call_ms) * max(call_ms, 1e-3) >= ROW_MS


@pytest.mark.parametrize(
    ("looks", "row_ms", "call_ms", "reason"),
    [
        (FEWEST_LOOKS, 0.01, 0.01, ""),
        (FEWEST_LOOKS, 0.005, 0.01, ""),
        (FEWEST_LOOKS, 0.11, 0.01, ""),
        (FEWEST_LOOKS, 0.5, 0.01, "0.5 ms in a row"),
        (FEWEST_LOOKS - 1, 0.01, 0.01, "looks"),
        (0, 0.01, 0.01, "looks"),
    ],
)
def test_rows_clear_who_works_there_as_in_single_calls(
    looks: int, row_ms: float, call_ms: float, reason: str
) -> None:
    found = hidden_in_rows(looks, row_ms, call_ms, slack_ms=0.1)
    assert reason in found if found and reason else not found and not reason
