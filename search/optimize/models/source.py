"""Loads models from the user's code, and the protocol for all model sources.

The user's code has the form of references: `Model`, `get_inputs()`, `get_init_inputs()`, sizes as module
globals.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import DTYPES, Case, Problem
from evaluators.reference.containers import map_tensors
from evaluators.reference.loading import (
    REQUIRED,
    as_task,
    init_inputs,
    load_module,
    load_problem,
    make_inputs,
    make_model,
    own_dtype,
    seed_all,
)
from search.optimize.models.training import ends_of, loss_of, upstream_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from search.optimize.models.templates import Signature

CALLS = "get_calls"
"""Module global of a model's file: a function that returns the ways of calling the model."""
ONES = "ones"
WEIGHT = "weight"
COMPILED = "_orig_mod."
"""What `torch.compile` puts before the names of a module's weights."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model on its device, with the arguments of an example call. `dtype`: PyTorch's name for that of the
    weights and floating inputs. `backward`: calls include the backward pass, in training mode. `shape`: name
    of the input shape and the way of calling, "" where there is one; `weight`: share of the calls with it.
    `optional`: left out if it cannot be recorded. `alike`: other ways of calling that run the same code.
    `autocast`: the dtype of `torch.autocast` in its calls, "" for none. `optimizer`: calls are steps of
    training with it, which change the weights."""

    name: str
    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: str
    dtype: str
    backward: bool = False
    shape: str = ""
    weight: float = 1.0
    optional: bool = False
    alike: Sequence[AlikeCall] = ()
    autocast: str = ""
    optimizer: torch.optim.Optimizer | None = None

    @property
    def title(self) -> str:
        """The name, with the shape if there are several."""
        return f"{self.name} at {self.shape}" if self.shape else self.name

    def run(self) -> list[torch.Tensor]:
        """Calls the model once; returns its outputs and, with `backward`, the gradients, which it takes from
        the weights and inputs; of a step of training the loss. Raises what the model raises, and ValueError
        where there is no gradient."""
        return list(self.results().values()) if self.optimizer is None else [self._step(self.optimizer)]

    def _step(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        import torch

        optimizer.zero_grad()
        with self.mode():
            args, kwargs = self.fresh()
            loss = loss_of(self.module(*args, **kwargs))
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Within the block, gradients and autocast are as in the model's calls."""
        import torch

        dtype = getattr(torch, self.autocast) if self.autocast else None
        with (
            torch.set_grad_enabled(self.backward),
            torch.autocast(self.device, dtype=dtype, enabled=dtype is not None),
        ):
            yield

    def results(self) -> dict[str, torch.Tensor]:
        """What `run` returns, by name."""
        import torch

        with self.mode():
            args, kwargs = self.fresh()
            output = self.module(*args, **kwargs)
        found = {f"output {number}": each for number, each in enumerate(_tensors_of(output))}
        if not self.backward:
            return found
        ends = ends_of(output)
        for _, each in self._leaves():
            each.grad = None  # a step of training leaves its gradients
        torch.autograd.backward(ends, [upstream_of(each) for each in ends])
        for name, each in self._leaves():
            if each.grad is not None:
                found[f"the gradient of {name}"] = each.grad
                each.grad = None
        return found

    def _leaves(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name.removeprefix(COMPILED), each) for name, each in self.module.named_parameters())
        yield from ((f"input {number}", each) for number, each in enumerate(self.inputs()))

    def inputs(self) -> list[torch.Tensor]:
        """The tensors among the example inputs."""
        return _tensors_of([list(self.args), dict(self.kwargs)])

    def fresh(
        self, tensor: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    ) -> tuple[list[Any], dict[str, Any]]:
        """The example arguments in new containers and objects, because a forward may change them; `tensor` is
        applied to each tensor."""
        known: dict[int, Any] = {}
        return _fresh(list(self.args), tensor, known), _fresh(dict(self.kwargs), tensor, known)

    @property
    def signature(self) -> Signature:
        """The parameters of the model's forward."""
        from search.optimize.models.templates import Signature

        return Signature.of(self.module.forward)

    def call(self) -> tuple[Any, list[torch.Tensor]]:
        """The template of the example call, and its tensors."""
        return self.signature.call(self.args, self.kwargs)


@dataclass(frozen=True, kw_only=True)
class AlikeCall:
    """A way of calling that runs the code of another one. `passed`: the numbers of the tensors that the code
    takes; `filled`: the value that all elements of another tensor must have, by its number."""

    model: LoadedModel
    passed: Sequence[int]
    filled: Mapping[int, float] = field(default_factory=dict)


def _fresh(value: Any, tensor: Callable[[torch.Tensor], torch.Tensor], known: dict[int, Any]) -> Any:
    """A copy of the value with copies of the containers and objects in it. `known`: copies by identity."""
    import torch

    if id(value) in known:
        return known[id(value)]
    made = value
    if isinstance(value, torch.Tensor):
        made = tensor(value)
    elif isinstance(value, dict):
        made = copy.copy(value)
        made.update({key: _fresh(each, tensor, known) for key, each in value.items()})
    elif isinstance(value, list | tuple | deque):
        parts = [_fresh(each, tensor, known) for each in value]
        if isinstance(value, deque):
            made = deque(parts, value.maxlen)
        else:
            made = (value._make if hasattr(value, "_make") else type(value))(parts)
    elif hasattr(value, "__dict__") and not (callable(value) or isinstance(value, types.ModuleType)):
        made = known[id(value)] = copy.copy(value)
        for name, each in vars(value).items():
            object.__setattr__(made, name, _fresh(each, tensor, known))
    known[id(value)] = made
    return made


def _tensors_of(value: Any) -> list[torch.Tensor]:
    from search.optimize.models.templates import take_apart

    tensors: list[torch.Tensor] = []
    take_apart(value, tensors)
    return tensors


class ModelSource(Protocol):
    """Loads a model; `model_config.source_of` chooses the source by the model's name."""

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """Loads the model at each of its input shapes; all share one module. `dtype` None: the model's
        default. The seed determines weights and inputs. Raises UsageError where the model cannot be
        loaded."""
        ...


@dataclass(frozen=True, kw_only=True)
class InputShape:
    """A set of example inputs; `inputs` draws the arguments and keyword arguments for a module. `calls`: the
    ways of calling it with them, each with the arguments in which it differs and its `weight`; they are
    `optional` where nobody asked for them."""

    inputs: Callable[[nn.Module], tuple[Sequence[Any], Mapping[str, Any]]]
    name: str = ""
    weight: float = 1.0
    calls: Sequence[Mapping[str, Any]] = ({},)
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class FileModel:
    """A file in the form of a reference. `sizes` replaces module globals; each of `shapes` has the fields of
    a `Case` (None: the file's cases), each of `calls` the arguments of a way of calling (None: the file's
    `get_calls()`)."""

    path: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[Mapping[str, Any]] | None = None
    calls: Sequence[Mapping[str, Any]] | None = None

    def load(self, *, device: str, dtype: str | None, backward: bool, seed: int) -> list[LoadedModel]:
        """See `ModelSource`."""
        how: Any = {"device": device, "dtype": dtype, "sizes": self.sizes, "cases": self.shapes}
        try:
            problem = load_problem("file", path=self.path, **how)
        except ValueError as error:
            raise UsageError(f"model={self.path}: {first_line(error)}") from error
        return model_of_problem(problem, self.path, backward=backward, seed=seed, calls=self.calls)


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
    models: list[LoadedModel] = []
    with model_errors(name):
        module = make().train(backward)
        for each in shapes:
            several = len(each.calls) > 1 and not backward
            for call in each.calls if several else each.calls[:1]:
                changed = {key: value for key, value in call.items() if key != WEIGHT}
                title = " ".join(f"{key}={_short(value)}" for key, value in changed.items()) or "plain"
                args, kwargs = called_with(module, *each.inputs(module), changed)
                models.append(
                    LoadedModel(
                        name=name,
                        module=module,
                        args=args,
                        kwargs=kwargs,
                        shape=" ".join([each.name] * (len(shapes) > 1) + [title] * several),
                        weight=each.weight * call.get(WEIGHT, 1.0),
                        optional=each.optional and call is not each.calls[0],
                        **fields,
                    )
                )
    total = sum(each.weight for each in models)
    models = [replace(each, weight=each.weight / total) for each in models]
    models = [replace(models[0], shape="")] if len(models) == 1 else models
    _check_calls(models)
    if backward:
        for model in models:
            _require_gradients(model)
    return models


def called_with(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with those of a way of calling. The word `ones` stands for a tensor of ones with the size
    of the first tensor, as a mask of all tokens is. Raises UsageError for an unknown parameter."""
    import torch

    from search.optimize.models.templates import Signature

    signature = Signature.of(module.forward)
    args, kwargs = list(args), dict(kwargs)
    first = next(iter(_tensors_of([args, kwargs])), None)
    for name, value in changed.items():
        if not signature.takes(name):
            raise UsageError(f"model.calls: the forward has no parameter {name}{near(name, signature.names)}")
        if isinstance(value, str) and value == ONES and first is not None:
            value = torch.ones(first.shape, dtype=torch.int64, device=first.device)
        place = signature.names.index(name) if name in signature.names else len(args)
        if place < len(args):
            args[place] = value
        else:
            kwargs[name] = value
    return args, kwargs


def _short(value: Any) -> str:
    """A value of a way of calling in a word."""
    import torch

    return "tensor" if isinstance(value, torch.Tensor) else " ".join(str(value).split())[:30]


def at_shapes(models: Sequence[LoadedModel], weights: Mapping[str, float]) -> list[LoadedModel]:
    """The models at these shapes, which are those of a profile, with their weights. The shape "" is the only
    one: the call with the fewest tensors."""
    if [*weights] == [""]:
        return [replace(min(models, key=lambda each: len(each.inputs())), shape="", weight=1.0)]
    return [replace(each, weight=weights[each.shape]) for each in models if each.shape in weights]


def resumed_at(models: Sequence[LoadedModel], weights: Mapping[str, float]) -> list[LoadedModel]:
    """The models at the shapes of an earlier profile, without optional ways of calling that it does not have.
    Where another one is missing they are as they were."""
    if [*weights] == [""] and all(each.optional for each in models[1:]):
        return at_shapes(models, weights)
    kept = [each for each in models if not each.optional or each.shape in weights]
    return at_shapes(kept, weights) if len(kept) < len(models) else list(models)


def _check_calls(models: Sequence[LoadedModel]) -> None:
    """Raises UsageError for two shapes with the same call, which could not be told apart."""
    seen: dict[str, str] = {}
    for each in models:
        template, tensors = each.call()
        call = repr([template, [(tensor.shape, tensor.dtype) for tensor in tensors]])
        if call in seen:
            same = f"its inputs have the same sizes as those at {seen[call]}"
            raise UsageError(f"model={each.title}: {same}; leave one of the two shapes out")
        seen[call] = each.shape


def _require_gradients(model: LoadedModel) -> None:
    """Makes the floating inputs require gradients, where nothing else does."""
    if not any(each.requires_grad for each in (*model.module.parameters(), *model.inputs())):
        map_tensors(
            lambda each: each.requires_grad_(each.is_floating_point()), [list(model.args), dict(model.kwargs)]
        )


def model_of_problem(
    problem: Problem,
    name: str,
    *,
    backward: bool,
    seed: int,
    calls: Sequence[Mapping[str, Any]] | None = None,
) -> list[LoadedModel]:
    """The model of a problem: the module of its first case, with the inputs of every case, in each way of
    calling (None: those of its `get_calls()`)."""
    how: Any = {"device": problem.device, "dtype": problem.dtype, "seed": seed}
    plain = [each for each in problem.cases if each.weight and not (each.dtype or each.layout)]
    modules, shapes = [], []
    with model_errors(name):
        for number, each in enumerate(plain or [Case()]):
            called = f"reference_{number}" if number else "reference"
            modules.append(load_module(problem.source, {**problem.overrides, **each.sizes}, called))
            shapes.append(_shape(modules[-1], how, calls, name=each.name, weight=each.weight))
    return _of_module(modules[0], name, shapes, backward=backward, **how)


def _shape(
    module: types.ModuleType,
    how: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> InputShape:
    if calls is None and hasattr(module, CALLS):
        seed_all(how["seed"])
        calls = [as_task(dict(each), how["device"], how["dtype"]) for each in getattr(module, CALLS)()]
    return InputShape(inputs=lambda _: (make_inputs(module, **how), {}), calls=list(calls or [{}]), **fields)


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
