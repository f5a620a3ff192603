"""Where a model comes from: the protocol, what it gives, and models whose code is the user's own.

The user's form is that of references: `Model`, `get_inputs()`, `get_init_inputs()`, sizes as module globals.
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
    """A model on its device, with the example inputs of a call. `dtype`: of its weights and floating inputs,
    PyTorch's name. `backward`: a call goes on with gradients. `shape` names the inputs where a model has
    several such sets, and `weight` is the share of the calls that are like them."""

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
        """The name, with the shape where there are several."""
        return f"{self.name} at {self.shape}" if self.shape else self.name

    def run(self) -> list[torch.Tensor]:
        """One call; returns the tensors that it leaves: outputs, and gradients.

        Gradients begin at the loss where the output names one, otherwise at all floating outputs with ones.
        Raises what the model raises, and ValueError where there is no gradient.
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
        """As it was before a call."""
        for each in self._leaves():
            each.grad = None

    def _leaves(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.inputs()]

    def inputs(self) -> list[torch.Tensor]:
        """The tensors among the example inputs."""
        return tensors_in([list(self.args), dict(self.kwargs)])


class ModelSource(Protocol):
    """What makes a model: `model_config.source_of` chooses it by the model's name."""

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """The model at each of its shapes, one module with several sets of inputs; weights and inputs are
        drawn from the seed. `dtype` None: the model's own. Raises UsageError where there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class InputShape:
    """A set of example inputs: what draws the arguments and keyword arguments, for the model."""

    inputs: Callable[[nn.Module], tuple[Sequence[Any], Mapping[str, Any]]]
    name: str = ""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FileModel:
    """A file with a reference. `sizes` replaces module globals; `shapes` has the fields of a `Case` each,
    None: those of the file's own cases."""

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
    """An importable module that has what a reference has, by its dotted name."""

    name: str

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        module = import_package(self.name, f"model={self.name}")
        if missing := [name for name in REQUIRED if not hasattr(module, name)]:
            raise UsageError(
                f"model={self.name} defines no {' and no '.join(missing)}; it needs {', '.join(REQUIRED)}"
            )
        known = dtype or own_dtype(Path(str(module.__file__)).read_text(), {})
        how: Any = {"device": device, "dtype": known, "seed": seed}
        return _of_module(module, self.name, [_shape(module, how)], backward=backward, **how)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """In the block `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call the operators that they are
    written in. Without gradients and hooks they call one for the whole layer, of which no part can be a
    kernel."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """An error of the user's model, which may be any, is one line. Raises UsageError."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"model={name} fails: {type(error).__name__}: {first_line(error)}") from error


def import_package(name: str, wanted_by: str) -> types.ModuleType:
    """A module that need not be installed. Raises UsageError, which names it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        hint = f"; pip install {missing}" if missing == name.partition(".")[0] and missing in EXTRAS else ""
        raise UsageError(f"{wanted_by} needs {missing}, which is not installed{hint}") from error
    except Exception as error:  # a package that does not fit the torch that is there
        raise UsageError(
            f"{wanted_by}: {name} cannot be imported: {type(error).__name__}: {first_line(error)}"
        ) from error


EXTRAS = ("transformers", "torchvision", "diffusers")
"""Packages whose architectures can be profiled."""


def check_dtype(dtype: str | None) -> None:
    """Raises UsageError unless it is None, or the name of a floating type."""
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}")


def ready(
    name: str,
    make: Callable[[], nn.Module],
    shapes: Sequence[InputShape],
    **fields: Any,
) -> list[LoadedModel]:
    """The model at each of the shapes, in training mode where it goes backward. Raises UsageError for what
    the model raises."""
    backward = bool(fields["backward"])
    whole = sum(each.weight for each in shapes)
    models = []
    with told(name):
        module = make().train(backward)
        for each in shapes:
            args, kwargs = each.inputs(module)
            own: Any = {
                "args": args,
                "kwargs": kwargs,
                "shape": each.name if len(shapes) > 1 else "",
                "weight": each.weight / whole,
            }
            models.append(LoadedModel(name=name, module=module, **own, **fields))
    _check_sizes(models)
    if backward:
        for model in models:
            _require_gradients(model)
    return models


def _check_sizes(models: Sequence[LoadedModel]) -> None:
    """Raises UsageError for two shapes whose tensors have the same sizes: these tell one from another."""
    seen: dict[tuple[torch.Size, ...], str] = {}
    for each in models:
        sizes = tuple(tensor.shape for tensor in each.inputs())
        if sizes in seen:
            raise UsageError(f"model={each.title}: its inputs have the sizes of those at {seen[sizes]}")
        seen[sizes] = each.shape


def _require_gradients(model: LoadedModel) -> None:
    """Of the floating inputs, where nothing else does."""
    if not any(each.requires_grad for each in (*model.module.parameters(), *model.inputs())):
        map_tensors(
            lambda each: each.requires_grad_(each.is_floating_point()), [list(model.args), dict(model.kwargs)]
        )


def model_of_problem(problem: Problem, name: str, *, backward: bool, seed: int) -> list[LoadedModel]:
    """The model is that of the first shape: of the others there are inputs alone."""
    how: Any = {"device": problem.device, "dtype": problem.dtype, "seed": seed}
    plain = [each for each in problem.cases if each.weight and not (each.dtype or each.layout)]
    modules, shapes = [], []
    with told(name):
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
    return ready(
        name,
        lambda: make_model(module, "Model", init_inputs(module, seed), **how),
        shapes,
        device=device,
        dtype=dtype,
        backward=backward,
    )
