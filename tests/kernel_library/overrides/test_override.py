"""Kernels in the place of operators: forms, gradients, fallbacks, the guard, nesting, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_library import override
from kernel_library.overrides.dispatcher import MOST_CHOICES, OWN
from kernel_library.overrides.gradients import COMPOSITE
from kernel_library.overrides.override import Override
from tests.kernel_library.overrides import kernels

SOFTMAX = "aten._softmax.default"


def calls(on: Override, operator: str = "", kernel: str = "") -> int:
    """How many were taken."""
    return sum(
        each.calls
        for each in on.counts
        if each.taken and operator in ("", each.operator) and kernel in ("", each.kernel)
    )


def reasons(on: Override) -> dict[str, int]:
    return {each.reason: each.calls for each in on.counts if not each.taken}


torch.manual_seed(0)
CASES: list[tuple[str, Callable[..., Any], Callable[..., Tensor], list[Tensor]]] = [
    (SOFTMAX, kernels.softmax, lambda x: functional.softmax(x, -1), [torch.randn(5, 7)]),
    ("aten.mm", kernels.mm, torch.mm, [torch.randn(3, 4), torch.randn(4, 5)]),
    ("aten.addmm", kernels.addmm, torch.addmm, [torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)]),
    (
        "aten.native_layer_norm",
        kernels.layer_norm,
        lambda x, w, b: functional.layer_norm(x, (7,), w, b),
        [torch.randn(5, 7), torch.randn(7), torch.randn(7)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_forward_and_backward_are_those_of_the_original(case: Any) -> None:
    operator, kernel, function, inputs = case

    def run() -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in inputs]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]

    expected = run()
    with override({operator: kernel}) as on:
        found = run()
        taken = calls(on)
        assert calls(on, kernel=kernel.__name__) >= 1
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    run()
    assert calls(on) == taken, "the original is back"


def test_all_forms_come_from_one_kernel() -> None:
    x, bias, a, b = torch.randn(4), torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)
    with override({"aten.relu": kernels.relu, "aten.addmm": kernels.addmm}) as on:
        mine = x.clone()
        version = mine._version
        assert torch.relu_(mine) is mine
        assert mine._version == version + 1
        assert torch.equal(mine, x.clamp(min=0))
        out = torch.empty(3, 5)
        assert torch.addmm(bias, a, b, alpha=2, out=out) is out
        mine = torch.ones(3, 5)
        mine.addmm_(a, b, beta=3)
        assert [each.operator for each in on.counts if each.taken] == [
            "aten.addmm.out",
            "aten.addmm_.default",
            "aten.relu_.default",
        ]
    torch.testing.assert_close(out, torch.addmm(bias, a, b, alpha=2))
    torch.testing.assert_close(mine, 3 + a @ b)


def test_a_result_that_does_not_fit_into_what_is_written_goes_to_the_original() -> None:
    with override({"aten.relu": kernels.relu, SOFTMAX: kernels.softmax}) as on:
        out = torch.empty(0)
        torch.softmax(torch.randn(2, 3), -1, out=out)
        assert out.shape == (2, 3)
        assert reasons(on) == {"it writes into a tensor of another shape or type": 1}


def test_the_operator_in_its_own_kernel_is_the_original() -> None:
    def kernel(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return torch.softmax(x, dim) * 1

    x = torch.randn(3, 4)
    expected = torch.softmax(x, -1)
    with override({SOFTMAX: kernel}) as on:
        assert torch.equal(torch.softmax(x, -1), expected)
        assert (calls(on), reasons(on)) == (1, {OWN: 1})


def test_what_a_kernel_declines_goes_to_the_original(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "asked = []\n"
        "def supports(x):\n"
        "    asked.append(x.shape)\n"
        "    return 1 / (x.dim() - 2) > 0\n"
        "def relu(x):\n"
        "    return x.clamp(min=0)\n"
    )
    with override({"aten.relu": file}) as on:
        for shape in ((2,), (2,), (2, 2), (2, 2, 2)):
            assert torch.equal(torch.relu(-torch.ones(shape)), torch.zeros(shape))
        assert calls(on, kernel="mine") == 1
        assert reasons(on) == {
            "its supports(...) returned False": 2,
            "its supports(...) raised ZeroDivisionError: division by zero": 1,
        }
        lines = on.report().splitlines()
        assert lines[1].split() == ["aten.relu.default", "1", "mine"]
        assert lines[-1].endswith("the original: its supports(...) returned False")


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (kernels.failing, "failing raised RuntimeError: no such launch"),
        (lambda x: x.clamp(min=0).double(), "where the original has (4, 6) of torch.float32"),
        (lambda x: x.clamp(min=0)[:1], "(1, 6) of torch.float32 where"),
        (lambda x: x.t().contiguous().t().clamp(min=0), "not contiguous"),
        (lambda x: x, "in the memory of an argument"),
        (lambda x: (x + 1, x + 2), "2 results where the original has 1"),
        (lambda x: 3, "a int for a tensor"),
    ],
)
def test_a_kernel_that_fails_is_not_asked_again(
    kernel: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []

    def counting(x: Tensor) -> Any:
        ran.append(x.shape)
        return kernel(x)

    counting.__name__ = kernel.__name__
    x = torch.randn(4, 6)
    with override({"aten.relu": counting}) as on:
        for _ in range(3):
            assert torch.equal(torch.relu(x), x.clamp(min=0))
        assert len(ran) == 1
        assert calls(on) == 0
        ((said, times),) = reasons(on).items()
    assert reason in said
    assert times == 3
    assert len(caplog.records) == 1


def test_memory_that_runs_out_is_of_one_call() -> None:
    ran = []

    def kernel(x: Tensor) -> Tensor:
        ran.append(1)
        if len(ran) == 1:
            raise torch.OutOfMemoryError("no room")
        return x.clamp(min=0)

    with override({"aten.relu": kernel}) as on:
        for _ in range(3):
            torch.relu(torch.ones(3))
        assert calls(on) == 2
        assert reasons(on) == {"kernel raised OutOfMemoryError: no room": 1}


def test_what_the_original_raises_is_raised() -> None:
    with override({"aten.mm": kernels.mm}) as on:
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        assert calls(on) == 0


def test_a_result_of_which_a_kernel_does_not_know_the_layout() -> None:
    x = torch.randn(6, 4).t()
    with override({"aten.relu": kernels.relu}) as on:
        assert torch.relu(x).stride() == (1, 4)
        assert reasons(on) == {"its result is not contiguous in memory": 1}


def test_numbers_that_differ_in_each_call_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_library.overrides.dispatcher.MOST_CHOICES", 4)
    assert MOST_CHOICES > 4
    with override({"aten.addmm": kernels.addmm}) as on:
        for beta in range(20):
            torch.addmm(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), beta=beta)
        assert calls(on) == 20


def test_a_composite_operator_is_overridden_where_no_gradient_is_needed() -> None:
    def kernel(
        x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
    ) -> Tensor:
        return kernels.layer_norm(x, shape, weight, bias, eps)[0]

    x = torch.randn(3, 8, requires_grad=True)
    expected = functional.layer_norm(x, (8,))
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    with override({"aten.layer_norm": kernel}) as on:
        (found,) = torch.autograd.grad(functional.layer_norm(x, (8,)).square().sum(), x)
        assert torch.equal(found, gradient)
        assert (calls(on), reasons(on)) == (0, {COMPOSITE: 1})
        with torch.no_grad():
            torch.testing.assert_close(functional.layer_norm(x, (8,)), expected)
        with torch.inference_mode():
            torch.testing.assert_close(functional.layer_norm(x, (8,)), expected)
        torch.testing.assert_close(functional.layer_norm(x.detach(), (8,)), expected)
        assert calls(on) == 3


def test_what_others_make_of_a_composite_operator_stays_theirs() -> None:
    """A mode, or a class of tensors, knows the operators that it is made of, and not ours."""
    from torch.utils.flop_counter import FlopCounterMode

    a, b = torch.randn(3, 4), torch.randn(5, 4)
    expected = a @ b.t()
    with override({"aten.linear": lambda x, w, bias=None: torch.zeros(3, 5)}):
        with FlopCounterMode(display=False) as counter:
            torch.testing.assert_close(functional.linear(a, b), expected)
        assert counter.get_total_flops() == 2 * 3 * 4 * 5
        assert functional.linear(a, b).sum() == 0


@pytest.mark.parametrize("operator", ["aten.relu", "aten.layer_norm"])
def test_a_kernel_with_its_own_backward(operator: str, tmp_path: Path) -> None:
    """Its gradient says that it ran: it is not the right one."""
    file = tmp_path / "own.py"
    file.write_text(
        "def kernel(x, *args):\n"
        "    return x * 2\n"
        "def backward(gradients, results, x, *args):\n"
        "    assert len(results) == 1 and results[0].equal(x * 2)\n"
        "    return (gradients[0] * 7, *[None] * len(args))\n"
    )
    x = torch.randn(4, requires_grad=True)
    function = torch.relu if operator == "aten.relu" else lambda x: functional.layer_norm(x, (4,))
    with override({operator: file}) as on:
        out = function(x)
        out.sum().backward()
        assert torch.equal(out, x * 2)
        assert x.grad is not None and torch.equal(x.grad, torch.full((4,), 7.0))
        assert calls(on) == 1
        assert not function(x.detach()).requires_grad
        assert calls(on) == 2


def test_the_inner_override_is_asked_first() -> None:
    def inner(x: Tensor) -> Tensor:
        if x.dim() > 1:
            raise ValueError("vectors")
        return x + 1

    x = torch.ones(2, 2)
    with override({"aten.relu": lambda x: x + 2}) as outer:
        with override({"aten.relu": inner}) as on:
            assert torch.relu(x[0])[0] == 2
            assert torch.relu(x)[0, 0] == 3
            assert (calls(on), calls(outer)) == (1, 1)
            assert reasons(on) == {"inner raised ValueError: vectors": 1}
        assert torch.relu(x[0])[0] == 3
    assert torch.relu(x[0])[0] == 1


def test_a_switch_for_the_process() -> None:
    first, second = override({"aten.relu": lambda x: x + 2}), override({"aten.relu": lambda x: x + 5})
    assert first.enable() is first
    second.enable()
    try:
        with pytest.raises(RuntimeError, match="is already enabled"):
            first.enable()
        first.disable()
        assert torch.relu(torch.ones(1)) == 6
    finally:
        first.disable()
        second.disable()
    assert torch.relu(torch.ones(1)) == 1


def test_leaving_by_an_error_restores_the_original() -> None:
    with pytest.raises(KeyError), override({"aten.relu": lambda x: x + 2}):
        raise KeyError
    assert torch.relu(torch.ones(1)) == 1


def test_all_threads_are_counted() -> None:
    def many() -> None:
        for size in range(1, 51):
            assert torch.relu(-torch.ones(size)).sum() == 0

    with override({"aten.relu": kernels.relu}) as on:
        threads = [threading.Thread(target=many) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert calls(on) == 8 * 50


def test_a_device_confines_the_kernels() -> None:
    with override({"aten.relu": kernels.relu}, device="cuda") as on:
        torch.relu(torch.ones(2))
        assert on.counts == ()
    with pytest.raises(ValueError, match="device is gpu; it must be cpu or cuda"):
        override({"aten.relu": kernels.relu}, device="gpu")


def test_vmap_and_double_backward_still_work() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    with override({SOFTMAX: kernels.softmax}) as on:
        torch.func.vmap(lambda row: torch.softmax(row, 0))(x.detach())
        assert torch.autograd.gradgradcheck(lambda x: torch.softmax(x, -1), (x,))
        assert calls(on) > 1
