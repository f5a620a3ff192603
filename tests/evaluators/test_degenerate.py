"""References that cannot judge are found out, with figures; those that can are left alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch.nn import functional

from evaluators.degenerate import Answers, examine
from evaluators.problem import TOLERANCES
from evaluators.reference import PROBLEMS, init_inputs, load_module, load_problem, make_inputs, make_model
from evaluators.reference import tensors_of as outputs_of

CONFIGS = PROBLEMS.parents[1] / "configs" / "problem"
SHIPPED = sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.glob("level*/*.yaml"))
FLAT = ("kernelbench", "kernelbench_v02")


def answers_of(module: Callable[..., Any], exact: Callable[..., Any]) -> Answers:
    def answers(inputs: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        wide = [v.double() if torch.is_tensor(v) and v.is_floating_point() else v for v in inputs]
        return outputs_of(module(*inputs)), outputs_of(exact(*wide))

    return answers


def findings(
    function: Callable[..., Any], draw: Callable[[], list[Any]], tolerance: str = "kernelbench"
) -> list[str]:
    def seeded(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return draw()

    return examine(seeded, answers_of(function, function), tolerance, seeds=(1, 2))


def matrix() -> torch.Tensor:
    return torch.randn(64, 128)


def examine_shipped(name: str, device: str) -> list[str]:
    """As configured, at the size for the device."""
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"))
    assert isinstance(config, dict)
    del config["_target_"]
    problem = load_problem(**{str(key): value for key, value in config.items()}, device=device)
    module = load_module(problem.source, problem.overrides)
    how = {"device": device, "dtype": problem.dtype}
    model = make_model(module, "Model", init_inputs(module, 0), seed=0, **how)
    return examine(
        lambda seed: make_inputs(module, seed=seed, **how),
        answers_of(model, copy.deepcopy(model).double()),
        problem.tolerance,
        seeds=(1, 2),
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_problems_can_judge(name: str) -> None:
    assert examine_shipped(name, "cpu") == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_problems_can_judge_at_full_size(name: str) -> None:
    for _ in range(2):  # the second time the libraries are loaded
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.monotonic()
        assert examine_shipped(name, "cuda") == []
        took_s = time.monotonic() - start
    print(f"{name}: {took_s:.2f} s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")
    assert took_s < 2


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def test_zeros_pass_for_a_long_softmax_under_a_flat_tolerance() -> None:
    def draw() -> list[Any]:
        return [torch.randn(16, 65536)]

    (line,) = findings(softmax, draw)
    assert line.startswith("zeros pass under kernelbench: the largest output is 0.00")
    assert "the mean 1.53e-05" in line and line.endswith("(use problem.tolerance=strict)")
    assert findings(softmax, draw, "strict") == []


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_an_output_that_is_always_zero_is_refused_by_every_profile(tolerance: str) -> None:
    def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        top = (x @ weight).max(1, keepdim=True).values
        return functional.gelu(top - top.mean(1, keepdim=True))

    (line,) = findings(reference, lambda: [matrix(), torch.randn(128, 32)], tolerance)
    assert line.startswith(f"zeros pass under {tolerance}: the largest output is 0,")
    assert "strict)" not in line


def many_rows() -> list[Any]:
    return [torch.randn(100_000, 10), torch.randint(0, 10, (100_000,))]


@pytest.mark.parametrize(
    ("reference", "draw"),
    [
        (lambda x: x * 0 + 1, lambda: [matrix()]),
        (lambda x: x * 1e-3 + torch.arange(7.0)[:, None], lambda: [torch.randn(64, 7, 5)]),
        (lambda x: x * 1e-3 + torch.arange(5.0), lambda: [torch.randn(64, 7, 5)]),
        (lambda x: x * 1e-3 + torch.arange(64.0)[:, None], lambda: [matrix()]),
        (lambda x: x.abs() < 100, lambda: [matrix()]),
        (lambda x: (x.abs() < 100).sum(-1), lambda: [matrix()]),
        (lambda x: x + 1, lambda: [torch.ones(64)]),
        (functional.cross_entropy, many_rows),
    ],
    ids=["constant", "channel", "column", "row", "truth", "count", "fixed_inputs", "concentrated_loss"],
)
def test_answers_that_need_no_inputs_are_found(
    reference: Callable[..., Any], draw: Callable[[], list[Any]]
) -> None:
    (line,) = findings(reference, draw)
    assert "pass under kernelbench: the largest output is" in line
    assert not line.startswith("zeros")


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (torch.tensor([0.05]), "the mean for other inputs"),
        (torch.tensor([-0.05, 0.0, 0.05]), "one a place in the last dimension"),
        (torch.tensor([-0.05, 0.0, 0.05])[:, None], "one a channel"),
    ],
    ids=["all", "place", "channel"],
)
def test_a_mean_passes_where_other_outputs_do_not(steps: torch.Tensor, name: str) -> None:
    """Noise of nearly the tolerance around a constant: two draws differ by up to twice of it."""
    (line,) = findings(lambda x: x * 0.009 + steps, lambda: [torch.rand(500, 3, 3) * 2 - 1])
    assert line.startswith("constants") and name in line


def test_the_mean_of_very_many_numbers_is_zero_under_a_flat_tolerance() -> None:
    def draw() -> list[Any]:
        return [torch.randn(1_000_000)]

    (line,) = findings(torch.mean, draw)
    assert line.startswith("zeros pass")
    assert findings(torch.mean, draw, "strict") == []


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize(
    ("reference", "draw"),
    [
        (lambda x: x, lambda: [matrix()]),
        (lambda x: functional.dropout(x, training=False), lambda: [matrix()]),
        (torch.matmul, lambda: [matrix(), matrix().mT]),
        (
            lambda x, y: functional.cross_entropy(x, y, reduction="none"),
            lambda: [matrix(), torch.randint(0, 128, (64,))],
        ),
        (lambda x: x.argmax(-1), lambda: [matrix()]),
        (lambda x, i: x[i], lambda: [matrix(), torch.randint(0, 64, (64,))]),
        (lambda x, mask, scale: x * mask * scale, lambda: [matrix(), torch.ones(64, 128).tril(), 2.0]),
        (lambda x, y: (x * 2, y + 1), lambda: [matrix(), matrix()]),
        (lambda x: x.exp_(), lambda: [matrix()]),
        (lambda x: x.sum(), lambda: [matrix()]),
        (lambda x: x / x.clamp(min=0), lambda: [matrix()]),
    ],
    ids=[
        *("identity", "dropout", "matmul", "cross_entropy", "argmax", "gather", "mask", "tuple"),
        *("in_place", "sum", "infinite"),
    ],
)
def test_sound_references_are_left_alone(
    reference: Callable[..., Any], draw: Callable[[], list[Any]], tolerance: str
) -> None:
    assert findings(reference, draw, tolerance) == []


@given(
    strengths=st.lists(st.sampled_from([0.0, 1e-9, 0.5, 2.0]), min_size=2, max_size=4).filter(
        lambda each: max(each) >= 0.5
    ),
    tolerance=st.sampled_from(TOLERANCES),
    integers=st.booleans(),
)
def test_an_input_that_hardly_matters_is_named(
    strengths: list[float], tolerance: str, integers: bool
) -> None:
    """Each input goes into the output with its strength; the weak ones are named, no others."""

    def reference(*inputs: torch.Tensor) -> torch.Tensor:
        return sum((s * x for s, x in zip(strengths, inputs, strict=True)), torch.zeros(()))

    def draw() -> list[Any]:
        first = torch.randint(-9, 9, (100,)) if integers else torch.randn(100)
        return [first, *(torch.randn(100) for _ in strengths[1:])]

    expected = [index for index, strength in enumerate(strengths) if strength < 0.5]
    lines = findings(reference, draw, tolerance)
    assert len(lines) == len(expected)
    for index, line in zip(expected, lines, strict=True):
        assert line.startswith(f"the outputs hardly depend on input {index}: drawn anew, they pass under")


def test_strict_sees_what_a_flat_tolerance_does_not() -> None:
    def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1e-4 * y

    (line,) = findings(reference, lambda: [matrix(), matrix()])
    assert line.startswith("the outputs hardly depend on input 1") and line.endswith("strict)")
    assert findings(reference, lambda: [matrix(), matrix()], "strict") == []


def test_an_input_that_matters_in_few_places_matters() -> None:
    def reference(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:7], last, x[7:]])

    def draw() -> list[Any]:
        return [torch.randn(1_000_000), torch.randn(1)]

    assert findings(reference, draw) == []


def test_each_output_is_examined() -> None:
    (line,) = findings(lambda x: (x, x * 1e-4), lambda: [matrix()])
    assert line.startswith("output 1: zeros pass")


def test_a_reference_that_fails_its_own_rule_is_named() -> None:
    (line,) = findings(lambda x: functional.dropout(x, training=True), lambda: [matrix()])
    assert line.startswith("eager PyTorch itself fails under kernelbench")


def test_an_output_without_elements_is_named() -> None:
    assert findings(lambda x: x[:0], lambda: [matrix()]) == ["there are no elements to judge"]


def test_inputs_that_belong_together_are_not_parted() -> None:
    """An index into a table whose rows are numbered from `first`: with another `first` it lies outside."""

    def draw() -> list[Any]:
        first = torch.randint(0, 1000, (1,)) * 10
        return [torch.randn(4, 16), first, first + torch.randperm(4)]

    assert findings(lambda table, first, index: table[index - first], draw) == []
