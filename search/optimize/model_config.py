"""The config section that chooses the model: `model=…`, and the keys below it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf

from evaluators.app.suite_config import RulesConfig, open_problem
from evaluators.base.cause import first_line
from evaluators.base.nearest import nearest
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.reference.loading import read_cases
from search.optimize.models.architectures import Diffusers, Torchvision, Transformers
from search.optimize.models.source import FileModel, LoadedModel, ModelSource, ModuleModel, model_of_problem

COLLECTIONS: dict[str, type[Any]] = {
    "transformers": Transformers,
    "torchvision": Torchvision,
    "diffusers": Diffusers,
}
"""Packages with architectures, by the prefix of a model's name."""
OF_A_SHAPE = ("sizes", "batch", "sequence", "image", "sample", "inputs")
"""Keys of a model that may differ between input shapes."""


@dataclass(frozen=True, kw_only=True)
class ProblemModel:
    """A problem of a suite, by its name (`level1/softmax`). `sizes` and `shapes` work as for a file, but
    `shapes` None means one shape, because a suite's cases need not suit a model."""

    name: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None
    calls: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        rules = OmegaConf.structured(RulesConfig(dtype=dtype, sizes=dict(self.sizes)))
        problem = open_problem(self.name, device=device, rules=rules)
        try:
            problem = replace(problem, cases=read_cases(self.shapes or (), problem.source, self.name))
        except ValueError as error:
            raise UsageError(f"model={self.name}: {first_line(error)}") from error
        return model_of_problem(problem, self.name, backward=backward, seed=seed, calls=self.calls)


@dataclass
class ModelConfig:
    """A model and its settings; null: the default of its kind."""

    name: str = option(
        MISSING,
        "the model, also as model=…: a file (my_model.py), an importable module, a problem (level1/softmax), "
        "or transformers/…, torchvision/…, diffusers/…",
    )
    shapes: list[dict[str, Any]] | None = option(
        None,
        "several input shapes: [{batch: 1, weight: 3}, {batch: 32}] for architectures, "
        "[{sizes: {batch: 1}}, ...] for files and problems; null: the file's get_cases(); []: one shape",
    )
    calls: list[dict[str, Any]] | None = option(
        None,
        "several ways of calling: [{}, {attention_mask: ones, weight: 3}, {use_cache: false}], each with the "
        "arguments in which it differs; null: for a file its get_calls(), for transformers calls with and "
        "without a mask and a cache, otherwise one call",
    )
    sizes: dict[str, Any] = option({}, "module globals to replace (files and problems)")
    config: dict[str, Any] = option({}, "changes to the architecture's default config")
    inputs: dict[str, Any] = option({}, "shapes of further inputs (transformers, diffusers)")
    batch: int | None = option(None, "batch size (architectures); null: 1")
    sequence: int | None = option(
        None,
        "number of tokens: per input for transformers (null: 128), per prompt for diffusers (null: 77)",
    )
    image: int | None = option(None, "image height and width in pixels (torchvision); null: 224")
    sample: int | None = option(
        None, "height and width of the denoised sample (diffusers); null: its config's"
    )
    labels: bool | None = option(None, "also compute the loss of predicting the inputs (transformers)")


def expand_name(overrides: Sequence[str]) -> list[str]:
    """Expands `model=…` to `model.name=…`."""
    short = "model="
    return [f"model.name={each[len(short) :]}" if each.startswith(short) else each for each in overrides]


def source_of(config: DictConfig | Mapping[str, Any]) -> ModelSource:
    """The source for a `ModelConfig`. Raises UsageError for an unknown name, and for a key that this kind of
    model does not have."""
    given_keys = OmegaConf.to_container(OmegaConf.create(config), resolve=True)  # type: ignore[arg-type]
    assert isinstance(given_keys, dict)
    name = str(given_keys["name"])
    collection, _, rest = name.partition("/")
    made: type[Any]
    own: dict[str, Any]
    if name.endswith(".py"):
        made, own = FileModel, {"path": name}
    elif collection in COLLECTIONS and rest:
        made, own = COLLECTIONS[collection], {"name": rest}
    elif rest and (meant := nearest(collection, COLLECTIONS, 0.7)):
        raise UsageError(f"model={name}: unknown collection {collection}; did you mean {meant}?")
    else:
        made, own = ProblemModel if rest else ModuleModel, {"name": name}
    given = {
        str(key): value for key, value in given_keys.items() if key != "name" and value not in (None, {})
    }
    known = {each.name for each in fields(made)} - {"name", "path"}
    for key in ("shapes", "calls"):
        if not given.get(key, True) and key not in known:
            del given[key]  # an empty list means one, which every model has
    for key in given:
        if key not in known:
            has = f"it has {', '.join(f'model.{each}' for each in sorted(known))}" if known else "it has none"
            raise UsageError(f"model={name} has no key model.{key}; {has}")
    _check_shapes(given.get("shapes") or (), [*(each for each in OF_A_SHAPE if each in known), "weight"])
    _check_weights("calls", given.get("calls") or ())
    source: ModelSource = made(**own, **given)
    return source


def _check_shapes(shapes: Sequence[Mapping[str, Any]], known: Sequence[str]) -> None:
    """Raises UsageError for an unknown key of a shape, and for an invalid weight."""
    for each in shapes:
        if unknown := [key for key in each if key not in known]:
            raise UsageError(f"model.shapes has the unknown key {unknown[0]}; known are {', '.join(known)}")
    _check_weights("shapes", shapes)


def _check_weights(key: str, listed: Sequence[Mapping[str, Any]]) -> None:
    for each in listed:
        weight = each.get("weight", 1)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UsageError(f"model.{key} has the weight {weight}; it must be above 0")
