"""Targets become problems: their code, their inputs, and which are extracted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evaluators.reference.loading import load_module, load_problem, make_inputs, own_dtype
from search.optimize.extraction.distributions import DRAWN, distribution_of
from search.optimize.extraction.problems import extract
from search.optimize.extraction.record import ExtractedProblem, Extraction
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.installation.placement import assign_places
from search.optimize.profiling.chains import find_chains
from search.optimize.profiling.record import Bound, Profile, SiteTime, Target, TargetCase
from search.optimize.profiling.targets import common_site, merge_shapes
from tests.search.optimize.example_models import Mlp, rand
from tests.search.optimize.extraction.traced_models import at_shapes, traced


def profile_of(*traced_models: TracedModel, ms: float = 1.0, floor_ms: float = 0.1) -> Profile:
    """A profile in which all calls take `ms` and could take `floor_ms`, at each of the model's shapes."""
    weights = [each.model.weight for each in traced_models]
    targets = merge_shapes([targets_of(each, ms=ms, floor_ms=floor_ms) for each in traced_models], weights)
    calls = [len(each.run.calls) for each in traced_models]
    return Profile(
        model="tiny",
        device="cpu",
        device_name="test",
        dtype="float32",
        backward=False,
        torch="2",
        iterations=1,
        wall_ms=ms * sum(weight * own for weight, own in zip(weights, calls, strict=True)),
        kernels=0,
        operators=tuple(each for each in targets if not each.is_chain),
        chains=tuple(each for each in targets if each.is_chain),
    )


def targets_of(made: TracedModel, *, ms: float, floor_ms: float) -> list[Target]:
    groups = [(place,) for place in range(len(made.run.calls))]
    groups += [each.places for each in find_chains(made.run)]
    by_operators: dict[tuple[str, ...], dict[tuple[str, ...], list[tuple[int, ...]]]] = {}
    for group in groups:
        calls = [made.run.calls[place] for place in group]
        own = by_operators.setdefault(tuple(call.operator for call in calls), {})
        own.setdefault(tuple(call.arguments for call in calls), []).append(group)
    targets = []
    for operators, cases in by_operators.items():
        listed = []
        for arguments, own_groups in cases.items():
            site = common_site([made.run.calls[place].site for place in own_groups[0]])
            time_ms = ms * len(operators) * len(own_groups)
            listed.append(
                TargetCase(
                    arguments=arguments,
                    calls=len(own_groups),
                    time_ms=time_ms,
                    floor_ms=floor_ms * len(own_groups),
                    bytes=1,
                    operations=0,
                    dtype="float32",
                    bound=Bound.MEMORY,
                    sites={site: SiteTime(calls=len(own_groups), time_ms=time_ms)},
                )
            )
        kind = "chain" if len(operators) > 1 else made.run.calls[groups[0][0]].kind.value
        if len(operators) == 1:
            kind = next(c.kind.value for c in made.run.calls if c.operator == operators[0])
        targets.append(Target(operators=operators, kind=kind, cases=tuple(listed)))
    return targets


class Two(nn.Module):
    """Two equal MLPs and one of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(), Mlp()])
        self.fc, self.scale = nn.Linear(8, 16), nn.Parameter(torch.full((16,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return nn.functional.gelu(self.fc(x)) * self.scale


def test_the_problem_is_the_models_code_with_its_own_inputs(tmp_path: Path) -> None:
    made = traced(Two(), rand(4, 8))
    found = extract(profile_of(made), [made], tmp_path, most=8, gain=0.001)
    problem = next(each for each in found.problems if each.target == "addmm + gelu")
    assert (len(problem.places), problem.exact) == (2, True)
    assert {place.site for place in problem.places} == {"blocks.0", "blocks.1"}
    text = (tmp_path / problem.file).read_text()
    assert "class Model(nn.Module):\n    def forward(self, x, weight, bias):\n" in text
    assert "WEIGHT = (32, 8)" in text and "blocks.* x2" in text and "get_cases" not in text
    opened = load_problem("file", path=str(tmp_path / problem.file))
    x, weight, bias = make_inputs(load_module(opened.source, {}), seed=0, device="cpu", dtype="float32")
    assert (x.shape, weight.shape, bias.shape) == ((4, 8), (32, 8), (32,))
    own = made.model.module.blocks[0].fc.weight.detach()  # type: ignore[index, union-attr]
    assert float(weight.std()) == pytest.approx(float(own.std()), rel=0.3)


def test_the_elementwise_part_of_a_matmul_chain_is_a_problem_too(tmp_path: Path) -> None:
    class Swish(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner = self.fc(x)
            return inner * torch.sigmoid(inner) + 1

    made = traced(Swish(), rand(4, 8))
    found = extract(profile_of(made), [made], tmp_path, most=8, gain=0.001)
    searched = [each.target for each in found.problems if each.searched]
    assert searched == ["addmm + sigmoid + mul.Tensor + add.Tensor", "sigmoid + mul.Tensor + add.Tensor"]
    both = {each: each.places for each in found.problems}
    larger, smaller = both
    assert assign_places({larger.name: 1.0, smaller.name: 2.0}, found.problems) == {smaller: smaller.places}


def test_a_new_shape_is_a_case_and_new_code_a_problem(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.exp(), y.exp(), torch.softmax(x, -1), torch.softmax(x, 0)

    made = traced(model, rand(4, 8), rand(2, 3))
    found = extract(profile_of(made), [made], tmp_path, most=8, gain=0.001)
    by_target: dict[str, list[ExtractedProblem]] = {}
    for each in found.problems:
        by_target.setdefault(each.target, []).append(each)
    assert len(by_target["_softmax"]) == 2
    [exp] = by_target["exp"]
    cases = load_problem("file", path=str(tmp_path / exp.file)).cases
    assert [dict(case.sizes) for case in cases] == [{"X": (4, 8)}, {"X": (2, 3)}]
    assert [case.weight for case in cases] == [0.5, 0.5]


def test_places_at_several_shapes_are_cases_of_one_problem(tmp_path: Path) -> None:
    made = at_shapes(lambda x: torch.softmax(x.exp(), -1), (rand(4, 8),), (rand(6, 8),))
    found = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001)
    [chain] = found.problems
    assert [(each.shape, each.calls, each.time_ms) for each in chain.places] == [
        (0, (0, 1), 1.0),
        (1, (0, 1), 1.0),
    ]
    assert chain.exact and chain.ceiling == pytest.approx(20.0)
    problem = load_problem("file", path=str(tmp_path / chain.file))
    assert [dict(case.sizes) for case in problem.cases] == [{"X": (4, 8)}, {"X": (6, 8)}]
    assert "2 calls in forwards at 2 shapes of its inputs" in problem.source
    found.write(tmp_path / "extraction.json")
    assert Extraction.read(tmp_path / "extraction.json") == found


def test_a_size_that_differs_between_shapes_is_inferred(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.view(x.shape[0] * 2, 4), x[:2].view(4, 4)).tanh()

    made = at_shapes(model, (rand(4, 8),), (rand(6, 8),))
    [problem] = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001).problems
    assert (
        problem.target == "mm + tanh" and problem.exact and [each.shape for each in problem.places] == [0, 1]
    )
    opened = load_problem("file", path=str(tmp_path / problem.file))
    assert "reshape([-1, 4])" in opened.source and "reshape([4, 4])" in opened.source
    assert [dict(case.sizes) for case in opened.cases] == [{"X": (4, 8)}, {"X": (6, 8)}]
    [alone] = extract(profile_of(made[0]), made[:1], tmp_path, most=8, gain=0.001).problems
    assert "reshape([8, 4])" in (tmp_path / alone.file).read_text(), "one shape has its sizes"


def test_two_inferred_sizes_make_two_problems(tmp_path: Path) -> None:
    """Attention splits heads with a fixed batch size and an inferred length."""
    made = at_shapes(
        lambda x: x.view(x.shape[0], -1, 4).transpose(1, 2).exp(), (rand(2, 24),), (rand(6, 24),)
    )
    [problem] = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001).problems
    assert problem.exact and {each.shape for each in problem.places} == {0, 1}
    assert "reshape([-1, 6, 4])" in (tmp_path / problem.file).read_text()


def test_a_product_of_four_dimensions_is_one_problem_at_two_batches(tmp_path: Path) -> None:
    """PyTorch expands the factors to the sizes they already have."""
    made = at_shapes(lambda x: torch.softmax(x @ x.mT, -1), (rand(2, 3, 4, 5),), (rand(6, 3, 4, 5),))
    [problem] = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001).problems
    assert problem.target == "bmm + _softmax" and {each.shape for each in problem.places} == {0, 1}
    assert "expand" not in (tmp_path / problem.file).read_text(), "it changes no size"


def test_a_group_norm_takes_its_sizes_from_its_input(tmp_path: Path) -> None:
    made = at_shapes(nn.GroupNorm(2, 4), (rand(1, 4, 3, 3),), (rand(2, 4, 5, 3),))
    [problem] = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001).problems
    assert problem.exact and [each.shape for each in problem.places] == [0, 1]
    assert "functional.group_norm(x, 2, weight, bias, 1e-05)" in (tmp_path / problem.file).read_text()
    own = made[0].fragment(problem.places[0]).code({})
    assert own[0].endswith("(x, weight, bias, x.shape[0], 4, x.shape[2:].numel(), 2, 1e-05)")


def test_code_that_differs_in_two_sizes_is_two_problems(tmp_path: Path) -> None:
    inputs = [(rand(4, 8),), (rand(8, 4),)]
    made = at_shapes(lambda x: x.view(x.shape[0] // 2, 64 // x.shape[0]).exp(), *inputs)
    found = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001)
    assert [[place.shape for place in each.places] for each in found.problems] == [[0], [1]]


def test_inputs_are_laid_out_as_those_of_their_shape(tmp_path: Path) -> None:
    inputs = [(rand(2, 3, length).transpose(1, 2),) for length in (4, 6)]
    made = at_shapes(lambda x: x.exp(), *inputs)
    [exp] = extract(profile_of(*made), made, tmp_path, most=8, gain=0.001).problems
    problem = load_problem("file", path=str(tmp_path / exp.file))
    for case, (own,) in zip(problem.cases, inputs, strict=True):
        module = load_module(problem.source, {**problem.overrides, **case.sizes})
        [x] = make_inputs(module, seed=0, device="cpu", dtype="float32")
        assert (x.shape, x.stride()) == (own.shape, own.stride())


def test_the_limit_does_not_apply_to_library_problems(tmp_path: Path) -> None:
    made = traced(Two(), rand(4, 8))
    profile = profile_of(made)
    only = extract(profile, [made], tmp_path, most=1, gain=0.001)
    assert [each.searched for each in only.problems] == [True]
    asked = extract(profile, [made], tmp_path, most=1, gain=0.001, known=lambda fragment: True)
    assert sum(each.searched for each in asked.problems) == 1 < len(asked.problems)
    assert not extract(profile, [made], tmp_path, most=8, gain=100.0).problems


def test_the_reason_for_a_left_out_target_is_stored(tmp_path: Path) -> None:
    made = traced(Mlp(), rand(4, 8))
    found = extract(profile_of(made), [made], tmp_path, most=8, gain=0.001)
    assert found.left_out == {
        "addmm + gelu + addmm": "one matmul or convolution needs all results of another"
    }
    found.write(tmp_path / "extraction.json")
    assert Extraction.read(tmp_path / "extraction.json") == found


def test_tensors_of_two_types_keep_them(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    made = traced(model, rand(3), rand(3).bfloat16())
    found = extract(profile_of(made), [made], tmp_path, most=8, gain=0.001)
    (problem,) = found.problems
    module = load_module((tmp_path / problem.file).read_text(), {})
    dtype = own_dtype((tmp_path / problem.file).read_text(), {})
    drawn = make_inputs(module, seed=0, device="cpu", dtype=dtype)
    assert (dtype, [each.dtype for each in drawn]) == ("bfloat16", [torch.float32, torch.bfloat16])


class TestDistributions:
    def test_floats_have_the_distribution_of_the_tensor(self) -> None:
        tensor = torch.where(torch.rand(1000) < 0.5, 0.0, 3 + torch.randn(1000)).clamp(min=0)
        found = distribution_of([tensor])
        assert found.zeros == pytest.approx(0.5, abs=0.1)
        assert (found.mean, found.std) == (pytest.approx(3, abs=0.2), pytest.approx(1, abs=0.2))
        assert found.low == 0.0

    def test_a_mask_has_its_share_of_minus_infinity(self) -> None:
        mask = torch.zeros(10, 10).masked_fill(torch.ones(10, 10).triu(1).bool(), float("-inf"))
        found = distribution_of([mask])
        assert found.masked == pytest.approx(0.45)
        assert "masked=0.45" in found.code("X")

    def test_integers_stay_in_their_range(self) -> None:
        assert (
            distribution_of([torch.tensor([3, 7, 5])]).code("X")
            == "torch.randint(3, 8, X, dtype=torch.int64)"
        )
        assert distribution_of([torch.tensor([True, False])]).code("X") == "torch.rand(X) < 0.5"

    def test_ignored_labels_have_their_share(self) -> None:
        labels = torch.tensor([3, 7, -100, 5])
        assert (
            distribution_of([labels]).code("X")
            == "torch.randint(3, 8, X, dtype=torch.int64).masked_fill_(torch.rand(X) < 0.25, -100)"
        )

    def test_strides_are_the_tensors(self) -> None:
        assert distribution_of([rand(3, 4).t()]).strides == (1, 4)
        assert distribution_of([rand(3, 1).expand(3, 4)]).strides == ()

    def test_a_range_that_ends_at_zero_is_drawn(self) -> None:
        """Like the output of a ReLU."""
        code = distribution_of([torch.tensor([0.0, 1, 2, 3])]).code("(50,)")
        names: dict[str, Any] = {"torch": torch}
        exec(f"{DRAWN}\nfound = {code}", names)
        assert names["found"].min() == 0 and 0 < names["found"].max() <= 3

    def test_a_constant_is_drawn_around_it(self) -> None:
        found = distribution_of([torch.ones(4)])
        assert (found.mean, found.std, found.low) == (1.0, 0.1, pytest.approx(0.7))

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_tensors_that_cannot_be_drawn_are_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match="the model has"):
            distribution_of([torch.tensor([1.0, value])])
        with pytest.raises(ValueError, match="cannot be drawn"):
            distribution_of([torch.ones(2, dtype=torch.complex64)])
