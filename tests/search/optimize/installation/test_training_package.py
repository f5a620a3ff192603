"""The folder `optimized/` of a model that is trained: gradients, modes, and what the kernels do not cover."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from evaluators.records.problem import Kernel
from search.optimize.extraction.graph import CaptureError, capture
from search.optimize.extraction.problems import extract
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.package import load_package, write_package
from search.optimize.installation.rehearsal import rehearse
from search.optimize.models.source import FileModel, LoadedModel
from search.optimize.models.training import repeatable
from search.optimize.verification.yardstick import results_of
from tests.search.optimize.example_models import Function, loaded, rand
from tests.search.optimize.extraction.test_problems import profile_of
from tests.search.optimize.trained_models import NOISY, QWEN, norm_kernel

NORM = "pow.Tensor_Scalar + mean.dim + add.Tensor + rsqrt + mul.Tensor + mul.Tensor"


def model_of(folder: Path, source: str, **fields: Any) -> LoadedModel:
    """The model of a file, with one layer."""
    (folder / "model.py").write_text(source)
    sizes = {"layers": 1} if source is QWEN else {}
    [model] = FileModel(path=str(folder / "model.py"), sizes=sizes).load(
        device="cpu", dtype=None, backward=True, seed=0
    )
    return replace(model, **fields)


def written(folder: Path, model: LoadedModel) -> Any:
    """The package of the model, with a kernel for its norms; of another model without kernels."""
    made = trace_model(model)
    found = extract(profile_of(made), [made], folder, most=40, gain=0.0)
    norms = [each for each in found.problems if each.target == NORM]
    kernels = {each.name: Kernel(source=norm_kernel(), language="triton") for each in norms}
    write_package(folder, [made], kernels, {each: each.places for each in norms})
    return load_package(folder)


@pytest.fixture
def qwen(tmp_path: Path) -> tuple[LoadedModel, Any]:
    model = model_of(tmp_path, QWEN)
    return model, written(tmp_path, model)


def plan(model: LoadedModel) -> Any:
    return type(model.module).plan  # type: ignore[attr-defined]


def calls(model: LoadedModel) -> int:
    return sum(each.calls for each in plan(model).kernels.values())


def assert_same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, msg=name)


def test_the_gradients_are_those_of_the_original(qwen: tuple[LoadedModel, Any]) -> None:
    model, package = qwen
    wanted = results_of(model)
    package.load(model.module)
    assert_same(results_of(model), wanted)
    assert calls(model) == 2 and not plan(model).fallbacks


def test_an_optimizer_has_the_models_own_weights(qwen: tuple[LoadedModel, Any]) -> None:
    """Gradients add up in `.grad`, hooks on weights run, and each step sees the weights of the last one."""
    model, package = qwen
    [inputs] = model.args
    other = copy.deepcopy(model.module)
    package.load(model.module)
    losses: list[list[float]] = []
    for module in (model.module, other):
        seen: list[float] = []
        name, weight = next(iter(module.named_parameters()))
        weight.register_hook(lambda grad, seen=seen: seen.append(float(grad.norm())))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        own = []
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for _ in range(2):  # two batches make one step
                loss = module(inputs)["loss"] / 2
                loss.backward()
            own.append(float(loss.detach()))
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        assert len(seen) == 8, name
        losses.append(own)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][-1] < losses[0][0]
    assert calls(model) == 16 and not plan(model).fallbacks


def test_the_mode_decides(qwen: tuple[LoadedModel, Any]) -> None:
    model, package = qwen
    package.load(model.module)
    module, [inputs] = model.module, model.args
    module.eval()
    module(inputs)
    module.train()
    with torch.no_grad():
        module(inputs)
    module.blocks[0].mlp.eval()
    module(inputs)
    module.train()
    assert calls(model) == 0 and plan(model).fallbacks == {
        "the model is in eval mode": 1,
        "gradients are disabled: the kernels are for training": 1,
        "the module blocks.0.mlp is in eval mode": 1,
    }
    module(inputs)
    assert calls(model) == 2


def test_weights_may_be_frozen_but_not_the_other_way_round(tmp_path: Path) -> None:
    model = model_of(tmp_path, QWEN)
    frozen = model.module.blocks[0].norm.weight
    frozen.requires_grad_(False)
    package = written(tmp_path, model)
    package.load(model.module)
    results_of(model)
    assert calls(model) == 2, "each norm has its own problem, and its kernel"
    model.module.norm.weight.requires_grad_(False)
    assert "the gradient of norm.weight" not in results_of(model) and not plan(model).fallbacks
    frozen.requires_grad_(True)
    assert "the gradient of blocks.0.norm.weight" in results_of(model)
    assert [*plan(model).fallbacks] == [
        "the weight blocks.0.norm.weight needs a gradient; it was recorded without one"
    ]


def test_the_state_is_the_models_own(qwen: tuple[LoadedModel, Any]) -> None:
    model, package = qwen
    before = {name: each.clone() for name, each in model.module.state_dict().items()}
    package.load(model.module)
    saved = io.BytesIO()
    torch.save(model.module.state_dict(), saved)
    with torch.no_grad():
        for each in model.module.parameters():
            each.mul_(2)
    saved.seek(0)
    model.module.load_state_dict(torch.load(saved))
    assert all(torch.equal(each, before[name]) for name, each in model.module.state_dict().items())
    copied = copy.deepcopy(model.module)
    assert_same(results_of(replace(model, module=copied)), results_of(model))
    assert calls(model) == 4 and not plan(model).fallbacks
    package.unload(model.module)
    assert not hasattr(type(model.module), "plan")


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_model_runs_its_kernels_again_in_the_backward_pass(
    reentrant: bool, qwen: tuple[LoadedModel, Any]
) -> None:
    """A reentrant checkpoint runs without gradients first: then the original forward."""
    model, package = qwen
    wanted = results_of(model)
    package.load(model.module)
    [ids] = model.args
    anchor = torch.zeros((), requires_grad=True)
    loss = checkpoint(lambda _: model.module(ids)["loss"], anchor, use_reentrant=reentrant)
    loss.backward()
    found = {f"the gradient of {name}": each.grad for name, each in model.module.named_parameters()}
    assert_same(found, {name: each for name, each in wanted.items() if "gradient" in name})
    assert calls(model) == (2 if reentrant else 4)


def test_dropout_and_batch_norms_run_in_the_recorded_forward(tmp_path: Path) -> None:
    model = model_of(tmp_path, NOISY)
    package = written(tmp_path, model)
    other, before = copy.deepcopy(model.module), int(model.module.norm.num_batches_tracked)
    package.load(model.module)
    for module in (model.module, other):
        torch.manual_seed(3)
        for _ in range(3):
            module(*model.args).sum().backward()
    assert_same(dict(model.module.named_buffers()), dict(other.named_buffers()))
    assert model.module.norm.num_batches_tracked == before + 3 and not plan(model).fallbacks
    for ours, theirs in zip(model.module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_autocast_must_be_the_recorded_one(tmp_path: Path) -> None:
    model = model_of(tmp_path, QWEN, autocast="bfloat16")
    wanted = results_of(model)
    package = written(tmp_path, model)
    package.load(model.module)
    assert_same(results_of(model), wanted)
    assert not plan(model).fallbacks
    model.module(*model.args)
    with torch.autocast("cpu", dtype=torch.float16):
        model.module(*model.args)
    assert plan(model).fallbacks == {
        "autocast is off, not cpu bfloat16": 1,
        "autocast is cpu float16, not cpu bfloat16": 1,
    }


class Partly(nn.Module):
    """Computes a part without gradients, and stops them at another place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x).tanh()
        with torch.no_grad():
            scale = found.exp().mean(-1, keepdim=True)
        return self.second(found * scale) + (found * 3).detach()


def test_gradients_stop_where_the_model_stops_them(tmp_path: Path) -> None:
    model = loaded(Partly().train(), rand(4, 8), backward=True)
    made = trace_model(model)
    rehearse([made])
    text = (tmp_path / "optimized" / "forward.py").read_text() if written(tmp_path, model) else ""
    assert text.count("with torch.no_grad(): ") == 1 and text.count(".detach()") == 1
    found = extract(profile_of(made), [made], tmp_path, most=40, gain=0.0)
    [product] = [each for each in found.problems if each.target == "mul.Tensor" and len(each.places) == 1][:1]
    assert "y = y.detach()  # the model needs no gradient here" in (tmp_path / product.file).read_text()
    assert "the model computes a part of it without gradients" in " ".join(found.left_out.values())


def test_what_changes_between_a_forward_and_its_code_is_noticed() -> None:
    """A gradient that a hook on a tensor changes is not part of the recorded calls."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        found = x.exp()
        found.register_hook(lambda grad: 2 * grad)
        return found.sum()

    model = loaded(Function(doubled).train(), rand(4).requires_grad_(), backward=True)
    with pytest.raises(Exception, match="different results: other numbers in the gradient of input 0"):
        rehearse([trace_model(model)])


def test_a_repeated_call_leaves_no_trace(tmp_path: Path) -> None:
    model = model_of(tmp_path, NOISY)
    before = {name: each.clone() for name, each in model.module.state_dict().items()}
    random = torch.get_rng_state()
    with repeatable(model.module):
        first = model.results()
    assert_same(results_of(model), first)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same(model.module.state_dict(), before)


def test_a_reentrant_checkpoint_in_the_model_is_refused() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(torch.exp, x, use_reentrant=True)

    model = loaded(Function(inner).train(), rand(4).requires_grad_(), backward=True)
    with pytest.raises(CaptureError, match=r"calls CheckpointFunction, a torch\.autograd\.Function"):
        capture(model)
