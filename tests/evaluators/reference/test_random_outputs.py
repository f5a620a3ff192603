"""Statistical tests of random outputs: right ones always pass, wrong ones do not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from evaluators.reference import random_outputs
from evaluators.reference.random_outputs import (
    ENOUGH,
    MOST_CALLS,
    Always,
    Check,
    Counts,
    Evidence,
    Share,
    ValueSample,
    distribution_test,
    repetition_test,
)

SIZE = 4096
Draws = Callable[[], torch.Tensor]


def uniform() -> torch.Tensor:
    return torch.rand(SIZE)


def hook(inputs: list[object], outputs: list[torch.Tensor]) -> list[Check]:
    (out,) = outputs
    return [
        Always(name="it lies in [0, 1)", holds=(out >= 0) & (out < 1)),
        Share(name="share below 1/4", hits=out < 0.25, probability=0.25),
        ValueSample(name="the output", values=out, eps=torch.finfo(out.dtype).eps),
    ]


def problem_of(kernel: Draws, reference: Draws = uniform, seed: int = 0) -> str:
    torch.manual_seed(seed)
    evidence = Evidence(hook)
    while not evidence.enough:
        evidence.add([], [kernel()], [reference()])
    return evidence.comparison().problem


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_draws_pass_200_times_of_200(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 the kernel rounds numbers in float32, which eager does not."""

    monkeypatch.setattr(random_outputs, "ENOUGH", 2**13)

    def rounded() -> torch.Tensor:
        return torch.rand(SIZE).clamp(max=0.99).to(dtype)

    for seed in range(200):
        assert not problem_of(rounded, lambda: torch.rand(SIZE, dtype=dtype), seed)


FIXED = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
TWO = [FIXED, torch.rand(SIZE, generator=torch.Generator().manual_seed(1))]
CALLS = [0]


def alternating() -> torch.Tensor:
    CALLS[0] += 1
    return TWO[CALLS[0] // 2 % 2]


def every_eighth() -> torch.Tensor:
    CALLS[0] += 1
    return torch.rand(SIZE, generator=torch.Generator().manual_seed(CALLS[0] % 8))


def squared() -> torch.Tensor:
    """Below 1/4 as often."""
    drawn = uniform()
    return torch.where(drawn < 0.25, drawn.square() * 4, drawn)


def half_fixed() -> torch.Tensor:
    return torch.cat([FIXED[: SIZE // 2], torch.rand(SIZE // 2)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (lambda: torch.rand(SIZE) * 2 - 0.5, r"it lies in \[0, 1\) does not hold for \d+ of 4096 elements"),
        (lambda: torch.rand(SIZE) * 0.9, r"share below 1/4: 0\.2[78]"),
        (squared, "the output: the distribution of 65536 values"),
        (lambda: FIXED, "calls are not independent"),
        (half_fixed, "two calls give the same at .* calls are not independent"),
        (alternating, "calls are not independent"),
        (every_eighth, "two calls give the same at .* calls are not independent"),
        (lambda: torch.rand(SIZE // 2).repeat_interleave(2), "the output: differences of neighbours"),
        (lambda: torch.full((SIZE,), torch.nan), "does not hold"),
    ],
)
def test_wrong_draws_are_found(kernel: Draws, why: str) -> None:
    found = problem_of(kernel)
    assert re.search(why, found), found


def test_what_is_not_a_number_is_found_without_a_support() -> None:
    one = torch.randn(100)
    wrong = one.clone()
    wrong[3] = torch.nan
    assert distribution_test("it", [wrong], [one], 0.0)[1] == "it: 1 of 100 values are not numbers"
    assert not distribution_test("it", [wrong], [wrong], 0.0)[1]


@pytest.mark.slow
def test_few_values_show_nothing_and_their_number_is_limited() -> None:
    assert not distribution_test("it", [torch.zeros(8)], [torch.ones(8)], 0.0)[1], "8 values may be chance"
    assert distribution_test("it", [torch.zeros(64)], [torch.ones(64)], 0.0)[1]
    assert not repetition_test("it", Counts(0, 30, 30))[1] and repetition_test("it", Counts(0, 31, 31))[1]
    assert (
        not repetition_test("it", Counts(0, 31, 31), pairs=2)[1]
        and repetition_test("it", Counts(0, 32, 32), 2)[1]
    )
    assert not repetition_test("it", Counts(50_000, 52_000, 60_000))[1], "coarser numbers coincide more often"
    evidence = Evidence(hook)
    for _ in range(MOST_CALLS):
        assert not evidence.enough
        evidence.add([], [torch.rand(3)], [torch.rand(3)])
    assert evidence.enough
    large = Evidence(hook)
    for _ in range(3):
        large.add([], [torch.rand(2 * ENOUGH)], [torch.rand(2 * ENOUGH)])
    assert sum(len(one) for one, _ in large._values["the output"]) == ENOUGH
    assert not large.comparison().problem
