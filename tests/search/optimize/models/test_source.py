"""Model sources, and what they refuse."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from evaluators.base.usage_error import UsageError
from search.optimize.model_config import ProblemModel
from search.optimize.models import source as model_source
from search.optimize.models.architectures import Diffusers, InputDraw, Torchvision, Transformers, shapes_of
from search.optimize.models.source import (
    FileModel,
    InputShape,
    LoadedModel,
    ModelSource,
    ModuleModel,
    import_package,
)
from search.optimize.profiling.recording import record
from tests.search.optimize.example_models import Function, loaded, rand

SOURCE = """
import torch

rows = 4


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 2)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.fc(x))


def get_inputs():
    return [torch.rand(rows, 8)]


def get_init_inputs():
    return []
"""
SMALL = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}


def made(source: ModelSource, *, dtype: str | None = None, backward: bool = False) -> LoadedModel:
    """The model at its first call."""
    return source.load(device="cpu", dtype=dtype, backward=backward, seed=0)[0]


def package(name: str) -> Any:
    """A package that may be missing or not fit the installed torch."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name} cannot be imported: {error}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_model.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.slow
def test_a_file_with_several_shapes(file: Path) -> None:
    shapes = [{"sizes": {"rows": 3}, "weight": 3}, {"sizes": {"rows": 5}}]
    how: dict[str, Any] = {"device": "cpu", "dtype": None, "backward": False, "seed": 0}
    few, many = FileModel(path=str(file), shapes=shapes).load(**how)
    assert [(each.shape, each.weight, each.args[0].shape) for each in (few, many)] == [
        ("rows=3", 0.75, (3, 8)),
        ("rows=5", 0.25, (5, 8)),
    ]
    assert few.module is many.module and many.title == f"{file} at rows=5"
    file.write_text(SOURCE + f"\n\ndef get_cases():\n    return {[*shapes, {'layout': 'strided'}]}\n")
    assert [each.shape for each in FileModel(path=str(file)).load(**how)] == ["rows=3", "rows=5"]
    assert [each.shape for each in FileModel(path=str(file), shapes=[]).load(**how)] == [""]
    problem = ProblemModel(name="level1/softmax", shapes=[{"sizes": {"batch": 2}}, {"sizes": {"batch": 3}}])
    assert [each.args[0].shape[0] for each in problem.load(**how)] == [2, 3]


def test_shapes_with_equal_sizes_are_refused(file: Path) -> None:
    file.write_text(SOURCE.replace("rows = 4", "rows = 4\nother = 1"))
    source = FileModel(path=str(file), shapes=[{"sizes": {"other": 1}}, {"sizes": {"other": 2}}])
    with pytest.raises(UsageError, match="at other=2: its inputs have the same sizes as those at other=1"):
        source.load(device="cpu", dtype=None, backward=False, seed=0)


def test_an_architecture_with_several_shapes() -> None:
    source = Torchvision(name="x", image=8, shapes=[{"batch": 2, "weight": 3.0}, {"image": 9}])
    found = shapes_of(source, lambda one: InputShape(inputs=lambda _: ((one.batch, one.image), {})))
    assert [(each.name, each.weight, each.inputs(nn.Module())[0]) for each in found] == [
        ("batch=2", 3.0, (2, 8)),
        ("image=9", 1.0, (1, 9)),
    ]
    twice = replace(source, shapes=[{"batch": 2}, {"batch": 2, "weight": 2}])
    with pytest.raises(UsageError, match=r"model\.shapes has batch=2 twice"):
        shapes_of(twice, lambda one: found[0])


def test_a_file_with_its_sizes_and_type(file: Path) -> None:
    model = made(FileModel(path=str(file), sizes={"rows": 3}), dtype="bfloat16")
    [output] = model.run()
    assert (output.shape, output.dtype, output.requires_grad) == ((3, 2), torch.bfloat16, False)
    assert not model.module.training
    assert model.dtype == "bfloat16"
    again = made(FileModel(path=str(file), sizes={"rows": 3}), dtype="bfloat16")
    assert torch.equal(output, again.run()[0])


def test_backward_is_training(file: Path) -> None:
    model = made(FileModel(path=str(file)), backward=True)
    output, *gradients = model.run()
    assert output.requires_grad and model.module.training
    assert [each.shape for each in gradients] == [(2, 8), (2,)]


def test_a_model_without_weights_has_gradients_of_its_inputs() -> None:
    model = made(ProblemModel(name="level1/softmax", sizes={"batch": 2, "columns": 8}), backward=True)
    output, gradient = model.run()
    assert output.shape == gradient.shape


def test_the_loss_begins_the_backward_pass_where_there_is_one() -> None:
    weight = nn.Parameter(torch.ones(3))

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self) -> dict[str, torch.Tensor]:
            return {"loss": (2 * self.weight).sum(), "logits": 100 * self.weight}

    results = loaded(WithLoss(), backward=True).results()
    assert results["the gradient of weight"].tolist() == [2, 2, 2] and weight.grad is None


def test_a_module_that_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine" / "__init__.py").write_text("")
    (tmp_path / "of_mine" / "sizes.py").write_text("rows = 5")
    (tmp_path / "of_mine" / "net.py").write_text(SOURCE.replace("rows = 4", "from .sizes import rows"))
    assert made(ModuleModel(name="of_mine.net")).run()[0].shape == (5, 2)
    with pytest.raises(UsageError, match=r"of_mine\.sizes does not define Model and get_inputs"):
        made(ModuleModel(name="of_mine.sizes"))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (("class Model", "class Modle"), "defines no Model"),
        (("super().__init__()", "1 / 0"), "fails: ZeroDivisionError: division by zero"),
        (("torch.rand(rows, 8)", "torch.rand(unknown)"), "fails: NameError"),
        (("import torch", "import no_such_package"), "fails: ModuleNotFoundError"),
    ],
)
def test_an_invalid_file_is_a_one_line_error(file: Path, changed: tuple[str, str], why: str) -> None:
    file.write_text(SOURCE.replace(*changed))
    with pytest.raises(UsageError, match=why) as raised:
        made(FileModel(path=str(file)))
    assert "\n" not in str(raised.value)


def test_each_run_gets_new_containers_of_the_same_tensors() -> None:
    x, y = rand(2), rand(3)
    inside = SimpleNamespace(y=y, kept=[x])
    given: dict[str, Any] = {"a": x, "b": (y, None), "c": inside, "d": deque([x], maxlen=2), "e": 1, "f": y}
    model = replace(loaded(Function(lambda x: x), x), kwargs=given)
    args, kwargs = model.fresh()
    assert args[0] is x and kwargs["a"] is x and kwargs["b"][0] is y and kwargs["f"] is y
    assert kwargs["c"] is not inside and kwargs["c"].y is y and kwargs["c"].kept[0] is x
    kwargs["c"].kept.append(1)
    kwargs["d"].append(x)
    assert len(inside.kept) == 1 and len(given["d"]) == 1 and kwargs["d"].maxlen == 2
    args, kwargs = model.fresh(torch.Tensor.clone)
    assert args[0] is kwargs["a"] is kwargs["c"].kept[0] is kwargs["d"][0] is not x


def test_a_model_without_a_gradient_says_so() -> None:
    with pytest.raises(ValueError, match="no output has a gradient"):
        record(loaded(Function(lambda x: x.detach()), rand(2), backward=True))


@pytest.mark.parametrize("source", [Transformers, Torchvision, Diffusers])
def test_a_missing_package_is_named(
    source: Callable[..., ModelSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(model_source.importlib, "import_module", missing)
    name = source.__name__.lower()
    with pytest.raises(UsageError, match=rf"needs {name}, which is not installed; pip install {name}$"):
        made(source(name="X"))


def test_a_package_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr(model_source.importlib, "import_module", broken)
    with pytest.raises(UsageError, match=r"torchvision cannot be imported: RuntimeError: .* does not exist$"):
        import_package("torchvision", "model=torchvision/resnet18")


def test_inputs_of_given_shapes() -> None:
    draw = InputDraw("cpu", "float16")
    given = {"x": [2, 3], "some_ids": [4], "attention_mask": [5]}
    found = draw.shaped(given, list(given), "a/b", 7)
    assert (found["x"].dtype, found["x"].shape) == (torch.float16, (2, 3))
    assert found["some_ids"].dtype is torch.int64 and int(found["some_ids"].max()) < 7
    assert found["attention_mask"].tolist() == [1] * 5
    with pytest.raises(UsageError, match="takes no input attention_msk; did you mean attention_mask"):
        draw.shaped({"attention_msk": [5]}, list(given), "a/b", 7)
    with pytest.raises(UsageError, match="must be a shape"):
        draw.shaped({"x": [2, "three"]}, list(given), "a/b", 7)  # type: ignore[list-item]


@pytest.mark.slow
class TestTransformers:
    def test_a_language_model_with_its_loss(self) -> None:
        package("transformers")
        source = Transformers(name="GPT2LMHeadModel", config=SMALL, batch=2, sequence=6, labels=True)
        model = made(source, backward=True)
        assert model.kwargs["input_ids"].shape == model.kwargs["labels"].shape == (2, 6)
        run = record(model)
        called = [call.name for call in run.calls]
        assert called.count("addmm") == 2 * 4
        assert {call.site for call in run.calls if call.name == "addmm"} == {
            f"transformer.h.{n}.{part}"
            for n in range(2)
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        }
        assert "nll_loss_forward" in called and "nll_loss_backward" in called

    def test_weights_have_the_requested_dtype(self) -> None:
        package("transformers")
        model = made(Transformers(name="GPT2LMHeadModel", config=SMALL), dtype="bfloat16")
        assert {each.dtype for each in model.module.parameters()} == {torch.bfloat16}
        assert torch.get_default_dtype() is torch.float32

    @pytest.mark.parametrize(
        ("name", "config", "why"),
        [
            ("GPT2LMHeadModle", {}, "no model GPT2LMHeadModle; did you mean GPT2"),
            ("GPT2LMHeadModel", {"n_layers": 2}, "has no n_layers; did you mean n_layer"),
            ("GPT2Config", {}, "is not a model"),
        ],
    )
    def test_unknown_names_are_reported(self, name: str, config: dict[str, Any], why: str) -> None:
        package("transformers")
        with pytest.raises(UsageError, match=why):
            made(Transformers(name=name, config=config))


@pytest.mark.slow
def test_a_diffusion_model() -> None:
    package("diffusers")
    config = {
        "sample_size": 8,
        "block_out_channels": [8, 16],
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "cross_attention_dim": 16,
        "attention_head_dim": 4,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    }
    model = made(Diffusers(name="UNet2DConditionModel", config=config, sequence=5))
    assert model.kwargs["encoder_hidden_states"].shape == (1, 5, 16)
    assert "convolution" in {call.name for call in record(model).calls}
    with pytest.raises(UsageError, match="has no sample_sise; did you mean sample_size"):
        made(Diffusers(name="UNet2DConditionModel", config={"sample_sise": 8}))


def test_a_torchvision_model_has_no_weights_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stub, because the installed package often needs another torch."""
    asked: dict[str, Any] = {}

    def builder(
        *, weights: Any = "download", weights_backbone: Any = "download", width: int = 4
    ) -> nn.Module:
        asked.update(weights=weights, weights_backbone=weights_backbone, width=width)
        return nn.Conv2d(3, width, 3)

    models = SimpleNamespace(list_models=lambda: ["net18"], get_model_builder=lambda name: builder)
    monkeypatch.setattr(model_source.importlib, "import_module", lambda name: models)
    model = made(Torchvision(name="net18", config={"width": 2}, batch=2, image=8))
    assert asked == {"weights": None, "weights_backbone": None, "width": 2}
    assert model.run()[0].shape == (2, 2, 6, 6)
    with pytest.raises(UsageError, match="no model net8; did you mean net18"):
        made(Torchvision(name="net8"))
