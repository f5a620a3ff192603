"""Tries everything that installation needs, without a kernel and before a budget is spent: writes the
model's forward as code, loads it into the model and runs it, in training with its backward pass."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.base.usage_error import UsageError
from search.optimize.extraction.graph import CaptureError
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.installation.package import load_package, write_package
from search.optimize.models.source import LoadedModel, model_errors
from search.optimize.models.training import repeatable

if TYPE_CHECKING:
    import torch


def rehearse(traced_models: Sequence[TracedModel]) -> None:
    """Raises UsageError if the model's forward leaves something behind that code cannot repeat, or if the
    forward as code, without a kernel, cannot be loaded, does not run for its own calls, or has clearly
    different results or gradients."""
    model = traced_models[0].model
    calls = [
        each
        for traced in traced_models
        for each in (traced.model, *(own.model for own in traced.model.alike))
    ]
    with tempfile.TemporaryDirectory() as place, model_errors(model.title):
        wanted = [_results(each) for each in calls]
        try:
            write_package(Path(place), traced_models, {}, {})
        except CaptureError as error:
            raise _refused(model, str(error)) from error
        package = load_package(Path(place))
        try:
            package.load(model.module)
        except ValueError as error:
            raise _refused(model, str(error)) from error
        try:
            for each, own in zip(calls, wanted, strict=True):
                found = _results(each)
                if fallbacks := type(model.module).plan.fallbacks:  # type: ignore[attr-defined]
                    raise _refused(each, f"its forward as code does not run: {next(iter(fallbacks))}")
                if why := _difference(found, own, each.autocast):
                    raise _refused(each, f"its forward as code has different results: {why}")
        finally:
            package.unload(model.module)


def _refused(model: LoadedModel, why: str) -> UsageError:
    return UsageError(f"model={model.title}: kernels cannot be installed: {why}")


def _results(model: LoadedModel) -> tuple[Any, Mapping[str, torch.Tensor]]:
    """The template of the model's results for a copy of its arguments, and their tensors by name; in training
    the gradients, too."""
    import torch

    from search.optimize.models.templates import take_apart

    with repeatable(model.module):
        if model.backward:
            return None, {name: each.detach().clone() for name, each in model.results().items()}
        args, kwargs = model.fresh(torch.Tensor.clone)
        tensors: list[torch.Tensor] = []
        with torch.no_grad():
            template = take_apart(model.module(*args, **kwargs), tensors)
            return template, {f"output {number}": each.clone() for number, each in enumerate(tensors)}


def _difference(
    found: tuple[Any, Mapping[str, torch.Tensor]],
    wanted: tuple[Any, Mapping[str, torch.Tensor]],
    autocast: str,
) -> str:
    """What differs between two results; "" for at most half of the digits of their type, or a few roundings
    of the dtype of `autocast`."""
    from search.optimize.models.templates import differences

    if why := next(differences(wanted[0], found[0], "the result"), ""):
        return why
    for name, theirs in wanted[1].items():
        ours = found[1].get(name)
        if ours is None:
            return f"{name} is missing"
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"{list(ours.shape)} {ours.dtype} instead of {list(theirs.shape)} {theirs.dtype}"
        if not _is_close(ours, theirs, autocast):
            return "other numbers" + (f" in {name}" if len(wanted[1]) > 1 else "")
    return next((f"{name} is new" for name in found[1] if name not in wanted[1]), "")


def _is_close(ours: torch.Tensor, theirs: torch.Tensor, autocast: str) -> bool:
    import torch

    if not (theirs.is_floating_point() or theirs.is_complex()):
        return torch.equal(ours, theirs)
    rough = torch.finfo(theirs.dtype).eps ** 0.5
    if autocast:
        rough = max(rough, 2 * torch.finfo(getattr(torch, autocast)).eps)
    ours, theirs = (
        each.to(torch.complex128 if each.is_complex() else torch.float64) for each in (ours, theirs)
    )
    finite = theirs[theirs.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(ours, theirs, rtol=rough, atol=rough * largest, equal_nan=True)
