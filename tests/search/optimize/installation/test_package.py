"""The folder `optimized/`: the same outputs with kernels, the fallback, and no dependency on Ideatree."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel
from search.optimize.extraction.problems import extract
from search.optimize.extraction.record import ExtractedProblem
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.installation.package import load_package, set_way, write_package
from tests.search.optimize.example_models import Mlp, rand
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.extraction.traced_models import at_shapes, traced


class Blocks(nn.Module):
    """Two MLPs with a norm before each; reads a number from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(), Mlp()])
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> Any:
        for block in self.blocks:
            x = x + block(self.norm(x))
        if bool((x > 1e6).any()):
            x = x * 0
        return {"out": x * scale, "last": x[0]}


def written(folder: Path, made: TracedModel) -> tuple[Any, dict[str, ExtractedProblem]]:
    """The package, with each problem's reference as its kernel."""
    chosen = [
        each for each in _extracted(folder, made) if each.target in ("addmm + gelu", "native_layer_norm")
    ]
    write_package(folder, [made], kernels_of(folder, chosen), {each: each.places for each in chosen})
    return load_package(folder), {each.target: each for each in chosen}


def _extracted(folder: Path, made: TracedModel) -> Sequence[ExtractedProblem]:
    return extract(profile_of(made), [made], folder, most=9, gain=0.001).problems


def kernels_of(folder: Path, problems: list[ExtractedProblem]) -> Mapping[str, Kernel]:
    return {
        each.name: Kernel(
            source=(folder / each.file).read_text().replace("class Model(", "class ModelNew("),
            language="triton",
        )
        for each in problems
    }


def same(found: Any, wanted: Any) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)


def plan(model: nn.Module) -> Any:
    return type(model).plan  # type: ignore[attr-defined]


@torch.no_grad()
def test_the_outputs_are_the_same_and_each_kernel_runs(tmp_path: Path) -> None:
    made = traced(Blocks(), rand(4, 8))
    model = made.model.module
    names, wanted = list(model.state_dict()), model(rand(4, 8))
    optimized, problems = written(tmp_path, made)
    assert optimized.load(model) is model and isinstance(model, Blocks)
    assert same(model(rand(4, 8)), wanted)
    calls = {name: kernel.calls for name, kernel in plan(model).kernels.items()}
    assert calls == {each.name: 2 for each in problems.values()} and not plan(model).fallbacks
    assert list(model.state_dict()) == names
    assert same(copy.deepcopy(model)(rand(4, 8)), wanted)
    with torch.no_grad():
        model.norm.weight.fill_(3.0)  # type: ignore[union-attr, operator]
    assert not same(model(rand(4, 8)), wanted), "weights are the model's own"
    optimized.unload(model)
    assert type(model) is Blocks


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_has_the_kernels_that_the_manifest_names(tmp_path: Path) -> None:
    made = traced(Mlp(), x := rand(4, 8))
    [problem] = (each for each in _extracted(tmp_path, made) if each.target == "addmm + gelu")
    kernels = kernels_of(tmp_path, [problem])
    wrong = {
        name: replace(each, source=each.source.replace("return ", "return 2 * "))
        for name, each in kernels.items()
    }
    write_package(tmp_path, [made], wrong, {problem: problem.places})
    set_way(tmp_path, as_graph=False, in_compiled=[])
    model, wanted = made.model.module, made.model.module(x)
    load_package(tmp_path).load(model)
    assert not torch.allclose(model(x), wanted)
    assert torch.allclose(torch.compile(model, backend="eager")(x), wanted)
    set_way(tmp_path, as_graph=False, in_compiled=[problem.name])
    torch._dynamo.reset()
    load_package(tmp_path).load(model)
    assert not torch.allclose(torch.compile(model, backend="eager")(x), wanted)
    set_way(tmp_path, as_graph=False, in_compiled=[problem.name], own_in_compiled=True)
    torch._dynamo.reset()
    load_package(tmp_path).load(model)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), wanted), (
        "the original forward"
    )
    assert not torch.allclose(model(x), wanted) and not plan(model).fallbacks


@torch.no_grad()
def test_everything_else_falls_back_to_the_original_forward(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = traced(Blocks(), rand(4, 8))
    optimized, _ = written(tmp_path, made)
    own = copy.deepcopy(made.model.module)
    model = optimized.load(made.model.module)
    assert same(model(rand(6, 8)), own(rand(6, 8)))
    assert same(model(rand(4, 8), scale=2.0), own(rand(4, 8), scale=2.0))
    assert same(model.double()(rand(4, 8).double()), own.double()(rand(4, 8).double()))
    model.float()
    large = rand(4, 8) + 2e6
    assert same(model(large), own.float()(large)), "the model reads a different number"
    assert same(model.train()(rand(4, 8)), own(rand(4, 8)))
    model.eval()
    with torch.enable_grad():
        model(rand(4, 8))["out"].sum().backward()
    assert model.norm.weight.grad is not None
    reasons = list(plan(model).fallbacks)
    assert [reason.split()[0] for reason in reasons] == ["x", "no", "the", "True", "the", "gradients"]
    assert reasons[1] == "no recorded call is like this one: scale is given (2.0); it was left out"
    assert len(caplog.records) == len(reasons), "each is logged once"


@torch.no_grad()
@torch.no_grad()
def test_weights_of_another_dtype_fall_back(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> Any:
            return {"out": self.norm(self.table(x))}

    optimized, _ = written(tmp_path, made := traced(Words(), torch.tensor([1, 3])))
    model = optimized.load(made.model.module).half()
    assert model(torch.tensor([1, 3]))["out"].dtype == torch.float16
    [why] = plan(model).fallbacks
    assert why == "the weight table.weight is 5x8 float16 on cpu; it must be 5x8 float32 on cpu"


def test_kernels_can_be_left_out(tmp_path: Path) -> None:
    made = traced(Blocks(), rand(4, 8))
    optimized, problems = written(tmp_path, made)
    wanted = made.model.module(rand(4, 8))
    out = problems["addmm + gelu"].name
    model = optimized.load(made.model.module, without=[out])
    assert same(model(rand(4, 8)), wanted)
    assert plan(model).kernels[out].calls == 0


def test_another_model_is_refused(tmp_path: Path) -> None:
    optimized, _ = written(tmp_path, traced(Blocks(), rand(4, 8)))
    with pytest.raises(ValueError, match="the module blocks is missing; it must be ModuleList"):
        optimized.load(Mlp())
    hooked, other = Blocks(), Blocks()
    hooked.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="the module norm has hooks"):
        optimized.load(hooked)
    other.norm = nn.Identity()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="the module norm is Identity; it must be LayerNorm"):
        optimized.load(other)
    with pytest.raises(ValueError, match=r"is .* it must be"):
        optimized.load(Blocks().double())


def test_results_that_cannot_be_serialised_are_reported() -> None:
    with pytest.raises(UsageError, match=r"kernels cannot be installed: its output\[1\] is a Generator"):
        traced(lambda x: (x.exp(), torch.Generator()), rand(3))


def test_unread_calls_are_dropped(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.exp()
        torch.arange(3).sum().item()
        return x * 2

    write_package(tmp_path, [traced(model, rand(3))], {}, {})
    code = (tmp_path / "optimized" / "forward.py").read_text()
    assert "mul" in code and not any(word in code for word in ("exp", "arange", "check("))


@torch.no_grad()
def test_replaced_in_place_calls_are_dropped(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> Any:
        kept = x.exp()
        kept.add_(1)
        return (kept * 2).relu_() + 1, kept

    made = traced(model, rand(3))
    problem = next(
        each
        for each in extract(profile_of(made), [made], tmp_path, most=9, gain=0.001).problems
        if each.target == "mul.Tensor + relu_ + add.Tensor"
    )
    write_package(tmp_path, [made], kernels_of(tmp_path, [problem]), {problem: problem.places})
    code = (tmp_path / "optimized" / "forward.py").read_text()
    assert "aten.relu_" not in code and "aten.add_" in code, "replaced operators are not computed again"
    found = load_package(tmp_path).load(made.model.module)(rand(3))
    assert all(torch.equal(*pair) for pair in zip(found, model(rand(3)), strict=True))


def at_two(folder: Path) -> tuple[Any, list[TracedModel], ExtractedProblem, Kernel]:
    """A model at two shapes, and a problem with a place at each; its reference is the kernel."""
    made = at_shapes(Blocks(), (rand(4, 8),), (rand(6, 8),))
    found = extract(profile_of(*made), made, folder, most=9, gain=0.001).problems
    [norm] = [each for each in found if each.target == "native_layer_norm"]
    [kernel] = kernels_of(folder, [norm]).values()
    write_package(folder, made, {norm.name: kernel}, {norm: norm.places})
    return load_package(folder), made, norm, kernel


@pytest.mark.slow
@torch.no_grad()
def test_each_shape_has_its_own_forward(tmp_path: Path) -> None:
    optimized, made, norm, _ = at_two(tmp_path)
    own = copy.deepcopy(made[0].model.module)
    model = optimized.load(made[0].model.module)
    for rows, calls in ((4, 2), (6, 4), (4, 6)):
        assert same(model(rand(rows, 8)), own(rand(rows, 8)))
        assert plan(model).kernels[norm.name].calls == calls and not plan(model).fallbacks
    assert same(model(rand(5, 8)), own(rand(5, 8)))
    assert [*plan(model).fallbacks] == ["x is a tensor of 5x8 float32 on cpu, not 4x8 float32 on cpu"]
    assert same(model(rand(6, 8), scale=2.0), own(rand(6, 8), scale=2.0))
    assert sum(plan(model).fallbacks.values()) == 2 and plan(model).kernels[norm.name].calls == 6
    files = {each.name for each in (tmp_path / "optimized").glob("forward*.py")}
    assert files == {"forward_1.py", "forward_2.py"}


@pytest.mark.slow
@torch.no_grad()
def test_a_kernel_that_declines_a_shape_runs_at_the_other(tmp_path: Path) -> None:
    _, made, norm, kernel = at_two(tmp_path)
    source = f"{kernel.source}\n\ndef supports(x, *weights):\n    return x.shape[0] == 6\n"
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "problems", tmp_path / "other" / "problems")
    write_package(tmp_path / "other", made, {norm.name: replace(kernel, source=source)}, {norm: norm.places})
    own = copy.deepcopy(made[0].model.module)
    model = load_package(tmp_path / "other").load(made[0].model.module)
    for rows, calls in ((4, 0), (6, 2)):
        assert same(model(rand(rows, 8)), own(rand(rows, 8)))
        assert plan(model).kernels[norm.name].calls == calls and not plan(model).fallbacks


def test_compiled_code_gets_the_strides_it_expects(tmp_path: Path) -> None:
    """A kernel may return other strides than the operators that it replaces."""
    made = traced(lambda x: (x * 2).exp(), rand(4, 3))
    [problem] = extract(profile_of(made), [made], tmp_path, most=9, gain=0.001).problems
    [kernel] = kernels_of(tmp_path, [problem]).values()
    other = replace(kernel, source=kernel.source.replace("return exp", "return exp.t().contiguous().t()"))
    write_package(tmp_path, [made], {problem.name: other}, {problem: problem.places})
    installed = plan(load_package(tmp_path).load(made.model.module)).kernels[problem.name]
    assert installed.run(rand(4, 3)).stride() == (1, 4)
    torch.library.opcheck(installed.operator, (rand(4, 3),), test_utils="test_faketensor")


@pytest.mark.slow
def test_the_package_works_without_ideatree(tmp_path: Path) -> None:
    made = traced(Blocks(), rand(4, 8))
    written(tmp_path, made)
    torch.save(made.model.module.state_dict(), tmp_path / "weights.pt")
    source = Path(__file__).read_text()
    own = source[source.index("class Blocks") : source.index("def written")]
    mlp = (Path(__file__).parents[1] / "example_models.py").read_text()
    mlp = mlp[mlp.index("class Mlp") : mlp.index("class Function")]
    (tmp_path / "use.py").write_text(
        "import sys\nfrom typing import Any\nimport torch\nfrom torch import nn\nfrom optimized import load\n"
        f"{mlp}\n{own}\n"
        "model = Blocks().eval()\nmodel.load_state_dict(torch.load('weights.pt'))\n"
        "x = torch.rand(4, 8)\n"
        "with torch.no_grad():\n"
        "    wanted = model(x)\n    load(model)\n    found = model(x)\n"
        "    compiled = torch.compile(model)(x)\n"
        "assert torch.equal(found['out'], wanted['out'])\n"
        "assert torch.allclose(compiled['out'], wanted['out'], atol=1e-6)\n"
        "assert not type(model).plan.fallbacks\n"
        "assert not {'search', 'evaluators', 'kernel_library'} & {*sys.modules}\n"
    )
    run = "import runpy, sys; sys.path.insert(0, '.'); runpy.run_path('use.py')"
    command = [sys.executable, "-P", "-c", run]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
