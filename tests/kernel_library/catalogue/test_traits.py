"""References are recognised by the operators that torch dispatches for them, whoever wrote them and how."""

from __future__ import annotations

import time

import pytest

from evaluators.records.problem import Problem
from kernel_library.catalogue.traits import Traits, traits_of
from tests.kernel_library.entries import HEADER, reference, shipped

ROWS = "torch.randn(4, 6)"
HEADS = "*[torch.randn(1, 2, 8, 4) for _ in range(3)]"


@pytest.mark.parametrize(
    ("name", "parts", "inputs", "bare"),
    [
        ("level1/conv2d", ("conv2d",), ("100x3x224x224",), False),
        ("level1/matmul", ("matmul",), ("4096x4096", "4096x4096"), True),
        ("level1/softmax", ("softmax",), ("4096x65536",), True),
        ("level1/layernorm", ("layernorm",), ("16x64x256x256",), False),
        ("level2/conv2d_relu_maxpool", ("conv2d", "relu", "maxpool"), ("100x3x224x224",), False),
    ],
)
def test_the_shipped_problems(name: str, parts: tuple[str, ...], inputs: tuple[str, ...], bare: bool) -> None:
    expected = Traits(op=name.split("/")[1], parts=parts, inputs=inputs, bare=bare)
    assert traits_of(shipped(name, dtype="float16")) == expected


@pytest.mark.parametrize(
    ("op", "forward", "inputs", "layers"),
    [
        ("attention", "F.scaled_dot_product_attention(*a, is_causal=True)", HEADS, "pass"),
        ("attention", "torch.softmax(a[0] @ a[1].transpose(-1, -2) / 2, -1) @ a[2]", HEADS, "pass"),
        ("rmsnorm", "F.rms_norm(a[0], (6,))", ROWS, "pass"),
        ("rmsnorm", "a[0] * torch.rsqrt(a[0].pow(2).mean(-1, keepdim=True) + 1e-6)", ROWS, "pass"),
        ("rmsnorm", "a[0] * torch.rsqrt((a[0] * a[0]).mean(-1, keepdim=True) + 1e-6)", ROWS, "pass"),
        ("rmsnorm", "a[0] / torch.sqrt(torch.mean(a[0] ** 2, dim=1, keepdim=True) + 1e-6)", ROWS, "pass"),
        ("layernorm", "(a[0] - a[0].mean(1, True)) / torch.sqrt(a[0].var(1, keepdim=True))", ROWS, "pass"),
        ("softmax", "(e := torch.exp(a[0] - a[0].amax(1, True))) / e.sum(1, True)", ROWS, "pass"),
        ("cross_entropy", "F.cross_entropy(a[0], a[1])", f"{ROWS}, torch.randint(0, 6, (4,))", "pass"),
        (
            "rotary",
            "a[0] * a[1] + torch.cat((-a[0][..., 3:], a[0][..., :3]), -1) * a[2]",
            ", ".join([ROWS] * 3),
            "pass",
        ),
        (
            "rotary",
            "torch.cat((a[0] * a[1] - a[0] * a[2], a[0] * a[2] + a[0] * a[1]), -1)",
            ", ".join([ROWS] * 3),
            "pass",
        ),
        (
            "swiglu",
            "self.d(F.silu(self.g(a[0])) * self.u(a[0]))",
            ROWS,
            "self.g, self.u, self.d = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)",
        ),
        ("matmul_gelu", "F.gelu(self.l(a[0]))", ROWS, "self.l = nn.Linear(6, 8)"),
        ("matmul_softmax", "torch.softmax(self.l(a[0]), -1)", ROWS, "self.l = nn.Linear(6, 8)"),
        (
            "conv_transpose2d",
            "self.l(a[0])",
            "torch.randn(1, 3, 9, 9)",
            "self.l = nn.ConvTranspose2d(3, 4, 3)",
        ),
        ("conv1d_relu", "torch.relu_(self.l(a[0]))", "torch.randn(1, 3, 9)", "self.l = nn.Conv1d(3, 4, 3)"),
        ("sum", "a[0].sum(-1)", ROWS, "pass"),
        ("add", "a[0] + 1", ROWS, "pass"),
    ],
)
def test_other_references(op: str, forward: str, inputs: str, layers: str) -> None:
    assert traits_of(reference(forward, inputs, layers=layers)).op == op


@pytest.mark.parametrize(
    "source",
    [
        reference("torch.tensor(a[0].sum().item())", ROWS).source,
        reference("nothing", ROWS).source,
        HEADER.replace("torch", "tarch"),
    ],
)
def test_what_cannot_be_traced_has_no_traits(source: str) -> None:
    assert traits_of(Problem(name="x", source=source)) == Traits()


def test_sizes_cost_nothing() -> None:
    """Nothing is computed: these weights and inputs would be two terabytes."""
    problem = reference(
        "self.l(a[0])", "torch.randn(2**19, 2**19)", layers="self.l = nn.Linear(2**19, 2**19)"
    )
    began = time.process_time()
    assert traits_of(problem).op == "matmul"
    assert time.process_time() - began < 1.5
