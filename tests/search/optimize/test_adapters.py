"""Library kernels are adapted to a model's problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evaluators.reference.loading import load_module, load_problem
from kernel_library.catalogue.entry import Entry
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.originals import ORIGINALS
from search.optimize.adapters import MARK, adapted, is_for, takes
from search.optimize.extraction.fragments import fragment_of, unified
from search.optimize.extraction.problems import extract
from search.optimize.extraction.traced_model import TracedModel
from tests.search.optimize.example_models import Mlp, rand
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.extraction.traced_models import at_shapes, chain, places, traced

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    return {each.id: each for each in FolderLibrary("nowhere").entries()}


def body(entry: Entry, made: TracedModel, *names: str) -> list[str] | None:
    """The body of the forward that is written for these calls."""
    found = fragment_of(made.graph, made.run, places(made, *names))
    kernel = adapted(entry, found, made.views)
    if kernel is None:
        return None
    after = kernel.source.rpartition("    def forward(self, ")[2].splitlines()
    return [line.strip() for line in after[1:] if line.strip()]


def test_an_operator_becomes_the_librarys_function(entries: dict[str, Entry]) -> None:
    made = traced(lambda x: torch.softmax(x.view(4, 6), -1), rand(2, 12))
    assert body(entries["softmax/cpp"], made, "_softmax") == [
        "view = x.reshape([4, 6])",
        "softmax = library_kernel(view)",
        "return softmax",
    ]
    norm = traced(nn.LayerNorm(8), rand(4, 8))
    assert body(entries["layernorm/cpp"], norm, "native_layer_norm") == [
        "native_layer_norm = library_kernel(x, weight, bias, 1e-05, 1)",
        "return native_layer_norm",
    ]
    linear = traced(nn.Linear(8, 4), rand(4, 8))
    assert "addmm = library_kernel(x, t).add_(bias)" in (body(entries["matmul/cpp"], linear, "addmm") or [])


@pytest.mark.parametrize(
    ("patterns", "right"),
    [
        (("*%2x4", "*x*"), True),
        (("*%4x4", "*x*"), False),
        (("*x4", "*x8"), False),
        (("*x4",), True),
        ((), True),
    ],
)
def test_unsupported_shapes_are_detected(
    entries: dict[str, Entry], tmp_path: Path, patterns: tuple[str, ...], right: bool
) -> None:
    """The shapes at the call, after the views, in all cases: with 16 and with 6 rows."""
    made = at_shapes(
        lambda x, y: torch.mm(x.view(2 * x.shape[0], 4), y.t()),
        (rand(8, 8), rand(3, 4)),
        (rand(3, 8), rand(3, 4)),
    )
    found = extract(profile_of(*made), made, tmp_path, most=1, gain=0.001)
    problem = load_problem("file", path=str(tmp_path / found.problems[0].file))
    entry = replace(entries["matmul/cpp"], shapes=patterns)
    fragment = fragment_of(made[0].graph, made[0].run, places(made[0], "mm"))
    unbound = unified([fragment, fragment_of(made[1].graph, made[1].run, places(made[1], "mm"))])
    assert unbound is not None
    kernel = adapted(entry, unbound[0], made[0].views)
    assert kernel is not None
    assert takes(entry, kernel, problem) is right
    broken = replace(kernel, source=kernel.source.replace("library_kernel(", "no_such_name("))
    assert takes(entry, broken, problem), "the shapes are unknown"


def test_it_computes_what_the_operator_does(entries: dict[str, Entry]) -> None:
    made = traced(lambda x: torch.softmax(x, -1), rand(4, 6))
    fragment = fragment_of(made.graph, made.run, places(made, "_softmax"))
    kernel = adapted(entries["softmax/cpp"], fragment, made.views)
    assert kernel is not None
    stub = kernel.source.replace(kernel.source.partition(MARK)[0], "import torch\n")
    for own in (
        "def softmax(x):\n    return x * 0 + 7\n",
        "class softmax(torch.nn.Module):\n    def forward(self, x):\n        return x * 0 + 7\n",
    ):
        space: dict[str, object] = {}
        exec(f"import torch\n{own}{stub}", space)
        assert space["ModelNew"]()(rand(2, 2)).tolist() == [[7.0, 7.0]] * 2  # type: ignore[operator]


def test_views_without_a_spelling_are_aten_operators(entries: dict[str, Entry]) -> None:
    made = traced(lambda x: torch.softmax(x.split([2, 4], 1)[1], -1), rand(4, 6))
    names = [call.name for call in made.run.calls]
    fragment = fragment_of(made.graph, made.run, tuple(range(len(names))))
    kernel = adapted(entries["softmax/cpp"], fragment, made.views)
    assert kernel is not None and "aten.split" in kernel.source
    stub = kernel.source.replace(kernel.source.partition(MARK)[0], "")
    space: dict[str, object] = {"torch": torch, "softmax": lambda x: torch.softmax(x, -1)}
    exec(stub, space)
    wanted = torch.softmax(rand(4, 6)[:, 2:], -1)
    assert torch.equal(space["ModelNew"]()(rand(4, 6)), wanted)  # type: ignore[operator]


def test_a_hand_written_rmsnorm_is_recognised(entries: dict[str, Entry]) -> None:
    weight = nn.Parameter(torch.ones(8))

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    made = traced(Norm(), rand(4, 8))
    kernel = adapted(entries["rmsnorm/triton"], chain(made), made.views)
    assert kernel is not None and "return library_kernel(x, weight, 1e-06)" in kernel.source
    assert adapted(entries["softmax/cpp"], chain(made), made.views) is None


def test_only_causal_attention_is_adapted(entries: dict[str, Entry]) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    inputs = [rand(1, 2, 8, 4), rand(1, 2, 8, 4) + 1, rand(1, 2, 8, 4) + 2]
    assert (
        "library_kernel(x, y, z)"
        in (body(entries["attention/triton"], traced(model, *inputs), ATTENTION) or [""])[0]
    )
    plain = traced(nn.functional.scaled_dot_product_attention, *inputs)
    assert body(entries["attention/triton"], plain, ATTENTION) is None


def test_several_calls_are_not_adapted(entries: dict[str, Entry]) -> None:
    made = traced(Mlp(), rand(4, 8))
    assert adapted(entries["matmul/cpp"], chain(made, most=2), made.views) is None


def test_the_language_must_fit_the_device(entries: dict[str, Entry]) -> None:
    assert is_for(entries["softmax/cpp"], "cpu") and not is_for(entries["softmax/cpp"], "cuda")
    assert is_for(entries["softmax/triton"], "cuda") and not is_for(entries["softmax/triton"], "cpu")


IMAGES = rand(2, 4, 9, 8)
SDPA = functional.scaled_dot_product_attention
HEADS = [rand(2, 4, 6, 8) + place for place in range(3)]
GROUPED = [HEADS[0], *(each[:, :2].clone() for each in HEADS[1:])]


WINDOWS = rand(5, 4, 3, 3)
FACTORS = [rand(4), rand(3, 2), rand(2, 4)]
CALLS: list[tuple[str, str, Callable[..., torch.Tensor], list[torch.Tensor], bool]] = [
    *(
        ("_softmax", "softmax/cpp", partial(torch.softmax, dim=dim), [rand(2, 3, 4)], True)
        for dim in (1, 2, -2)
    ),
    ("sum", "sum_rows/triton", lambda x: x.sum(0), [rand(2, 3, 4)], True),
    ("sum", "sum_rows/triton", lambda x: x.sum(-2, keepdim=True), [rand(2, 3, 4)], True),
    ("sum", "sum_rows/triton", lambda x: x.sum((0, 1)), [rand(2, 3, 4)], False),
    ("sum", "sum_rows/triton", lambda x: x.sum(-1, dtype=torch.float64), [rand(2, 3)], False),
    ("addmm", "matmul/cpp", torch.addmm, FACTORS, True),
    ("addmm", "matmul/cpp", partial(torch.addmm, beta=2), FACTORS, False),
    *(
        ("convolution", "conv2d/cpp", partial(functional.conv2d, **options), [IMAGES, WINDOWS], fits)
        for options, fits in (
            ({"stride": 2, "padding": 1}, True),
            ({"dilation": 2}, False),
            ({"stride": (1, 2)}, False),
            ({"padding": (1, 0)}, False),
        )
    ),
    ("convolution", "conv2d/cpp", partial(functional.conv2d, groups=4), [IMAGES, WINDOWS[:4, :1]], False),
    ("convolution", "conv2d/cpp", functional.conv_transpose2d, [IMAGES, rand(4, 5, 3, 3)], False),
    ("convolution", "conv2d/cpp", functional.conv1d, [rand(2, 4, 9), rand(5, 4, 3)], False),
    *(
        (ATTENTION, "attention/triton", partial(SDPA, is_causal=True, scale=scale), HEADS, True)
        for scale in (None, 0.7, 8**-0.5)
    ),
]


@pytest.mark.parametrize(("name", "entry", "model", "inputs", "fits"), CALLS)
def test_a_call_that_the_function_cannot_express_is_not_adapted(
    name: str,
    entry: str,
    model: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    fits: bool,
    entries: dict[str, Entry],
) -> None:
    """What is adapted computes the same, with PyTorch's own computation as the library's function."""
    made = traced(model, *inputs)
    fragment = fragment_of(made.graph, made.run, places(made, name))
    kernel = adapted(entries[entry], fragment, made.views)
    assert (kernel is not None) is fits
    if kernel is not None:
        own: dict[str, Any] = {
            "torch": torch,
            entries[entry].function: ORIGINALS[entries[entry].op].function,
        }
        exec(kernel.source.partition(MARK)[2], own)
        torch.testing.assert_close(own["ModelNew"]()(*inputs), model(*inputs))


TOKENS = [rand(2, 8, 1, 128), rand(2, 2, 40, 128) + 1, rand(2, 2, 40, 128) + 2]
WIDE = [rand(2, 8, 40, 128), *TOKENS[1:]]
ANY_SHAPES = {
    "grouped_query_attention/cuda": ("bxhxnx128", "bxkxnx128", "bxkxnx128"),
    "decode_attention/triton": ("bxhx1xd=1..256", "bxkxnxd", "bxkxnxd", "b"),
}
"""In place of the measured shapes that the cards name."""


@pytest.mark.parametrize(
    ("entry", "causal", "inputs", "right"),
    [
        ("attention/triton", True, HEADS, True),
        ("attention/triton", True, GROUPED, False),
        ("grouped_query_attention/cuda", True, WIDE, True),
        ("grouped_query_attention/cuda", True, GROUPED, False),  # not heads of 128
        ("decode_attention/triton", False, TOKENS, True),
        ("decode_attention/triton", False, WIDE, False),  # more than one query
    ],
)
def test_attention_is_adapted_for_the_shapes_that_a_kernel_takes(
    entry: str,
    causal: bool,
    inputs: list[torch.Tensor],
    right: bool,
    entries: dict[str, Entry],
    tmp_path: Path,
) -> None:
    made = traced(lambda q, k, v: SDPA(q, k, v, is_causal=causal, enable_gqa=True), *inputs)
    found = extract(profile_of(made), [made], tmp_path, most=1, gain=0.001)
    problem = load_problem("file", path=str(tmp_path / found.problems[0].file))
    fragment = fragment_of(made.graph, made.run, places(made, ATTENTION))
    known = replace(entries[entry], shapes=ANY_SHAPES.get(entry, entries[entry].shapes))
    kernel = adapted(known, fragment, made.views)
    assert kernel is not None
    assert takes(known, kernel, problem) is right


def test_a_decode_kernel_is_told_that_the_cache_is_full(entries: dict[str, Entry]) -> None:
    made = traced(lambda q, k, v: SDPA(q, k, v, scale=0.3, enable_gqa=True), *TOKENS)
    fragment = fragment_of(made.graph, made.run, places(made, ATTENTION))
    kernel = adapted(entries["decode_attention/triton"], fragment, made.views)
    assert kernel is not None
    reference = load_module(load_problem("transformer/decode_attention").source, {})
    own: dict[str, Any] = {"torch": torch, "ModelNew": reference.Model}
    adaptation = kernel.source.partition(MARK)[2]
    exec(adaptation, own)
    torch.testing.assert_close(own["ModelNew"]()(*TOKENS), SDPA(*TOKENS, scale=0.3, enable_gqa=True))
    causal = traced(lambda q, k, v: SDPA(q, k, v, is_causal=True, enable_gqa=True), *TOKENS)
    fragment = fragment_of(causal.graph, causal.run, places(causal, ATTENTION))
    assert adapted(entries["decode_attention/triton"], fragment, causal.views) is None


LABELS = torch.tensor([1, 4, -100, 0, 2, 3, -100, 1])


@pytest.mark.parametrize(("how", "fits"), [({}, True), ({"reduction": "sum"}, True), ({"weight": 1}, False)])
def test_a_cross_entropy_is_a_mean_of_the_librarys_losses(
    how: dict[str, Any], fits: bool, entries: dict[str, Entry]
) -> None:
    if "weight" in how:
        how = {"weight": torch.rand(5)}

    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x.float(), labels, **how)

    x = rand(8, 5)
    made = traced(loss, x.bfloat16(), LABELS)
    kernel = adapted(entries["cross_entropy/triton"], chain(made), made.views)
    assert (kernel is not None) is fits
    if kernel is not None:
        own: dict[str, Any] = {"torch": torch}
        own["cross_entropy"] = lambda x, labels, ignored: functional.cross_entropy(
            x, labels, reduction="none", ignore_index=ignored
        )
        exec(kernel.source.partition(MARK)[2], own)
        torch.testing.assert_close(own["ModelNew"]()(x.bfloat16(), LABELS), loss(x.bfloat16(), LABELS))
