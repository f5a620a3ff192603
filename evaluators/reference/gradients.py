"""Training: a model as a function of its inputs and of the gradients of its outputs, whose outputs are those
of the model and the gradients of its inputs and weights. Everything that judges a function then judges the
backward pass too.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from evaluators.reference.containers import WrongForm, map_tensors, tensors_in, tensors_of

if TYPE_CHECKING:
    import torch
    from torch import nn

FORMS = "_forms_of_differentiable_outputs"
"""An attribute of a reference's module: what `upstream_gradients` has found out."""


class NotDifferentiable(WrongForm):
    """The outputs have no gradients, or not those of the reference."""


def with_gradients(model: nn.Module) -> nn.Module:
    """A module whose last argument is a list of gradients, one for each differentiable output of the model;
    the other arguments are the model's. It returns the model's output, and a list of the gradients of all
    floating-point inputs and weights, in their order; zeros where the output does not depend on one."""
    import torch

    class WithGradients(torch.nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward_pass(self, *given: Any) -> Any:
            with torch.enable_grad():
                return self.model(*map_tensors(_leaf, list(given[:-1])))

        def forward(self, *given: Any) -> tuple[Any, list[torch.Tensor]]:
            *inputs, upstream = given
            with torch.enable_grad():
                leaves = map_tensors(_leaf, inputs)
                output = self.model(*leaves)
                ends = _ends(output)
                if len(ends) != len(upstream):
                    raise NotDifferentiable(
                        f"{len(ends)} of its outputs have gradients, {len(upstream)} of the reference's: "
                        "ModelNew must be differentiable, made of PyTorch's operators or of "
                        "torch.autograd.Function"
                    )
                wanted = [
                    each for each in (*tensors_in(leaves), *self.model.parameters()) if each.requires_grad
                ]
                found = _gradients(ends, wanted, upstream)
            gradients = [
                torch.zeros_like(each) if gradient is None else gradient
                for each, gradient in zip(wanted, found, strict=True)
            ]
            return map_tensors(torch.Tensor.detach, output), gradients

    return WithGradients(model)


def _gradients(
    ends: list[torch.Tensor], wanted: list[torch.Tensor], upstream: list[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """What `torch.autograd.grad` returns, without its import of torch's compiler: every runner would take 1 s
    for it, or 4.5 s if torch's files have no bytecode yet."""
    from torch.autograd.graph import _engine_run_backward

    keep_graph, create_graph, allow_unused = False, False, True
    found: Sequence[torch.Tensor | None] = _engine_run_backward(
        tuple(ends),
        tuple(upstream),
        keep_graph,
        create_graph,
        tuple(wanted),
        allow_unused,
        accumulate_grad=False,
    )
    return found


def upstream_gradients(
    module: types.ModuleType, make: Callable[[], nn.Module], inputs: Callable[[], list[Any]]
) -> list[torch.Tensor]:
    """Random gradients for the differentiable outputs of a reference, drawn from the generators in their
    current state on the current device. The model that `make` returns runs once on `inputs`, to learn their
    forms. Raises NotDifferentiable if it has none."""
    import torch

    forms: Sequence[tuple[torch.Size, torch.dtype]] | None = getattr(module, FORMS, None)
    if forms is None:
        with torch.enable_grad():
            forms = [(each.shape, each.dtype) for each in _ends(make()(*map_tensors(_leaf, inputs())))]
        if not forms:
            raise NotDifferentiable("none of its outputs has a gradient; leave out problem.backward=true")
        setattr(module, FORMS, forms)
    return [torch.randn(shape).to(dtype) for shape, dtype in forms]


def saved_bytes(trained: Any, given: Sequence[Any]) -> int:
    """The bytes that a forward pass saves for the backward pass, in addition to its inputs, weights and
    outputs, for a module by `with_gradients` and its arguments. On a GPU all memory counts that the pass
    leaves allocated; on a CPU, what PyTorch saves for it."""
    import torch

    on_gpu = any(each.is_cuda for each in tensors_in(list(given)))
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        output = trained.forward_pass(*given)
        torch.cuda.synchronize()
        left = torch.cuda.memory_allocated() - before
        own = {each.untyped_storage().data_ptr(): each for each in tensors_in(output)}
        known = _storages([*tensors_in(list(given)), *trained.parameters()])
        return max(
            0, left - sum(each.untyped_storage().nbytes() for at, each in own.items() if at not in known)
        )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = trained.forward_pass(*given)
    known = _storages([*tensors_in(list(given)), *trained.parameters(), *tensors_in(output)])
    return sum(each.untyped_storage().nbytes() for at, each in saved.items() if at not in known)


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in tensors}


def gradient_names(trained: Any, given: Sequence[Any]) -> list[str]:
    """What the gradients are of, in their order, for a module by `with_gradients` and its arguments."""
    arguments = inspect.signature(trained.model.forward).parameters
    names = []
    for name, value in zip_longest(arguments, given[:-1], fillvalue="an input"):
        tensors = tensors_in(map_tensors(_leaf, value))
        numbers = [number for number, each in enumerate(tensors) if each.requires_grad]
        names += [name if len(tensors) == 1 else f"{name}[{number}]" for number in numbers]
    return names + [name for name, each in trained.model.named_parameters() if each.requires_grad]


def terms_of_gradients(outputs: Sequence[torch.Tensor], gradients: int) -> list[int]:
    """For each output, of which the last ones are gradients: how many numbers its elements are sums of, at
    most. Elements of the model's outputs are not taken for sums; the gradient of a weight, whose first
    dimension is usually that of channels, is a sum over all rows of the largest of them."""
    own = outputs[: len(outputs) - gradients]
    most = max((each.numel() for each in own), default=0) if gradients else 0
    return [
        *(1 for _ in own),
        *(max(1, most // max(1, each.shape[0] if each.dim() else 1)) for each in outputs[len(own) :]),
    ]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a leaf of a graph, if it can have a gradient."""
    found = tensor.detach()
    return found.requires_grad_() if found.is_floating_point() or found.is_complex() else found


def _ends(output: Any) -> list[torch.Tensor]:
    """The tensors of an output that have a gradient."""
    return [each for each in tensors_of(output) if each.requires_grad]
