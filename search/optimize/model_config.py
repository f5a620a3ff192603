"""The part of a command's config that says which model: `model=…`, and the keys below it."""

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
"""Where architectures come from, by what their names begin with."""
OF_A_SHAPE = ("sizes", "batch", "sequence", "image", "sample", "inputs")
"""Keys of a model that may differ from shape to shape."""


@dataclass(frozen=True, kw_only=True)
class ProblemModel:
    """A problem of a suite, by its name (`level1/softmax`). `sizes` and `shapes` are as those of a file, but
    None is one shape: a suite's cases need not be a model's."""

    name: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        rules = OmegaConf.structured(RulesConfig(dtype=dtype, sizes=dict(self.sizes)))
        problem = open_problem(self.name, device=device, rules=rules)
        try:
            problem = replace(problem, cases=read_cases(self.shapes or (), problem.source, self.name))
        except ValueError as error:
            raise UsageError(f"model={self.name}: {first_line(error)}") from error
        return model_of_problem(problem, self.name, backward=backward, seed=seed)


@dataclass
class ModelConfig:
    """A model, and what can be set of it; null: the default of its kind."""

    name: str = option(
        MISSING,
        "model=… for short: a file (my_model.py), an importable module, a problem (level1/softmax), "
        "or transformers/…, torchvision/…, diffusers/…",
    )
    shapes: list[dict[str, Any]] | None = option(
        None,
        "several sets of inputs: [{batch: 1, weight: 3}, {batch: 32}] of architectures, "
        "[{sizes: {batch: 1}}, ...] of files and problems; null: those of the file's get_cases(); []: one",
    )
    sizes: dict[str, Any] = option({}, "of files and problems: module globals to replace")
    config: dict[str, Any] = option({}, "of architectures: changes the library's default config")
    inputs: dict[str, Any] = option({}, "of transformers and diffusers: shapes of further inputs")
    batch: int | None = option(None, "of architectures; null: 1")
    sequence: int | None = option(None, "tokens of an input; null: 128, or 77 of what conditions diffusers")
    image: int | None = option(None, "of torchvision: pixels, high and wide; null: 224")
    sample: int | None = option(None, "of diffusers: what is denoised, high and wide; null: its config's")
    labels: bool | None = option(None, "of transformers: the loss of predicting the inputs, too; null: false")


def named(overrides: Sequence[str]) -> list[str]:
    """The overrides with `model=…` as the key that it is short for."""
    short = "model="
    return [f"model.name={each[len(short) :]}" if each.startswith(short) else each for each in overrides]


def source_of(config: DictConfig | Mapping[str, Any]) -> ModelSource:
    """The source of a `ModelConfig`. Raises UsageError for a name that is none, and for a key that its kind
    of model does not have."""
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
        raise UsageError(f"model={name}: there is no collection {collection}; did you mean {meant}?")
    else:
        made, own = ProblemModel if rest else ModuleModel, {"name": name}
    given = {
        str(key): value for key, value in given_keys.items() if key != "name" and value not in (None, {})
    }
    known = {each.name for each in fields(made)} - {"name", "path"}
    if not given.get("shapes", True) and "shapes" not in known:
        del given["shapes"]  # one set of inputs is what each model has
    for key in given:
        if key not in known:
            has = f"it has {', '.join(f'model.{each}' for each in sorted(known))}" if known else "it has none"
            raise UsageError(f"model.{key} is no key of model={name}; {has}")
    _check_shapes(given.get("shapes") or (), [*(each for each in OF_A_SHAPE if each in known), "weight"])
    source: ModelSource = made(**own, **given)
    return source


def _check_shapes(shapes: Sequence[Mapping[str, Any]], known: Sequence[str]) -> None:
    """Raises UsageError for a key that a shape does not have, and for a weight that is none."""
    for each in shapes:
        if unknown := [key for key in each if key not in known]:
            raise UsageError(f"{unknown[0]} is no key of a shape in model.shapes; it has {', '.join(known)}")
        weight = each.get("weight", 1)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UsageError(f"the weight of a shape in model.shapes is {weight}; it must be above 0")
