"""Numbers where the schema has a tensor: a kernel gets them, and the original takes them back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernel_library import override
from kernel_library.overrides.compiled import NUMBER
from kernel_library.overrides.dispatcher import OWN, expectation, identity, signature
from tests.kernel_library.overrides import kernels
from tests.kernel_library.overrides.test_override import calls, reasons

NAN = float("nan")
OPERATORS = (
    "mul.Tensor",
    "add.Tensor",
    "sub.Tensor",
    "div.Tensor",
    "floor_divide",
    "pow.Tensor_Tensor",
    "remainder.Tensor",
    "bitwise_and.Tensor",
    "gt.Tensor",
    "where.self",
    "xlogy.Tensor",
)
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("mul", "add", "sub", "truediv", "floordiv", "gt", "and_")},
    "from a number": lambda x, number: number - x,
    "power of a number": lambda x, number: number**x,
    "modulo a number": lambda x, number: number % x,
    "in place": lambda x, number: x.clone().mul_(number),
    "out": lambda x, number: torch.add(x, number, out=torch.empty(0, dtype=x.dtype)),
    "alpha": lambda x, number: torch.add(x, number, alpha=3),
    "foreach": lambda x, number: torch._foreach_mul([x, x], number)[1],
    "where": lambda x, number: torch.where(x == x, x, number),
    "xlogy": torch.xlogy,
}
INPUTS = [
    (torch.full(shape, 2, dtype=dtype), number)
    for shape, dtype in (((3,), torch.int32), ((), torch.float16), ((1,), torch.bool))
    for number in (2.5, 3, True, 2j, NAN, np.float32(2.1))
]


def result(function: Callable[[Any, Any], Any], x: Tensor, number: Any) -> Any:
    """The result, or the error; as comparable values."""
    try:
        found = function(x, number)
    except (RuntimeError, TypeError) as error:
        return str(error)
    return found.dtype, found.shape, str(found.tolist())


def declining(names: tuple[str, ...] = OPERATORS) -> dict[str, Callable[..., Any]]:
    return {f"aten.{name}": kernels.failing for name in names}


@pytest.mark.slow
def test_the_original_computes_what_it_does_without_an_override() -> None:
    """The types of the results too: a wrapped number does not raise them."""
    cases = [(name, *each) for name in FUNCTIONS for each in INPUTS]
    expected = [result(FUNCTIONS[name], *each) for name, *each in cases]
    with override(declining()) as on:
        for (name, *each), wanted in zip(cases, expected, strict=True):
            assert result(FUNCTIONS[name], *each) == wanted, (name, *each)
        assert calls(on) == 0 and len({each.operator for each in on.counts}) >= len(OPERATORS) - 2


def test_a_kernel_gets_a_number() -> None:
    got = []

    def kernel(x: Tensor, y: Any) -> Tensor:
        got.append(y)
        return x * y + 0 * x if isinstance(y, Tensor) else x.new_full(x.shape, float(y))

    with override({"aten.mul.Tensor": kernel}) as on:
        assert (torch.ones(2) * 2.5).tolist() == [2.5, 2.5]
        assert (torch.ones(2) * torch.ones(2)).tolist() == [1, 1]
        assert got[0] == 2.5 and isinstance(got[1], Tensor)
        assert reasons(on)[OWN] == 2


def test_gradients_and_a_layout_that_a_kernel_does_not_know() -> None:
    def run() -> list[Tensor]:
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        out = (2 * x.t() - 1) / 3
        return [out.detach(), *torch.autograd.grad(out.sum(), x)]

    expected = run()
    with override({f"aten.{name}": lambda x, y: x for name in OPERATORS[:4]}) as on:
        for mine, theirs in zip(run(), expected, strict=True):
            assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
        assert "its result is not contiguous in memory" in reasons(on)
        with torch.inference_mode():
            assert (torch.ones(2) / 4).tolist() == [0.25, 0.25]


def test_a_kernel_with_its_own_backward_is_given_a_number(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def supports(x, y):\n    return y.__class__ is float\n"
        "def kernel(x, y):\n    return x + y\n"
        "def backward(gradients, results, x, y):\n    return gradients[0] + 6, None\n"
    )
    x = torch.ones(2, requires_grad=True)
    with override({"aten.mul.Tensor": file}) as on:
        out = x * 4.0
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert out.tolist() == [5.0, 5.0] and gradient.tolist() == [7.0, 7.0]
        assert (x * 2).tolist() == [2.0, 2.0], "declined"
        assert calls(on) == 1


@pytest.mark.parametrize("foreach", [False, True])
def test_a_training_step_with_a_folder_of_operators(foreach: bool, tmp_path: Path) -> None:
    def step() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
        for _ in range(2):
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        return [each.detach().clone() for each in model.state_dict().values()]

    expected = step()
    for name in ("add__Tensor", "mul__Tensor"):
        (tmp_path / name).mkdir()
        sign = "+" if name.startswith("add") else "*"
        (tmp_path / name / f"{name}_implementation_v1.py").write_text(
            f"def kernel(x, y, *, alpha=1):\n    y.shape\n    return x {sign} y\n"
        )
    with override(tmp_path) as on:
        for mine, theirs in zip(step(), expected, strict=True):
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs)
        assert any("'int' object has no attribute 'shape'" in reason for reason in reasons(on))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_in_a_trace_such_a_call_goes_to_the_original(dynamic: bool) -> None:
    def function(x: Tensor, number: float) -> Tensor:
        return (((x * number).add_(1) - 2) / 3).where(x > 0, 2**x)

    x = torch.tensor([1.0, -2.0], requires_grad=True)
    expected = function(x, 1.5)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    with override(declining()) as on:
        compiled = torch.compile(function, backend="aot_eager", dynamic=dynamic)
        found = compiled(x, 1.5)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], gradient)
        assert NUMBER in reasons(on)
        torch.testing.assert_close(compiled(x, 2.5), function(x, 2.5))


def test_a_choice_is_found_again() -> None:
    """The key of a choice: equal for what is the same, and for nothing else."""
    x, generator = torch.ones(2), torch.Generator()
    same = [
        (NAN, float("nan")),
        ([1.0, NAN], [1.0, -NAN]),
        (complex(NAN, 1), complex(NAN, 1)),
        (x, x + 1),
        ((1, 2), [1, 2]),
        (generator, torch.Generator()),
        *(
            (each, each)
            for each in (torch.float16, torch.device("cpu"), torch.channels_last, "none", None, 1.5)
        ),
    ]
    for one, other in same:
        key = signature([one])
        assert key == signature([other]) and hash(key) == hash(signature([other])), one
    others = [
        0.0,
        -0.0,
        0,
        False,
        1,
        1.0,
        True,
        1 + 0j,
        0j,
        complex(0.0, -0.0),
        NAN,
        "nan",
        None,
        x,
        x.double(),
    ]
    assert len({signature([each]) for each in others}) == len(others)
    assert identity(2) == (int, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: torch.nan_to_num(x, number),
        lambda x, number: x * number,
        lambda x, number: torch.addcdiv(x, x, x, value=number),
        lambda x, number: torch.add(x, x, alpha=number),
        lambda x, number: x.clone().mul_(number),
        lambda x, number: functional.leaky_relu(x, number),
    ],
)
@pytest.mark.parametrize("kernel", [kernels.failing, lambda x, *args, **named: x + 0.0])
def test_the_result_is_predicted_once_for_all_floats(
    function: Callable[[Tensor, float], Tensor], kernel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes milliseconds, and NaN is never equal to itself."""
    predicted = []

    def predict(operator: Any, *args: Any) -> Any:
        predicted.append(operator.name)
        return expectation(operator, *args)

    monkeypatch.setattr("kernel_library.overrides.dispatcher.expectation", predict)
    names = ("nan_to_num", "mul.Tensor", "addcdiv", "add.Tensor", "leaky_relu")
    with override({f"aten.{name}": kernel for name in names}):
        function(torch.ones(3), 0.5)
        known = len(predicted)
        for number in (NAN, -0.0, 0.0, 1.5, NAN, 0.5):
            function(torch.ones(3), number)
        assert known == len(predicted) > 0
        function(torch.ones(4), 0.5)
        assert len(predicted) == 2 * known, "another shape"


def test_a_prediction_depends_on_floats_without_a_tensor() -> None:
    """An operator that allocates its result is predicted without calling itself."""

    def kernel(start: float, end: float, step: float, **options: Any) -> Tensor:
        return torch.full((int((end - start) / step),), 7.0)

    with override({"aten.arange.start_step": kernel}) as on:
        for end in (3.0, 4.0, 3.0):
            assert torch.arange(0.0, end, 1.0).tolist() == [7.0] * int(end)
        assert calls(on) == 3 and not reasons(on)
    with override({"aten.full_like": lambda x, number, **options: x * 0 + number}) as on:
        assert torch.full_like(torch.ones(2), NAN).isnan().all()
        assert torch.full_like(torch.ones(2), 3, dtype=torch.int32).tolist() == [3, 3]
        assert calls(on) == 1 and "where the original has (2,) of torch.int32" in next(iter(reasons(on)))
