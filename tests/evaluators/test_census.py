"""What looks at a kernel's threads, or at rows of its calls, say of who does its work."""

import pytest

from evaluators.census import (
    ENOUGH_LOOKS,
    FEWEST_LOOKS,
    LONGEST_S,
    PATIENCE_S,
    SURE_LOOKS,
    Census,
    hidden,
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
        (27, 13, PATIENCE_S / 2, True),
        (27, 13, PATIENCE_S, False),
        (7, 9, 0.0, False),
        (SURE_LOOKS // 2, SURE_LOOKS // 2, 0.0, False),
    ],
)
def test_a_rejection_takes_more_looks_than_an_acquittal(
    own: int, library: int, elapsed_s: float, goes_on: bool
) -> None:
    assert undecided(own + library, Census(own=own, library=library), elapsed_s) is goes_on


def test_who_was_hardly_seen_is_not_cleared() -> None:
    assert hidden(FEWEST_LOOKS) is None
    assert "only 7 looks" in str(hidden(FEWEST_LOOKS - 1))
