"""Loads models from the user's code, and the protocol for all model sources.

The user's code has the form of references: `Model`, `get_inputs()`, `get_init_inputs()`, sizes as module
globals.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evaluators.base.cause import first_line
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import DTYPES, Case, Problem
from evaluators.reference.containers import map_tensors, tensors_in
from evaluators.reference.loading import (
    REQUIRED,
    init_inputs,
    load_module,
    load_problem,
    make_inputs,
    make_model,
    own_dtype,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model on its device, with the arguments of an example call. `dtype`: PyTorch's name for that of the
    weights and floating inputs. `backward`: calls include the backward pass, in training mode. `shape`: name
    of the input shape, "" where there is one; `weight`: share of the calls with it."""

    name: str
    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: str
    dtype: str
    backward: bool = False
    shape: str = ""
    weight: float = 1.0

    @property
    def title(self) -> str:
        """The name, with the shape if there are several."""
        return f"{self.name} at {self.shape}" if self.shape else self.name

    def run(self) -> list[torch.Tensor]:
        """Calls the model once; returns its outputs and, with `backward`, the gradients.

        The backward pass starts at the output's `loss` if it has one, otherwise at all floating outputs, with
        gradients of one. Raises what the model raises, and ValueError where there is no gradient.
        """
        import torch

        with torch.set_grad_enabled(self.backward):
            output = self.module(*self.args, **self.kwargs)
            if not self.backward:
                return tensors_in(output)
            ends = tensors_in(output["loss"] if isinstance(output, Mapping) and "loss" in output else output)
            ends = [each for each in ends if each.requires_grad]
            if not ends:
                raise ValueError("no output has a gradient")
            torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
        return [*tensors_in(output), *(each.grad for each in self._leaves() if each.grad is not None)]

    def forget_gradients(self) -> None:
        """Removes the gradients of a call."""
        for each in self._leaves():
            each.grad = None

    def _leaves(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.inputs()]

    def inputs(self) -> list[torch.Tensor]:
        """The tensors among the example inputs."""
        return tensors_in([list(self.args), dict(self.kwargs)])


class ModelSource(Protocol):
    """Loads a model; `model_config.source_of` chooses the source by the model's name."""

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """Loads the model at each of its input shapes; all share one module. `dtype` None: the model's
        default. The seed determines weights and inputs. Raises UsageError where the model cannot be
        loaded."""
        ...


@dataclass(frozen=True, kw_only=True)
class InputShape:
    """A set of example inputs; `inputs` draws the arguments and keyword arguments for a module."""

    inputs: Callable[[nn.Module], tuple[Sequence[Any], Mapping[str, Any]]]
    name: str = ""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FileModel:
    """A file in the form of a reference. `sizes` replaces module globals; each of `shapes` has the fields of
    a `Case` (None: the file's cases)."""

    path: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        how: Any = {"device": device, "dtype": dtype, "sizes": self.sizes, "cases": self.shapes}
        try:
            problem = load_problem("file", path=self.path, **how)
        except ValueError as error:
            raise UsageError(f"model={self.path}: {first_line(error)}") from error
        return model_of_problem(problem, self.path, backward=backward, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ModuleModel:
    """An importable module in the form of a reference, by its dotted name."""

    name: str

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        module = import_package(self.name, f"model={self.name}")
        if missing := [name for name in REQUIRED if not hasattr(module, name)]:
            raise UsageError(
                f"model={self.name} does not define {' and '.join(missing)}; it needs {', '.join(REQUIRED)}"
            )
        known = dtype or own_dtype(Path(str(module.__file__)).read_text(), {})
        how: Any = {"device": device, "dtype": known, "seed": seed}
        return _of_module(module, self.name, [_shape(module, how)], backward=backward, **how)


@contextlib.contextmanager
def without_fastpath() -> Iterator[None]:
    """Within the block, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call their individual
    operators.Without gradients and hooks they would call one fused operator per layer."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def model_errors(name: str) -> Iterator[None]:
    """Turns any error of the user's model into a UsageError with one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"model={name} fails: {type(error).__name__}: {first_line(error)}") from error


def import_package(name: str, wanted_by: str) -> types.ModuleType:
    """Imports an optional package. Raises UsageError if it is missing or broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        hint = f"; pip install {missing}" if missing == name.partition(".")[0] and missing in EXTRAS else ""
        raise UsageError(f"{wanted_by} needs {missing}, which is not installed{hint}") from error
    except Exception as error:  # for example a package that does not fit the installed torch
        raise UsageError(
            f"{wanted_by}: {name} cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error


EXTRAS = ("transformers", "torchvision", "diffusers")
"""Packages whose architectures can be profiled."""


def check_dtype(dtype: str | None) -> None:
    """Raises UsageError unless `dtype` is None or the name of a floating dtype."""
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}")


def load_at_shapes(
    name: str,
    make: Callable[[], nn.Module],
    shapes: Sequence[InputShape],
    **fields: Any,
) -> list[LoadedModel]:
    """Makes the model and draws its inputs at each shape; training mode with `backward`. Raises UsageError
    for an error in the model."""
    backward = bool(fields["backward"])
    total = sum(each.weight for each in shapes)
    models = []
    with model_errors(name):
        module = make().train(backward)
        for each in shapes:
            args, kwargs = each.inputs(module)
            own: Any = {
                "args": args,
                "kwargs": kwargs,
                "shape": each.name if len(shapes) > 1 else "",
                "weight": each.weight / total,
            }
            models.append(LoadedModel(name=name, module=module, **own, **fields))
    _check_sizes(models)
    if backward:
        for model in models:
            _require_gradients(model)
    return models


def _check_sizes(models: Sequence[LoadedModel]) -> None:
    """Raises UsageError for two shapes with the same tensor sizes, which could not be told apart."""
    seen: dict[tuple[torch.Size, ...], str] = {}
    for each in models:
        sizes = tuple(tensor.shape for tensor in each.inputs())
        if sizes in seen:
            raise UsageError(f"model={each.title}: its inputs have the same sizes as those at {seen[sizes]}")
        seen[sizes] = each.shape


def _require_gradients(model: LoadedModel) -> None:
    """Makes the floating inputs require gradients, where nothing else does."""
    if not any(each.requires_grad for each in (*model.module.parameters(), *model.inputs())):
        map_tensors(
            lambda each: each.requires_grad_(each.is_floating_point()), [list(model.args), dict(model.kwargs)]
        )


def model_of_problem(problem: Problem, name: str, *, backward: bool, seed: int) -> list[LoadedModel]:
    """The model of a problem: the module of its first case, with the inputs of every case."""
    how: Any = {"device": problem.device, "dtype": problem.dtype, "seed": seed}
    plain = [each for each in problem.cases if each.weight and not (each.dtype or each.layout)]
    modules, shapes = [], []
    with model_errors(name):
        for number, each in enumerate(plain or [Case()]):
            called = f"reference_{number}" if number else "reference"
            modules.append(load_module(problem.source, {**problem.overrides, **each.sizes}, called))
            shapes.append(_shape(modules[-1], how, name=each.name, weight=each.weight))
    return _of_module(modules[0], name, shapes, backward=backward, **how)


def _shape(module: types.ModuleType, how: Mapping[str, Any], **fields: Any) -> InputShape:
    return InputShape(inputs=lambda _: (make_inputs(module, **how), {}), **fields)


def _of_module(
    module: types.ModuleType,
    name: str,
    shapes: Sequence[InputShape],
    *,
    device: str,
    dtype: str,
    backward: bool,
    seed: int,
) -> list[LoadedModel]:
    how: Any = {"seed": seed, "device": device, "dtype": dtype}
    return load_at_shapes(
        name,
        lambda: make_model(module, "Model", init_inputs(module, seed), **how),
        shapes,
        device=device,
        dtype=dtype,
        backward=backward,
    )
