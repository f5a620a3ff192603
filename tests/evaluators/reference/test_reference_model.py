"""A reference that answers on every distribution, and what it says of a kernel's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from evaluators.reference.accuracy.comparison import NO_SHIFT, OutputComparison
from evaluators.reference.accuracy.float64 import DoubleReference
from evaluators.reference.answer import Draw, benchmark_rules
from evaluators.reference.gradients import with_gradients
from evaluators.reference.inputs import usable_distributions
from evaluators.reference.inputs.input_distributions import LARGEST
from evaluators.reference.inputs.usable_distributions import open_distributions
from evaluators.reference.reference_model import ReferenceModel
from tests.evaluators.references import problem_of, session_of


def opened(function: Callable[..., Any], draw: Callable[[], list[Any]], **rules: str) -> ReferenceModel:
    session = session_of(function, draw, **rules)
    open_distributions(session)
    return session


def matrix() -> torch.Tensor:
    return torch.randn(64, 128)


def judged(session: ReferenceModel, kernel: Callable[..., Any]) -> dict[str, OutputComparison]:
    """What a kernel gets on the problem's own inputs and on every distribution."""
    with torch.no_grad():
        draw = Draw.fresh()
        found = {"": session.judge([kernel(*session.draw(draw.seed))], session.answer(draw))}
        for name in session.distributions:
            inputs = session.draw(session.seed_on(name), name)
            found[name] = session.check_on([kernel(*inputs)], name)
    return found


def wrong_on(session: ReferenceModel, kernel: Callable[..., Any]) -> set[str]:
    return {name for name, found in judged(session, kernel).items() if found.problem}


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


RULES = ("strict", "kernelbench", "kernelbench_v02")


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", RULES)
def test_the_reference_itself_and_another_order_of_sums_are_right(tolerance: str) -> None:
    def other(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.flip(-1).cumsum(-1)[..., -1:]

    session = opened(softmax, lambda: [matrix()], tolerance=tolerance)
    assert len(session.distributions) + len(session.untried) == 19
    assert session.untried.keys() <= (
        {"negative", "large", "largest"} if tolerance == "kernelbench" else set()
    )
    assert wrong_on(session, softmax) == set()
    assert wrong_on(session, other) == set()


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", RULES)
def test_softmaxes_that_are_right_only_on_the_benchmarks_numbers(tolerance: str) -> None:
    def no_maximum(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)

    def tail_left_out_of_the_maximum(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x[..., :-1].amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def maximum_from_zero(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True).clamp(min=0))
        return e / e.sum(-1, keepdim=True)

    session = opened(softmax, lambda: [matrix()], tolerance=tolerance)
    for kernel, where in (
        (no_maximum, {"spikes", "spikes at the edge", "large"}),
        (tail_left_out_of_the_maximum, {"spikes at the edge"}),
        (maximum_from_zero, {"negative"}),
    ):
        if tolerance == "kernelbench":  # rounded to float16, inputs of these two may decide the answer
            where -= {"large", "negative"} - {*session.distributions}
        found = wrong_on(session, kernel)
        assert "" not in found, "on the problem's own inputs it is right"
        assert where <= found


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", RULES)
def test_a_layer_norm_that_does_not_normalise(tolerance: str) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[1:])

    def first_half(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x[:, : x.shape[1] // 2], 1, correction=0, keepdim=True)
        return (x - mean) * (variance + 1e-5).rsqrt()

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5)

    session = opened(norm, lambda: [torch.randn(4, 65536)], tolerance=tolerance)
    assert {"shifted", "large", "small", "uneven"} <= wrong_on(session, lambda x: x)
    assert "uneven" in wrong_on(session, first_half)
    assert wrong_on(session, by_hand) == set()


@pytest.mark.slow
def test_what_infinities_come_to_in_products_is_left_to_the_kernel() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask, -1) @ v

    def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5 + mask
        halves = [torch.softmax(each, -1) for each in scores.chunk(2, -1)]
        sums = torch.stack([each.logsumexp(-1) for each in scores.chunk(2, -1)])
        parts = [part @ each for part, each in zip(halves, v.chunk(2, 1), strict=True)]
        return sum(part * share[..., None] for part, share in zip(parts, sums.softmax(0), strict=True))

    def draw() -> list[Any]:
        return [torch.randn(4, 64, 16), torch.randn(4, 64, 16), torch.randn(4, 64, 16), torch.randn(64, 64)]

    for _ in range(5):  # one draw in twenty has infinities that meet, and is not used
        session = session_of(attention, draw)
        session.has_products = True
        open_distributions(session)
        if "infinite" in session.distributions:
            break
    assert {"infinite", "NaN", "masked"} <= {*session.distributions}
    assert session.distributions["masked"].only == {3}
    assert wrong_on(session, by_hand) == set()
    assert wrong_on(session, online) == {"masked"}, "half a row that is masked wholly makes all of it NaN"


@pytest.mark.slow
def test_attention_by_fused_multiply_adds_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores, scale = q.float() @ k.float().mT, math.log2(math.e) / 4
        most = scores.amax(-1, keepdim=True) * scale
        weights = (scores.double() * scale - most.double()).float().exp2()  # rounded once, as by an FMA
        return ((weights.bfloat16().float() @ v.float()) / weights.sum(-1, keepdim=True)).bfloat16()

    def counted() -> ReferenceModel:
        session = session_of(attention, lambda: [torch.randn(4, 64, 16) for _ in "qkv"], dtype="bfloat16")
        session.count_work()
        open_distributions(session)
        return session

    session = counted()
    assert session.has_softmax
    assert LARGEST in session.distributions
    assert wrong_on(session, flash) == set()
    monkeypatch.setattr(usable_distributions, "SOFTMAX_FAR", None)
    assert wrong_on(counted(), flash) == {LARGEST}


@pytest.mark.slow
def test_an_infinity_in_a_product_changes_only_its_row_and_column() -> None:
    def spreads(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b + 0 * a.sum()

    def zeroes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(a.isfinite().all(), a @ b, 0.0)

    session = session_of(torch.matmul, lambda: [torch.randn(512, 64), torch.randn(64, 512)])
    session.has_products = True
    open_distributions(session)
    assert wrong_on(session, spreads) == {"infinite", "NaN"}
    assert wrong_on(session, zeroes) == {"infinite", "NaN"}
    session.has_convolutions = True
    session._kept.clear()
    assert wrong_on(session, spreads) == set(), "a convolution may spread it over a tile"
    assert wrong_on(session, zeroes) == {"infinite", "NaN"}


@pytest.mark.filterwarnings("error")
def test_an_output_of_a_product_may_be_expanded() -> None:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).sum(-1, keepdim=True).expand(-1, 3)

    session = session_of(repeated, lambda: [torch.randn(16, 16)])
    session.has_products = True
    open_distributions(session)
    assert wrong_on(session, repeated) == set()


def no_memory() -> Any:
    raise torch.OutOfMemoryError


def test_what_a_rounding_decides_is_judged_by_this_very_answer() -> None:
    """Two largest scores that are nearly equal: of another draw no rounding moves the softmax so far."""
    tied = torch.randn(64, 128) * 2**14
    tied[:, 1] = tied[:, 0] = tied.amax(-1) + 2**13

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * torch.tensor([1.0, 1 + 2.0**-23] * 64), -1)

    session = session_of(softmax, lambda: [tied])
    answer = session.answer(Draw.fresh())
    elsewhere = replace(answer, shifts=[NO_SHIFT])
    assert session.judge([other(tied)], elsewhere).problem
    assert not session.judge_draw([other(tied)], elsewhere, own=True).problem
    wrong = other(tied)
    wrong[0, 5] += 0.1
    assert session.judge_draw([wrong], elsewhere, own=True).problem
    full = replace(elsewhere, shifts_here=no_memory)
    assert session.judge_draw([wrong], full, own=True).problem


@pytest.mark.slow
def test_lower_precision_that_is_allowed_is_right_everywhere() -> None:
    def half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.half().double() @ b.half().double()).float()

    def bfloat(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.bfloat16().double() @ b.bfloat16().double()).float()

    def draw() -> list[Any]:
        return [matrix(), torch.randn(128, 96) / 10]

    session = opened(torch.matmul, draw, precision="float16")
    assert {"largest", "smallest", "shifted", "outlier"} <= {*session.distributions}
    assert wrong_on(session, half) == set()
    assert "" in wrong_on(session, bfloat)
    assert wrong_on(opened(torch.matmul, draw, tolerance="kernelbench"), half) == set()
    assert "" in wrong_on(opened(torch.matmul, draw), half)
    wide = opened(torch.matmul, draw, precision="bfloat16")
    assert wrong_on(wide, bfloat) == set()
    assert wrong_on(wide, half) == {"largest", "smallest"}, "bfloat16 holds larger and smaller numbers"


@pytest.mark.slow
def test_parts_of_a_sum_may_be_rounded_where_no_sum_is_too_large() -> None:
    def halfway(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first = (a[:, :64].float() @ b[:64].float()).half()
        return (first.float() + a[:, 64:].float() @ b[64:].float()).half()

    def draw() -> list[Any]:
        return [5 * matrix().half(), 5 * torch.randn(128, 96).half()]

    reasons = set()
    for _ in range(8):
        session = session_of(torch.matmul, draw, dtype="float16")
        session.has_products = True
        open_distributions(session)
        session.change_weights(session.full_change(padded=True), alike=True)
        assert wrong_on(session, halfway) == set()
        reasons.add(session.untried["large"])
    assert reasons == {"sums of products are too large for the type there"}


@pytest.mark.parametrize("recurrent", [False, True])
def test_float64_is_without_cudnn_but_for_recurrent_layers(recurrent: bool) -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 4) if recurrent else nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, torch.backends.cudnn.enabled))
            return x

    seen: list[tuple[torch.dtype, bool]] = []
    import torch.testing._internal.common_utils  # from here on PyTorch's flags cannot be set by assignment

    eager, x = Seen(), torch.ones(2, 4)
    DoubleReference(eager).run([x], changes_inputs=False)
    eager(x)
    assert seen == [(torch.float64, recurrent), (torch.float32, True)]


@pytest.mark.parametrize("backend", ["cudnn", "efficient", "flash", "flash_attention_for_cpu"])
@pytest.mark.parametrize("heads", [4, 2])
def test_backends_of_attention_are_its_formula_in_float64(backend: str, heads: int) -> None:
    operator = f"_scaled_dot_product_{backend}".removesuffix("_attention_for_cpu") + "_attention"
    operator += "_for_cpu" * backend.endswith("cpu")
    between = (None, True) if backend in ("cudnn", "efficient") else ()

    class Attention(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            of = getattr(torch.ops.aten, operator)
            return of(query, key, value, *between, 0.0, True, scale=0.3)[0]  # type: ignore[no-any-return]

    query = torch.randn(2, 4, 6, 8)
    key, value = torch.randn(2, heads, 6, 8), torch.randn(2, heads, 6, 8)
    source = f"torch.ops.aten.{operator}"
    (found,), _ = DoubleReference(Attention(), source=source).run([query, key, value], changes_inputs=False)
    leaves = [each.double().requires_grad_() for each in (query, key, value)]
    q, k, v = leaves[0], *(each.repeat_interleave(4 // heads, 1) for each in leaves[1:])
    scores = (q @ k.mT * 0.3).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))
    wanted = scores.softmax(-1) @ v
    torch.testing.assert_close(found, wanted.detach())
    trained, upstream = with_gradients(Attention()), torch.randn(2, 4, 6, 8)
    reference = DoubleReference(trained, source=source)
    (_, *gradients), _ = reference.run([query, key, value, [upstream]], changes_inputs=False)
    for ours, theirs in zip(gradients, torch.autograd.grad(wanted, leaves, upstream.double()), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_recurrence_with_a_state_of_zeros_runs_in_float64() -> None:
    def recurrence(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[0], x.shape[1] // 2)
        for part in x.split(x.shape[1] // 2, 1):
            state = torch.tanh(part + state)
        return state

    session = opened(recurrence, lambda: [matrix()])
    assert session.is_exact
    assert all(found.eager_error > 0 for name, found in judged(session, recurrence).items() if not name)


@pytest.mark.slow
def test_without_float64_answers_are_not_called_exact() -> None:
    def single(x: torch.Tensor) -> torch.Tensor:
        return (x @ torch.ones(128, 128, dtype=torch.float32)).tanh()

    session = opened(single, lambda: [matrix() / 100])
    assert not session.is_exact
    assert wrong_on(session, lambda x: (x.double() @ torch.ones(128, 128).double()).tanh().float()) == set()
    assert "" in wrong_on(session, lambda x: (x.half().float() @ torch.ones(128, 128)).tanh())


def test_a_reference_that_changes_its_inputs_answers_with_them() -> None:
    session = opened(lambda x: x.mul_(2).sum(-1), lambda: [matrix()])
    assert session.changed_inputs == [0]
    draw = Draw.fresh()
    with torch.no_grad():
        x = session.draw(draw.seed)[0]
        assert not session.judge([(x * 2).sum(-1), x * 2], session.answer(draw)).problem
        assert session.judge([(x * 2).sum(-1), x], session.answer(draw)).problem


def test_a_reference_that_draws_numbers_is_answered_with_the_same_ones() -> None:
    def dropout(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.5, training=True)

    session = opened(dropout, lambda: [matrix()])
    assert session.draws_numbers and not session.is_exact
    draw = Draw.fresh()
    x = session.draw(draw.seed)[0]
    torch.manual_seed(session.call_seed(draw.seed))
    assert not session.judge([dropout(x)], session.answer(draw)).problem
    assert session.judge([dropout(x)], session.answer(draw)).problem, "other numbers"


MASKS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.ones(128))

    def forward(self, x):
        return x * torch.sqrt(self.log_scale)

def get_inputs():
    return [torch.randn(64, 128)]

def get_init_inputs():
    return []
"""


def test_weights_keep_their_signs_where_the_reference_cannot_bear_others() -> None:
    session = ReferenceModel(problem_of(MASKS))
    open_distributions(session)
    assert not session.signed_weights
    before = session.eager.log_scale.clone()
    session.change_weights(session.full_change(), alike=True)
    changed = session.eager.log_scale
    assert (changed > 0).all() and changed.unique().numel() > 120
    assert torch.equal(session.double.module.log_scale, changed.double())
    session.restore_weights()
    assert torch.equal(session.eager.log_scale, before)


@pytest.mark.slow
def test_answers_are_cached_if_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return torch.tanh(x)

    session = opened(counted, lambda: [matrix()])
    name, before = next(iter(session.distributions)), 0
    for room, expected in ((2.0**30, [0, 0]), (0.0, None)):
        monkeypatch.setattr(ReferenceModel, "_room", lambda self, room=room: room)
        session.change_weights(session.full_change(), alike=True)
        session.check_on([matrix()], name)
        counts = []
        for _ in range(2):
            before = len(runs)
            session.check_on([matrix()], name)
            counts.append(len(runs) - before)
        session.restore_weights()
        if expected is not None:
            assert counts == expected
        session._kept.clear()


def test_the_benchmarks_own_rule_is_recorded_next_to_ours() -> None:
    session = opened(lambda x: x.tanh(), lambda: [matrix()])
    draw = Draw.fresh()
    x, answer = session.draw(draw.seed)[0], session.answer(draw)
    assert benchmark_rules([x.tanh()], answer) == {"kernelbench": True, "kernelbench_v02": True}
    off = benchmark_rules([x.tanh() + 2e-3], answer)
    assert off == {"kernelbench": True, "kernelbench_v02": False}
