"""The inputs of architectures follow from their configs; stubs replace the packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from evaluators.base.usage_error import UsageError
from search.optimize.models import source as model_source
from search.optimize.models.architectures import Diffusers, InputDraw, Transformers


class ModelMixin(nn.Module):
    """A model with its config, like those of diffusers."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config


def model_of(forward: Callable[..., Any], keys: Iterable[str]) -> type[ModelMixin]:
    """A model class with this forward and these constructor arguments."""

    def init(self: ModelMixin, **config: Any) -> None:
        ModelMixin.__init__(self, **config)

    takes = [Parameter(key, Parameter.KEYWORD_ONLY) for key in keys]
    init.__signature__ = Signature(takes)  # type: ignore[attr-defined]
    return type("Net", (ModelMixin,), {"__init__": init, "forward": forward})


def inputs_of(
    monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Any], config: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """The shapes of the model's inputs."""
    library = SimpleNamespace(Net=model_of(forward, config))
    monkeypatch.setattr(model_source.importlib, "import_module", lambda name: library)
    source = Diffusers(name="Net", config=config, batch=2, sequence=5, **fields)
    [model] = source.load(device="cpu", dtype=None, backward=False, seed=0)
    return {
        key: {name: tuple(own.shape) for name, own in each.items()}
        if isinstance(each, dict)
        else tuple(each.shape)
        for key, each in model.kwargs.items()
    }


def unet(
    self: Any, sample: Any, timestep: Any, encoder_hidden_states: Any, added_cond_kwargs: Any = None
) -> None: ...


def tokens(
    self: Any,
    hidden_states: Any,
    encoder_hidden_states: Any = None,
    pooled_projections: Any = None,
    timestep: Any = None,
    img_ids: Any = None,
    txt_ids: Any = None,
    guidance: Any = None,
) -> None: ...


def image(
    self: Any,
    hidden_states: Any,
    encoder_hidden_states: Any = None,
    timestep: Any = None,
    class_labels: Any = None,
) -> None: ...


def test_a_unet_with_text_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"in_channels": 4, "sample_size": 8, "cross_attention_dim": [16, 16]}
    plain = {"sample": (2, 4, 8, 8), "timestep": (2,), "encoder_hidden_states": (2, 5, 16)}
    assert inputs_of(monkeypatch, unet, config) == plain
    more = {"projection_class_embeddings_input_dim": 80, "addition_time_embed_dim": 8}
    found = inputs_of(monkeypatch, unet, {**config, **more, "addition_embed_type": "text_time"}, sample=6)
    added = {"text_embeds": (2, 80 - 6 * 8), "time_ids": (2, 6)}
    assert found == {**plain, "sample": (2, 4, 6, 6), "added_cond_kwargs": added}


def test_an_image_as_patches_with_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"in_channels": 3, "joint_attention_dim": 16, "pooled_projection_dim": 12}
    plain = {
        "hidden_states": (2, 16, 3),
        "encoder_hidden_states": (2, 5, 16),
        "pooled_projections": (2, 12),
        "timestep": (2,),
        "img_ids": (16, 3),
        "txt_ids": (5, 3),
    }
    assert inputs_of(monkeypatch, tokens, config, sample=4) == plain
    assert inputs_of(monkeypatch, tokens, {**config, "guidance_embeds": True}, sample=4) == {
        **plain,
        "guidance": (2,),
    }


def test_inputs_that_the_config_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"in_channels": 3, "sample_size": 4}
    plain = {"hidden_states": (2, 3, 4, 4)}
    assert inputs_of(monkeypatch, image, config) == plain
    text = {**config, "cross_attention_dim": 16}
    assert inputs_of(monkeypatch, image, text) == {**plain, "encoder_hidden_states": (2, 5, 16)}
    caption = inputs_of(monkeypatch, image, {**text, "caption_channels": 8})
    assert caption["encoder_hidden_states"] == (2, 5, 8)
    joint = inputs_of(monkeypatch, image, {**config, "joint_attention_dim": 16})
    assert joint == {**plain, "encoder_hidden_states": (2, 5, 16), "timestep": (2,)}
    classes = inputs_of(monkeypatch, image, {**config, "num_embeds_ada_norm": 7})
    assert classes == {**plain, "timestep": (2,), "class_labels": (2,)}


def test_an_input_of_unknown_shape_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, sample: Any, pose: Any) -> None: ...

    with pytest.raises(UsageError, match=r"needs inputs of unknown shape: pose; give model.inputs.pose="):
        inputs_of(monkeypatch, forward, {"in_channels": 3})
    assert inputs_of(monkeypatch, forward, {"in_channels": 3}, inputs={"pose": [2, 9]})["pose"] == (2, 9)
    other = {"in_channels": 3, "cross_attention_dim": 4, "addition_embed_type": "image"}
    with pytest.raises(UsageError, match="inputs of unknown shape: added_cond_kwargs"):
        inputs_of(monkeypatch, unet, other)


def test_audio_samples_match_the_sequence_length() -> None:
    class Sound:
        main_input_name = "input_values"

        def forward(self, input_values: torch.Tensor) -> None: ...

    source = Transformers(name="Sound", batch=2, sequence=3)
    for config, length in (
        (SimpleNamespace(conv_stride=(5, 2)), 30),
        (SimpleNamespace(), 3),
    ):
        found = source._inputs(Sound, config, InputDraw("cpu", "float32"))
        assert {key: tuple(each.shape) for key, each in found.items()} == {"input_values": (2, length)}
