"""What the original model computes, in its own dtype and in float64, against which a model is measured."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from search.optimize.models.source import LoadedModel
from search.optimize.models.training import repeatable
from search.optimize.verification.errors import ALLOWED, LEAST_ERROR, allowed_error, error_of
from search.optimize.verification.record import ModelCheck

if TYPE_CHECKING:
    import torch

LEAST_OF_HALF = 2.0
"""As LEAST_ERROR, for gradients in types of 16 bits."""
Results = Mapping[str, "torch.Tensor"]


class Yardstick:
    """The results of the original, which `model` is now. In training, each output and each gradient is
    compared separately, because some gradients are far less accurate than others; `rounding` is the
    original's own error of each. Where there is no float64, as behind random numbers, it is the effect of
    rounding the weights differently."""

    def __init__(self, model: LoadedModel, seed: int) -> None:
        self._model, self._seed = model, seed
        self.eager: Results = results_of(model)
        self.exact: Results = {} if _draws(model) else _in_float64(model)
        if self.exact and not math.isfinite(error_of([*self.eager.values()], [*self.exact.values()])):
            self.exact = {}
        self.rounding: dict[str, float] = {}
        if model.backward:
            against, found = (
                (self.exact, self.eager) if self.exact else (self.eager, _rounded_differently(model))
            )
            self.rounding = errors_by_name(found, against)

    def check(self, found: Results, tokens: float | None = None) -> ModelCheck:
        """The worst of the results. One that is missing, or additional, has an infinite error."""
        wanted = self.exact or self.eager
        shared: dict[str, Any] = {"seed": self._seed, "tokens": tokens, "shape": self._model.shape}
        if not self._model.backward:
            ours, theirs = [*found.values()], [*wanted.values()]
            own = error_of([*self.eager.values()], theirs) if self.exact else None
            allowed = allowed_error(own, _epsilon(self.eager))
            return ModelCheck(error=error_of(ours, theirs), eager_error=own, allowed=allowed, **shared)
        names = list(dict.fromkeys([*wanted, *found]))
        errors = errors_by_name({name: found[name] for name in names if name in found}, wanted)
        checks = [
            ModelCheck(
                error=errors.get(name, math.inf),
                eager_error=self.rounding.get(name, 0.0),
                allowed=max(ALLOWED * self.rounding.get(name, 0.0), self._least_error(name)),
                where=name,
                **shared,
            )
            for name in names
        ]
        return max(checks, key=lambda each: each.error / each.allowed)

    def _least_error(self, name: str) -> float:
        """An error of a result that is always allowed in training: a few roundings of the dtype in which it
        is computed, of which types of 16 bits need fewer to be as far off."""
        import torch

        own = _epsilon({name: self.eager[name]}) if name in self.eager else 0.0
        wide = torch.finfo(torch.float32).eps
        cast = torch.finfo(getattr(torch, self._model.autocast)).eps if self._model.autocast else 0.0
        least = max((LEAST_ERROR if each <= wide else LEAST_OF_HALF) * each for each in (own, cast))
        return max(least, torch.finfo(torch.float64).eps)  # above 0 for integers, too


def errors_by_name(found: Results, wanted: Results) -> dict[str, float]:
    """The error of each result. That of a gradient is relative to its norm, or to a small part of the norm of
    all gradients where it is smaller still: a gradient that should be zero consists of rounding errors."""
    import torch

    gradients = [each for name, each in wanted.items() if not name.startswith("output")]
    total = math.sqrt(sum(float(each.double().norm()) ** 2 for each in gradients))
    least = total * math.sqrt(
        max((torch.finfo(each.dtype).eps for each in found.values() if each.is_floating_point()), default=0.0)
    )
    return {
        name: error_of([each], [wanted[name]], least=0.0 if name.startswith("output") else least)
        if name in wanted
        else math.inf
        for name, each in found.items()
    }


def results_of(model: LoadedModel) -> Results:
    """Copies of the model's results; the call leaves no trace."""
    with repeatable(model.module):
        return {name: each.detach().clone() for name, each in model.results().items()}


def _epsilon(results: Results) -> float:
    import torch

    floating = [each for each in results.values() if each.is_floating_point()]
    return max((torch.finfo(each.dtype).eps for each in floating), default=0.0)


def _draws(model: LoadedModel) -> bool:
    """Whether the model draws random numbers, which would be others in float64."""
    import torch

    if not model.backward:
        return False
    with repeatable(model.module):
        before = _generators()
        model.results()
        return any(not torch.equal(*pair) for pair in zip(before, _generators(), strict=True))


def _generators() -> list[torch.Tensor]:
    import torch

    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def _in_float64(model: LoadedModel) -> Results:
    """The model's results in float64; empty where it does not run or fit."""
    import torch
    from torch.utils._pytree import tree_map

    def wider(leaf: Any) -> Any:
        if not (isinstance(leaf, torch.Tensor) and leaf.is_floating_point()):
            return leaf
        return leaf.detach().double().requires_grad_(leaf.requires_grad)

    try:
        wide = replace(
            model,
            module=copy.deepcopy(model.module).double(),
            args=tree_map(wider, list(model.args)),
            kwargs=tree_map(wider, dict(model.kwargs)),
            autocast="",
        )
        return results_of(wide)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, MemoryError):
        return {}


def _rounded_differently(model: LoadedModel) -> Results:
    """The results with weights that differ by rounding errors."""
    import torch

    weights = [each for each in model.module.parameters() if each.is_floating_point()]
    before = [each.detach().clone() for each in weights]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in weights:
            noise = torch.rand(each.shape, generator=generator).to(each.device) * 2 - 1
            epsilon = torch.finfo(getattr(torch, model.autocast) if model.autocast else each.dtype).eps
            each.copy_(each.float() * (1 + epsilon * noise))
    try:
        return results_of(model)
    finally:
        with torch.no_grad():
            for each, own in zip(weights, before, strict=True):
                each.copy_(own)
