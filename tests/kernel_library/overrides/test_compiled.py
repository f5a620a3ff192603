"""Under `torch.compile`: the choice is made in the trace, and the backward is the original's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_library import override
from kernel_library.overrides.library_kernels import Rules
from tests.kernel_library.overrides import kernels
from tests.kernel_library.overrides.test_library_kernels import candidate, library
from tests.kernel_library.overrides.test_override import SOFTMAX, calls, reasons

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


def graph_of(function: Any, *args: Tensor) -> list[str]:
    """The operators that the compiled forward calls."""
    from torch._dynamo.backends.common import aot_autograd

    found: list[str] = []

    def take(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compile(function, backend=aot_autograd(fw_compiler=take, bw_compiler=lambda graph, _: graph))(*args)
    return found


def test_the_graph_calls_the_kernel_and_not_the_original() -> None:
    with override({SOFTMAX: kernels.softmax}), torch.no_grad():
        targets = graph_of(lambda x: torch.softmax(x * 2, -1), torch.randn(3, 4))
    assert len(targets) == 2
    assert targets[1].startswith("kernel_library._softmax__default__")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_and_backward(backend: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu_(functional.layer_norm(x @ w, (6,)))
        return torch.softmax(y, -1).square().sum()

    def run(call: Any) -> list[Tensor]:
        torch.manual_seed(0)
        leaves = [torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)]
        out = call(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves)]

    expected = run(function)
    overridden = {
        SOFTMAX: kernels.softmax,
        "aten.mm": kernels.mm,
        "aten.native_layer_norm": kernels.layer_norm,
        "aten.relu": kernels.relu,
    }
    with override(overridden, device="cpu") as on:
        compiled = torch.compile(function, backend=backend)
        for mine, theirs in zip(run(compiled), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert calls(on, SOFTMAX) == 1
        assert calls(on, "aten.native_layer_norm.default") == 1
        assert calls(on, "aten.mm.default") >= 1
        assert calls(on, "aten.relu.default") + calls(on, "aten.relu_.default") == 1


def test_the_default_compiler() -> None:
    x = torch.randn(3, 4)
    expected = torch.softmax(x, -1)
    with override({SOFTMAX: kernels.softmax}, device="cpu") as on, torch.no_grad():
        found = torch.compile(lambda x: torch.softmax(x, -1))(x)
        assert calls(on) == 1
    torch.testing.assert_close(found, expected)


def test_what_was_compiled_before_or_within_is_compiled_again() -> None:
    compiled = torch.compile(torch.relu, backend="aot_eager")
    x = torch.ones(2)
    assert compiled(x)[0] == 1
    with override({"aten.relu": lambda x: x + 2}):
        assert compiled(x)[0] == 3
    assert compiled(x)[0] == 1


def test_the_choice_is_made_in_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "rows.py"
    file.write_text(
        "def supports(x, dim, half_to_float):\n"
        "    return x.shape[0] < 4\n"
        "def kernel(x, dim, half_to_float):\n"
        "    return x * 0\n"
    )
    function = lambda x: torch.softmax(x, -1)  # noqa: E731
    with override({SOFTMAX: file}) as on, torch.no_grad():
        assert "kernel_library" in graph_of(function, torch.ones(3, 4))[0]
        assert graph_of(function, torch.ones(5, 4)) == ["aten._softmax.default"]
        assert "its supports(...) returned False" in reasons(on)


def test_dynamic_shapes_stay_dynamic() -> None:
    """The choice asks for sizes; the graph is not confined to those that it was traced with."""
    compiled = 0

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    from torch._dynamo.backends.common import aot_autograd

    with library(candidate("softmax"), rules=Rules(least_elements=12)) as on, torch.no_grad():
        function = torch.compile(
            lambda x: torch.softmax(x, -1), backend=aot_autograd(fw_compiler=count), dynamic=True
        )
        for rows in (3, 4, 5, 6):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(function(x), x.exp() / x.exp().sum(-1, keepdim=True))
        assert (calls(on), compiled) == (4, 1)
        function(torch.randn(1, 8))
        assert calls(on) == 4, "below the least number of elements"


def test_a_kernel_that_fails_in_compiled_code() -> None:
    with override({SOFTMAX: kernels.failing}) as on, torch.no_grad():
        out = torch.compile(lambda x: torch.softmax(x, -1), backend="aot_eager")(torch.ones(2, 4))
        assert torch.equal(out, torch.full((2, 4), 0.25))
        assert reasons(on)["failing raised RuntimeError: no such launch"] == 1
        assert calls(on) == 0


def test_a_composite_operator() -> None:
    def kernel(x: Tensor, *args: Any) -> Tensor:
        return x + 2

    function = lambda x: functional.layer_norm(x, (4,))  # noqa: E731
    with override({"aten.layer_norm": kernel}):
        with torch.no_grad():
            (target,) = graph_of(function, torch.ones(3, 4))
        assert "layer_norm__default" in target
        assert "aten.native_layer_norm.default" in graph_of(function, torch.ones(3, 4, requires_grad=True))


def test_a_kernel_with_its_own_backward(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def kernel(x):\n    return x * 2\n"
        "def backward(gradients, results, x):\n    return gradients[0] * 7,\n"
    )
    x = torch.ones(3, requires_grad=True)
    with override({"aten.relu": file}) as on:
        out = torch.compile(lambda x: torch.relu(x) + 1, backend="aot_eager")(x)
        out.sum().backward()
        assert out[0] == 3
        assert x.grad is not None and x.grad[0] == 7
        assert calls(on) == 1


def test_disk_caches_are_separate() -> None:
    before = torch.compiler.config.cache_key_tag
    with override({"aten.relu": kernels.relu}):
        one = torch.compiler.config.cache_key_tag
        with override({SOFTMAX: kernels.softmax}):
            two = torch.compiler.config.cache_key_tag
        assert torch.compiler.config.cache_key_tag == one
    assert torch.compiler.config.cache_key_tag == before
    assert len({before, one, two}) == 3
