"""Architectures of transformers, torchvision and diffusers, with random weights; nothing is downloaded.

The config is the library's default, changed by keys (`model.config.n_layer=4`). The inputs follow from the
signature of `forward` and the config; the user gives the shapes of others (`model.inputs.x=[2,77]`).
`shapes`: several sets of inputs, each with the fields that differ and its `weight`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.reference.loading import seed_all
from search.optimize.models.source import ONES, InputShape, LoadedModel, import_package, load_at_shapes

if TYPE_CHECKING:
    import torch
    from torch import nn

IDS_BELOW = 100
"""Upper bound of random integers where no vocabulary size is known."""
ADDITION = "addition_embed_type"
NEEDED_WITH: Mapping[str, Sequence[str]] = {
    "num_embeds_ada_norm": ("timestep", "class_labels"),
    "num_class_embeds": ("class_labels",),
    "cross_attention_dim": ("encoder_hidden_states",),
    "joint_attention_dim": ("encoder_hidden_states", "timestep", "img_ids", "txt_ids"),
    "pooled_projection_dim": ("pooled_projections",),
    "guidance_embeds": ("guidance",),
    ADDITION: ("added_cond_kwargs",),
}
"""Inputs of diffusers models that are optional in the signature of `forward` but required by the model, by
the config key that makes them required."""
TEXT_WIDTHS = (
    *("encoder_hid_dim", "caption_channels", "cap_feat_dim", "text_dim", "text_embed_dim"),
    *("joint_attention_dim", "cross_attention_dim"),
)
"""Config keys for the width of a diffusers model's text conditioning; the first one that is set counts."""


@dataclass(frozen=True, kw_only=True)
class Transformers:
    """A class of `transformers` (`GPT2LMHeadModel`). `config` changes its default config, with the KV cache
    off unless it says otherwise; `batch` and `sequence` size the inputs, `inputs` gives the shapes of further
    ones. `labels`: also compute the loss of predicting the input ids. `calls`: the arguments of each way of
    calling; None: the usual ones."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    sequence: int = 128
    labels: bool = False
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None
    calls: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        name = f"transformers/{self.name}"
        made = class_of("transformers", self.name, "PreTrainedModel")
        config = self._config(made.config_class, name)
        return _load(
            self,
            name,
            lambda: made(config),
            lambda one, _, draw: ((), one._inputs(made, config, draw)),
            device=device,
            dtype=dtype or "float32",
            backward=backward,
            seed=seed,
            usual=self._usual_calls(made),
        )

    def _usual_calls(self, made: Any) -> list[dict[str, Any]]:
        """How users call such a model: with and without a mask of all tokens, and without a cache."""
        takes = inspect.signature(made.forward).parameters
        masked = made.main_input_name == "input_ids" and "attention_mask" in takes
        masks = [{}, {"attention_mask": ONES}] if masked and "attention_mask" not in self.inputs else [{}]
        caches = [{}, {"use_cache": False}] if "use_cache" in takes else [{}]
        return [{**mask, **cache} for mask in masks for cache in caches]

    def _config(self, config_class: Any, name: str) -> Any:
        """The changed default config. Raises UsageError for an unknown key."""
        own = config_class()
        known = {**own.to_dict(), **dict.fromkeys(own.attribute_map)}
        _check_keys(self.config, known, name)
        cached = {"use_cache": False} if "use_cache" in known else {}
        return config_class(**{**cached, **self.config})

    def _inputs(self, made: Any, config: Any, draw: InputDraw) -> dict[str, Any]:
        texts = getattr(config, "text_config", None) or config
        images = getattr(config, "vision_config", None) or config
        vocabulary = getattr(texts, "vocab_size", IDS_BELOW)
        image = getattr(images, "image_size", 224)
        height, width = image if isinstance(image, list | tuple) else (image, image)

        def ids() -> torch.Tensor:
            return draw.integers((self.batch, self.sequence), vocabulary)

        known: dict[str, Callable[[], torch.Tensor]] = {
            "input_ids": ids,
            "decoder_input_ids": ids,
            "pixel_values": lambda: draw.floats(
                (self.batch, getattr(images, "num_channels", 3), height, width)
            ),
            "input_features": lambda: draw.floats(
                (self.batch, getattr(config, "num_mel_bins", 80), 2 * config.max_source_positions)
            ),
            "input_values": lambda: draw.floats(
                (self.batch, self.sequence * math.prod(getattr(config, "conv_stride", ())))
            ),
        }
        takes = inspect.signature(made.forward).parameters
        wanted = [key for key in ("input_ids", "pixel_values") if key in takes]
        wanted = wanted if made.main_input_name in wanted else [made.main_input_name]
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
            wanted.append("decoder_input_ids")
        found = {key: known[key]() for key in wanted if key not in self.inputs and key in known}
        found |= draw.shaped(self.inputs, takes, f"transformers/{self.name}", vocabulary)
        if self.labels:
            found["labels"] = found.get("decoder_input_ids", found["input_ids"]).clone()
        return found


@dataclass(frozen=True, kw_only=True)
class Torchvision:
    """A model of `torchvision.models` by its name (`resnet50`). `config` has its builder's arguments; the
    input is `batch` images of `image` by `image` pixels."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    image: int = 224
    shapes: Sequence[Mapping[str, Any]] | None = None
    calls: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        import_package("torchvision", f"model=torchvision/{self.name}")
        models = import_package("torchvision.models", f"model=torchvision/{self.name}")
        if self.name not in models.list_models():
            raise UsageError(f"torchvision has no model {self.name}{near(self.name, models.list_models())}")
        builder = models.get_model_builder(self.name)
        weightless = {"weights": None, "weights_backbone": None}
        takes = inspect.signature(builder).parameters
        config = {key: value for key, value in weightless.items() if key in takes} | dict(self.config)
        return _load(
            self,
            f"torchvision/{self.name}",
            lambda: builder(**config),
            lambda one, _, draw: ((one._images(draw),), {}),
            device=device,
            dtype=dtype or "float32",
            backward=backward,
            seed=seed,
        )

    def _images(self, draw: InputDraw) -> torch.Tensor:
        return draw.floats((self.batch, 3, self.image, self.image))


@dataclass(frozen=True, kw_only=True)
class Diffusers:
    """A model of `diffusers` (`UNet2DConditionModel`). `config` has its constructor's arguments, `sequence`
    is the length of the conditioning text, `sample` the height and width of the denoised sample (None: its
    config's); `inputs` gives the shapes of inputs that are not known here."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    sequence: int = 77
    sample: int | None = None
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None
    calls: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        name = f"diffusers/{self.name}"
        made = class_of("diffusers", self.name, "ModelMixin")
        _check_keys(self.config, dict(inspect.signature(made.__init__).parameters), name)
        return _load(
            self,
            name,
            lambda: made(**self.config),
            lambda one, module, draw: ((), one._inputs(made, module.config, draw)),
            device=device,
            dtype=dtype or "float32",
            backward=backward,
            seed=seed,
        )

    def _inputs(self, made: Any, config: Mapping[str, Any], draw: InputDraw) -> dict[str, Any]:
        takes = inspect.signature(made.forward).parameters
        known = self._known(takes, config, draw)
        needed = [key for key, each in takes.items() if key != "self" and each.default is each.empty]
        needed += [key for name, keys in NEEDED_WITH.items() if config.get(name) for key in keys]
        needed = [key for key in needed if key in takes]
        needed = [key for key in dict.fromkeys(needed) if key not in self.inputs]
        needed = [key for key in needed if takes[key].kind is not inspect.Parameter.VAR_KEYWORD]
        if unknown := [key for key in needed if key not in known]:
            raise UsageError(
                f"model=diffusers/{self.name} needs inputs of unknown shape: {', '.join(unknown)}; "
                f"give model.inputs.{unknown[0]}=[…]"
            )
        return {key: known[key]() for key in needed} | draw.shaped(
            self.inputs, takes, f"diffusers/{self.name}", IDS_BELOW
        )

    def _known(
        self, takes: Collection[str], config: Mapping[str, Any], draw: InputDraw
    ) -> dict[str, Callable[[], Any]]:
        """A function that draws each input of known shape."""
        channels, size = config.get("in_channels", 4), self.sample or config.get("sample_size") or 32
        height, width = size if isinstance(size, list | tuple) else (size, size)
        text = next((found for key in TEXT_WIDTHS if (found := config.get(key))), 768)
        text = text[0] if isinstance(text, list | tuple) else text
        tokens = "img_ids" in takes  # the image is a sequence of patches
        classes = config.get("num_class_embeds") or config.get("num_embeds_ada_norm") or IDS_BELOW

        def image() -> torch.Tensor:
            return draw.floats(
                (self.batch, height * width, channels) if tokens else (self.batch, channels, height, width)
            )

        def text_and_time() -> dict[str, torch.Tensor]:
            ids = 6
            pooled = config["projection_class_embeddings_input_dim"] - ids * config["addition_time_embed_dim"]
            return {
                "text_embeds": draw.floats((self.batch, pooled)),
                "time_ids": draw.integers((self.batch, ids), IDS_BELOW),
            }

        return {
            "sample": image,
            "hidden_states": image,
            "timestep": lambda: draw.integers((self.batch,), 1000),
            "encoder_hidden_states": lambda: draw.floats((self.batch, self.sequence, text)),
            "encoder_attention_mask": lambda: draw.integers((self.batch, self.sequence), 1) + 1,
            "class_labels": lambda: draw.integers((self.batch,), classes),
            "pooled_projections": lambda: draw.floats((self.batch, config["pooled_projection_dim"])),
            "guidance": lambda: draw.floats((self.batch,)),
            "img_ids": lambda: draw.integers((height * width, 3), max(height, width)),
            "txt_ids": lambda: draw.integers((self.sequence, 3), 1),
            **({"added_cond_kwargs": text_and_time} if config.get(ADDITION) == "text_time" else {}),
        }


def _load(
    source: Any,
    name: str,
    make: Callable[[], nn.Module],
    draw_inputs: Callable[[Any, Any, InputDraw], tuple[Sequence[Any], Mapping[str, Any]]],
    *,
    device: str,
    dtype: str,
    backward: bool,
    seed: int,
    usual: Sequence[Mapping[str, Any]] = ({},),
) -> list[LoadedModel]:
    """Makes the model and, with `draw_inputs`, its arguments at each shape of the source, in its ways of
    calling (None: the `usual` ones, of which those that cannot be recorded are left out)."""
    draw = InputDraw(device, dtype)
    calls, optional = (usual, True) if source.calls is None else (source.calls or ({},), False)
    return load_at_shapes(
        name,
        lambda: build_on_device(make, device=device, dtype=dtype, seed=seed),
        shapes_of(
            source,
            lambda one: InputShape(
                inputs=lambda module: draw_inputs(one, module, draw), calls=calls, optional=optional
            ),
        ),
        device=device,
        dtype=dtype,
        backward=backward,
    )


def shapes_of(source: Any, inputs: Callable[[Any], InputShape]) -> list[InputShape]:
    """The input shapes of an architecture: calls `inputs` on the source with each shape's fields. Raises
    UsageError for a duplicate."""
    if not source.shapes:
        return [inputs(source)]
    found: dict[str, InputShape] = {}
    for each in source.shapes:
        weight = each.get("weight", 1.0)
        changed = {key: value for key, value in each.items() if key != "weight"}
        name = " ".join(f"{key}={value}" for key, value in changed.items()) or "as it is"
        if name in found:
            raise UsageError(f"model.shapes has {name} twice; leave one out")
        found[name] = replace(inputs(replace(source, shapes=None, **changed)), name=name, weight=weight)
    return list(found.values())


@dataclass(frozen=True)
class InputDraw:
    """Draws tensors on a device from torch's global generator; `dtype` is that of floating ones."""

    device: str
    dtype: str

    def floats(self, shape: Sequence[int]) -> torch.Tensor:
        """Normally distributed."""
        import torch

        return torch.randn(*shape, device=self.device, dtype=getattr(torch, self.dtype))

    def integers(self, shape: Sequence[int], below: int) -> torch.Tensor:
        """Uniform integers from 0 to `below` - 1."""
        import torch

        return torch.randint(0, below, tuple(shape), device=self.device)

    def shaped(
        self, shapes: Mapping[str, Sequence[int]], takes: Iterable[str], model: str, vocabulary: int
    ) -> dict[str, torch.Tensor]:
        """Inputs of these shapes, integers where the name ends in `ids` or `mask`. Raises UsageError for one
        that the model does not take."""
        takes = list(takes)
        for name, shape in shapes.items():
            if name not in takes:
                raise UsageError(f"model={model} takes no input {name}{near(name, takes)}")
            if not all(isinstance(size, int) and size > 0 for size in shape):
                raise UsageError(f"model.inputs.{name} is {shape}; it must be a shape such as [2,77]")

        def drawn(name: str, shape: Sequence[int]) -> torch.Tensor:
            if name.endswith("mask"):
                return self.integers(shape, 1) + 1
            return self.integers(shape, vocabulary) if name.endswith("ids") else self.floats(shape)

        return {name: drawn(name, shape) for name, shape in shapes.items()}


def class_of(package: str, name: str, base: str) -> Any:
    """A model's class. Raises UsageError, with the nearest name, where the package has no such class."""
    library = import_package(package, f"model={package}/{name}")
    models = [each for each in dir(library) if each[:1].isupper()]
    try:
        found = getattr(library, name)
    except AttributeError as error:
        raise UsageError(f"{package} has no model {name}{near(name, models)}") from error
    except ImportError as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"model={package}/{name} cannot be imported: {why}") from error
    if not isinstance(found, type) or base not in {each.__name__ for each in found.__mro__}:
        raise UsageError(f"{package}/{name} is not a model with a config; it must derive from {base}")
    return found


def build_on_device(make: Callable[[], nn.Module], *, device: str, dtype: str, seed: int) -> nn.Module:
    """Calls `make` with the device and dtype as defaults, so that a large model has no second copy, and
    tensors that the model creates with another dtype keep it."""
    import torch

    seed_all(seed)
    with _default_dtype(dtype), torch.device(device):
        made = make()
    return made.to(device)


@contextlib.contextmanager
def _default_dtype(dtype: str) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check_keys(given: Mapping[str, Any], known: Mapping[str, Any], model: str, above: str = "") -> None:
    """Raises UsageError for a key that the config, or one of its nested parts, does not have."""
    for key, value in given.items():
        if key not in known:
            raise UsageError(f"the config of {model} has no {above}{key}{near(key, list(known))}")
        part = known[key]
        if isinstance(value, Mapping) and isinstance(part, Mapping) and part:
            _check_keys(value, part, model, f"{above}{key}.")
