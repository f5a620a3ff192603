"""References that cannot judge are found out, with figures; those that can are left alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch.nn import functional

from evaluators.records.problem import TOLERANCES
from evaluators.reference.loading import PROBLEMS, load_problem
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.running_reference import UnfitReference
from evaluators.reference.validation import differ_by_rounding, examine
from tests.evaluators.references import problem_of, session_of

CONFIGS = PROBLEMS.parents[1] / "configs" / "problem"
SHIPPED = sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.glob("level*/*.yaml"))
TRANSFORMER = OmegaConf.load(CONFIGS.parent / "suite" / "transformer.yaml").problems


def findings(
    function: Callable[..., Any], draw: Callable[[], list[Any]], tolerance: str = "kernelbench"
) -> list[str]:
    return examine(session_of(function, draw, tolerance=tolerance))


def matrix() -> torch.Tensor:
    return torch.randn(64, 128)


def examine_shipped(name: str, device: str) -> ReferenceModel:
    """As configured, at the size for the device; there is nothing to be found."""
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml"))
    assert isinstance(config, dict)
    del config["_target_"]
    problem = load_problem(**{str(key): value for key, value in config.items()}, device=device)
    reference = ReferenceModel(problem)
    assert examine(reference) == []
    return reference


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_problems_can_judge(name: str) -> None:
    reference = examine_shipped(name, "cpu")
    assert {"shifted", "small", "large", "uneven", "spikes", "constant rows"} <= {*reference.distributions}
    assert reference.untried == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMER)
def test_the_problems_of_language_models_can_judge(name: str) -> None:
    expected = {
        "transformer/embedding_bag": {"empty bags", "repeated indices"},
        "transformer/residual_layernorm": {"shifted", "small"},  # constant rows have no variance
        "transformer/skinny_linear": {"small", "constant rows"},  # shifted sums overflow in float16
    }
    others = {"shifted", "small", "constant rows"}
    assert expected.get(name, others) <= {*examine_shipped(name, "cpu").distributions}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_problems_can_judge_at_full_size(name: str) -> None:
    for _ in range(2):  # the second time the libraries are loaded
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.monotonic()
        examine_shipped(name, "cuda")
        took_s = time.monotonic() - start
    print(f"{name}: {took_s:.2f} s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")
    assert took_s < 6


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_long_softmax_is_judged_on_its_own_scale(tolerance: str) -> None:
    assert findings(softmax, lambda: [torch.randn(16, 65536)], tolerance) == []


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_an_output_that_is_always_zero_is_refused_by_every_rule(tolerance: str) -> None:
    def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        top = (x @ weight).max(1, keepdim=True).values
        return functional.gelu(top - top.mean(1, keepdim=True))

    (line,) = findings(reference, lambda: [matrix(), torch.randn(128, 32)], tolerance)
    assert line.startswith("zeros pass on every distribution (the largest output is 0,")


@pytest.mark.parametrize(
    ("reference", "draw", "says"),
    [
        (lambda x: x * 0 + 1, lambda: [matrix()], "constants"),
        (lambda x: (x * 0).sum(-1) + torch.arange(64.0), lambda: [matrix()], "the outputs for other inputs"),
        (lambda x: x + 1, lambda: [torch.ones(64)], ""),
        (lambda x: x, lambda: [matrix()], "the elements of input 0"),
        (lambda x: functional.dropout(x, training=False), lambda: [matrix()], "the elements of input 0"),
    ],
    ids=["constant", "row", "fixed_inputs", "identity", "dropout"],
)
def test_answers_that_need_no_computing_are_found(
    reference: Callable[..., Any], draw: Callable[[], list[Any]], says: str
) -> None:
    found = findings(reference, draw)
    if not says:
        assert found == [], "inputs that are the same in every draw are changed by us"
        return
    (line,) = found
    assert line.startswith(says) and "pass on every distribution (the largest output is" in line


AFFINE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(128))
        self.bias = nn.Parameter(torch.zeros(128))

    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(64, 128)]

def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize(
    ("expression", "sound"),
    [
        ("nn.functional.layer_norm(x, (128,), self.weight, self.bias)", True),
        ("x * self.weight + self.bias", False),
        ("x * self.weight", False),
    ],
)
def test_an_affine_function_of_the_input_is_tried(tolerance: str, expression: str, sound: bool) -> None:
    source = AFFINE.format(expression=expression)
    found = examine(ReferenceModel(problem_of(source, tolerance=tolerance)))
    assert (found == []) is sound
    assert sound or found[0].startswith("input 0 times a weight")


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize(
    ("reference", "draw"),
    [
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
        (torch.mean, lambda: [torch.randn(1_000_000)]),
        (lambda x: torch.fft.fft(x), lambda: [matrix()]),
        (lambda xs, more: xs[0] + more["y"], lambda: [[matrix(), matrix()], {"y": matrix()}]),
        (torch.isposinf, lambda: [matrix()]),
        (torch.isfinite, lambda: [matrix()]),
    ],
    ids=[
        *("matmul", "cross_entropy", "argmax", "gather", "mask", "tuple", "in_place", "sum", "infinite"),
        *("mean", "complex", "containers", "isposinf", "isfinite"),
    ],
)
def test_sound_references_are_left_alone(
    reference: Callable[..., Any],
    draw: Callable[[], list[Any]],
    tolerance: str,
    request: pytest.FixtureRequest,
) -> None:
    found = findings(reference, draw, tolerance)
    if request.node.callspec.id.startswith("containers"):
        assert len(found) == 1 and found[0].startswith("the outputs hardly depend on input 1")
    else:
        assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("strengths", [(2.0, 0.0), (0.0, 0.5), (1.0, 1e-9, 2.0), (0.5, 2.0)])
def test_an_input_that_hardly_matters_is_named(strengths: tuple[float, ...], tolerance: str) -> None:
    def reference(*inputs: torch.Tensor) -> torch.Tensor:
        return sum((s * x.tanh() for s, x in zip(strengths, inputs, strict=True)), torch.zeros(()))

    expected = [index for index, strength in enumerate(strengths) if strength < 0.5]
    lines = findings(reference, lambda: [torch.randn(100) for _ in strengths], tolerance)
    assert len(lines) == len(expected)
    for index, line in zip(expected, lines, strict=True):
        assert line.startswith(f"the outputs hardly depend on input {index}: the outputs for another input")


@pytest.mark.slow
def test_a_mask_that_is_all_true_in_every_draw_is_changed() -> None:
    def reference(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~mask, 0.0)

    session = session_of(reference, lambda: [matrix(), torch.ones(64, 128, dtype=torch.bool)])
    assert examine(session) == []
    assert {"all false", "true at random", "true prefixes"} <= {*session.distributions}
    assert session.untried == {}


def test_an_input_that_nothing_changes_is_named_as_what_a_kernel_may_ignore() -> None:
    def reference(x: torch.Tensor, only: torch.Tensor) -> torch.Tensor:
        return x.exp() + only.max()

    session = session_of(reference, lambda: [matrix(), torch.tensor([3, 3])])
    assert examine(session) == []
    assert session.untried["input 1"].startswith("equal in every draw")


@pytest.mark.slow
def test_numbers_among_the_inputs_are_named_and_may_not_differ_from_draw_to_draw() -> None:
    def reference(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.exp() * factor

    session = session_of(reference, lambda: [matrix(), 0.5])
    assert examine(session) == []
    assert "0.5; a kernel may rely on that" in session.untried["numbers and strings among the inputs"]
    with pytest.raises(UnfitReference, match="differ from draw to draw"):
        session_of(reference, lambda: [matrix(), float(torch.rand(()))])


@pytest.mark.slow
def test_an_input_that_matters_in_few_places_matters() -> None:
    def reference(x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:7], last, x[7:]]).exp()

    assert findings(reference, lambda: [torch.randn(1_000_000), torch.randn(1)]) == []


@pytest.mark.slow
def test_each_output_is_examined() -> None:
    (line,) = findings(lambda x: (x.exp(), x * 0), lambda: [matrix()])
    assert line.startswith("output 1: zeros pass")


@pytest.mark.slow
def test_outputs_without_elements_are_left_to_the_others() -> None:
    nothing = "there are no elements in its outputs to judge"
    assert findings(lambda x: x[:0], lambda: [matrix()]) == [nothing]
    assert findings(lambda x: (x[:0], x.exp()), lambda: [matrix()]) == []
    (line,) = findings(lambda x: (x[:0], x * 0), lambda: [matrix()])
    assert line.startswith("output 1: zeros pass")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unread", "more", "sound"),
    [
        (True, lambda x: torch.zeros_like(x), True),
        (True, lambda x: torch.zeros(8, dtype=torch.int32), True),
        (True, lambda x: x.clone(), True),
        (False, lambda x: torch.zeros_like(x), False),
        (True, lambda x: torch.ones_like(x), True),
        (True, lambda x: 1 + 2e-7 * torch.tanh(x), False),
    ],
)
def test_an_operators_output_that_is_constant_or_an_input_is_left_to_the_others(
    unread: bool, more: Callable[[torch.Tensor], torch.Tensor], sound: bool
) -> None:
    def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), more(x)

    session = session_of(reference, lambda: [matrix()])
    session.leaves_unread = unread
    assert (examine(session) == []) == sound
    assert ("output 1" in session.untried) == sound
    alone = session_of(lambda x: more(x) + 0, lambda: [matrix()])
    alone.leaves_unread = True
    assert examine(alone) != [], "it has to have others"


def test_inputs_that_belong_together_are_not_parted() -> None:
    """An index into a table whose rows are numbered from `first`: with another `first` it lies outside."""

    def draw() -> list[Any]:
        first = torch.randint(0, 1000, (1,)) * 10
        return [torch.randn(4, 16), first, first + torch.randperm(4)]

    assert findings(lambda table, first, index: table[index - first].exp(), draw) == []


def test_unfit_references_are_refused_with_a_reason() -> None:
    calls: list[int] = []

    def counts(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    with pytest.raises(UnfitReference, match="it keeps state"):
        session_of(counts, lambda: [matrix()])
    with pytest.raises(UnfitReference, match="the output contains a float"):
        session_of(lambda x: (x, 1.0), lambda: [matrix()])
    with pytest.raises(UnfitReference, match="an input contains a dtype"):
        session_of(lambda x, dtype: x.to(dtype), lambda: [matrix(), torch.float32])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_that_is_rounded_in_another_way_is_still_right(dtype: torch.dtype) -> None:
    """A library may choose another kernel for a tensor at another place: a few elements differ by one unit in
    the last place."""
    right = torch.rand(256, 256).add(1).to(dtype)
    other = right.clone()
    other[::16, ::16] *= 1 + torch.finfo(dtype).eps
    assert not torch.equal(other, right)
    assert differ_by_rounding([other], [right])
    assert not differ_by_rounding([right * (1 + 2 * torch.finfo(dtype).eps)], [right])
    assert not differ_by_rounding([right.float() * 1.0001], [right.float()])
