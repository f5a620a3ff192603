"""The library's kernels in the place of operators: what is picked, and the table of interfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernel_library import override
from kernel_library.overrides.choice import Candidate, MeasuredCase
from kernel_library.overrides.interfaces import INTERFACES
from kernel_library.overrides.library_kernels import Rules, library_sources
from kernel_library.overrides.override import Override
from tests.kernel_library.overrides.test_override import calls, reasons

ANY = Rules(least_elements=0)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (
        scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).exp()
        @ v
        / scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).exp().sum(-1, keepdim=True)
    )


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    losses = logits.logsumexp(-1) - logits.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    return losses.masked_fill(target == ignore_index, 0)


FAMILIES: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "sum": lambda x: x.mean(-1) * x.shape[-1],
    "matmul": lambda a, b: (a[:, :, None] * b[None]).sum(1),
    "conv2d": lambda x, w, b, stride, padding: (
        functional.conv2d(x.double(), w.double(), None, stride, padding)
        .float()
        .add(0 if b is None else b[:, None, None])
    ),
    "layernorm": lambda x, w, b, eps, dims: torch.native_layer_norm(x, x.shape[-dims:], w, b, eps)[0],
    "rmsnorm": lambda x, w, eps: (
        x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 if w is None else w)
    ),
    "attention": causal,
    "cross_entropy": cross_entropy,
}
"""Kernels with the interfaces of the library's."""


def candidate(op: str, name: str = "mine", speedup: float = 2.0, **fields: Any) -> Candidate:
    patterns = {"matmul": ("*x*",) * 2, "attention": ("*x*x*x*",) * 3, "cross_entropy": ("*x*", "*")}
    measured = MeasuredCase(architecture="cpu", dtype="float32", shapes=((64,),), speedup_low=speedup)
    known = {
        "shapes": patterns.get(op, ("...x*",)),
        "dtypes": ("float32",),
        "measured": (measured,),
        "function": "f",
    }
    return Candidate(name=name, op=op, **{**known, **fields})


def library(
    *candidates: Candidate, rules: Rules = ANY, functions: Mapping[str, Callable[..., Any]] | None = None
) -> Override:
    functions = functions or {each.name: FAMILIES[each.op] for each in candidates}
    ids = {each.name: str(abs(hash((each, rules)))) for each in candidates}
    return Override(library_sources(candidates, load=functions.__getitem__, ids=ids, rules=rules))


TARGET = torch.tensor([0, 2, -100, 1])
Q, K, V = torch.randn(3, 2, 2, 6, 4)
TAKEN: list[tuple[str, Callable[[], Tensor]]] = [
    ("softmax", lambda: torch.softmax(torch.ones(3, 4), 1)),
    ("softmax", lambda: torch.softmax(torch.ones(3, 4), -1)),
    ("sum", lambda: torch.ones(3, 4).sum(1)),
    ("sum", lambda: torch.ones(3, 4).sum(-1, keepdim=True)),
    ("matmul", lambda: torch.ones(3, 4) @ torch.ones(4, 5)),
    ("matmul", lambda: functional.linear(torch.ones(3, 4), torch.ones(5, 4), torch.arange(5.0))),
    (
        "conv2d",
        lambda: functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3), torch.arange(4.0), 2, 1),
    ),
    ("conv2d", lambda: functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3))),
    (
        "layernorm",
        lambda: functional.layer_norm(torch.randn(2, 3, 4), (3, 4), torch.randn(3, 4), torch.randn(3, 4)),
    ),
    ("layernorm", lambda: functional.layer_norm(torch.randn(2, 4), (4,), eps=0.1)),
    ("rmsnorm", lambda: functional.rms_norm(torch.randn(2, 4), (4,), torch.randn(4), eps=0.1)),
    ("attention", lambda: functional.scaled_dot_product_attention(Q, K, V, is_causal=True)),
    (
        "attention",
        lambda: functional.scaled_dot_product_attention(
            Q.repeat(1, 2, 1, 1), K, V, is_causal=True, enable_gqa=True
        ),
    ),
    *(
        (
            "cross_entropy",
            lambda r=r: functional.cross_entropy(torch.arange(12.0).view(4, 3), TARGET, reduction=r),
        )
        for r in ("none", "mean", "sum")
    ),
]


@pytest.mark.parametrize(("op", "call"), TAKEN)
def test_a_row_gives_what_the_original_gives(op: str, call: Callable[[], Tensor]) -> None:
    torch.manual_seed(0)
    expected = call()
    torch.manual_seed(0)
    with library(candidate(op)) as on, torch.no_grad():
        found = call()
        assert calls(on) == 1, on.report()
    torch.testing.assert_close(found, expected)


DECLINED: list[tuple[str, str, Callable[[], Any]]] = [
    ("softmax", "not over the last dimension", lambda: torch.softmax(torch.ones(3, 4), 0)),
    ("softmax", "not over the last dimension", lambda: torch.softmax(torch.tensor(1.0), 0)),
    ("softmax", "no kernel for softmax of float64 3x4 on cpu", lambda: torch.ones(3, 4).double().softmax(1)),
    ("sum", "not over the last dimension alone", lambda: torch.ones(3, 4).sum((0, 1))),
    ("sum", "into another type", lambda: torch.ones(3, 4).sum(1, dtype=torch.float64)),
    ("matmul", "scaled", lambda: torch.addmm(torch.ones(2), torch.ones(2, 2), torch.ones(2, 2), beta=2)),
    (
        "conv2d",
        "not a plain",
        lambda: functional.conv2d(torch.ones(1, 2, 4, 4), torch.ones(2, 1, 2, 2), groups=2),
    ),
    (
        "conv2d",
        "different strides",
        lambda: functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), None, (1, 2)),
    ),
    ("rmsnorm", "without eps", lambda: functional.rms_norm(torch.ones(2, 4), (4,))),
    ("rmsnorm", "over several", lambda: functional.rms_norm(torch.ones(2, 4), (2, 4), eps=1.0)),
    ("attention", "not plain causal", lambda: functional.scaled_dot_product_attention(Q, K, V)),
    (
        "attention",
        "not [batch, heads, length, dim] for all",
        lambda: functional.scaled_dot_product_attention(Q[:, :, :1], K, V, is_causal=True),
    ),
    (
        "attention",
        "not the default scale",
        lambda: functional.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=2.0),
    ),
    (
        "cross_entropy",
        "not rows of logits",
        lambda: functional.cross_entropy(torch.ones(4, 3), TARGET, label_smoothing=0.5),
    ),
]


@pytest.mark.parametrize(("op", "reason", "call"), DECLINED)
def test_what_a_row_has_no_words_for(op: str, reason: str, call: Callable[[], Any]) -> None:
    with library(candidate(op)) as on, torch.no_grad():
        call()
        assert calls(on) == 0
        assert any(reason in said for said in reasons(on)), on.report()


def test_every_row_is_tried() -> None:
    assert {op for op, _ in TAKEN} == {row.op for row in INTERFACES.values()} == set(FAMILIES)


def test_the_best_that_fits_is_picked_and_loaded_once() -> None:
    loaded = []

    class Functions(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            loaded.append(name)
            return lambda x: x * 0 + int(name)

    def near(elements: int, speedup: float) -> tuple[MeasuredCase, ...]:
        return (
            MeasuredCase(architecture="cpu", dtype="float32", shapes=((elements,),), speedup_low=speedup),
        )

    known = (
        candidate("softmax", "1", measured=near(16, 3)),
        candidate("softmax", "2", shapes=("...x1..8",), measured=near(16, 4)),
        candidate("softmax", "3", measured=near(16, 0.9)),
        candidate(
            "softmax", "4", measured=(MeasuredCase(architecture="9.0", dtype="float32", shapes=((16,),)),)
        ),
    )
    with library(*known, functions=Functions({"": None})) as on:
        for _ in range(2):
            assert torch.softmax(torch.ones(2, 8), -1)[0, 0] == 2
            assert torch.softmax(torch.ones(2, 9), -1)[0, 0] == 1
        assert loaded == ["2", "1"]
        assert calls(on) == 4


def test_one_that_does_not_load_makes_room_for_the_next() -> None:
    class Functions(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "fast":
                raise RuntimeError("no compiler here")
            return FAMILIES["softmax"]

    known = candidate("softmax", "fast", 3.0), candidate("softmax", "plain", 2.0)
    with library(*known, functions=Functions({"": None})) as on:
        for _ in range(2):
            torch.softmax(torch.ones(2, 8), -1)
        assert calls(on, kernel="plain") == 2
        assert not calls(on, kernel="fast")


def test_the_rules() -> None:
    slow = candidate("softmax", speedup=0.9)
    rounding = candidate(
        "softmax",
        measured=(
            MeasuredCase(
                architecture="cpu", dtype="float32", shapes=((1,),), speedup_low=9, precision="float16"
            ),
        ),
    )
    for one, rules, taken in (
        (slow, ANY, 0),
        (slow, Rules(least_elements=0, faster=False), 1),
        (rounding, ANY, 0),
        (rounding, Rules(least_elements=0, lower_precision=True), 1),
        (candidate("softmax"), Rules(least_elements=13), 0),
        (candidate("softmax"), Rules(least_elements=12), 1),
    ):
        with library(one, rules=rules) as on:
            torch.softmax(torch.ones(3, 4), -1)
            assert calls(on) == taken, rules


def test_a_kernel_that_rounds_at_one_type_is_taken_at_others() -> None:
    def at(dtype: str, precision: str) -> MeasuredCase:
        return MeasuredCase(
            architecture="cpu", dtype=dtype, shapes=((12,),), speedup_low=9, precision=precision
        )

    known = candidate(
        "softmax", dtypes=("float32", "float16"), measured=(at("float32", "float16"), at("float16", ""))
    )
    with library(known) as on:
        torch.softmax(torch.ones(3, 4), -1)
        assert calls(on) == 0
        torch.softmax(torch.ones(3, 4, dtype=torch.float16), -1)
        assert calls(on) == 1


@pytest.mark.slow
def test_a_shipped_kernel_in_cpp(tmp_path: Path) -> None:
    x = torch.randn(5, 33, requires_grad=True)
    expected = torch.softmax(x, -1)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    with override(device="cpu", root=tmp_path, faster=False, least_elements=0) as on:
        found = torch.softmax(x, -1)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], gradient)
        assert calls(on, kernel="softmax/cpp") == 1
    torch.testing.assert_close(found, expected)
    with override(device="cpu", root=tmp_path) as on:
        torch.softmax(torch.ones(300, 300), -1)
        assert calls(on) == 0, "it is slower than the original"
