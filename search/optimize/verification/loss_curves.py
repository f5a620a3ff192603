"""Trains a model with kernels and the original from the same start, and compares their losses.

Two correct implementations round differently, and training makes small differences grow. How much is
measured: the original is trained several times more, with noise in its gradients that is as large as its own
rounding error. The loss with kernels may be ALLOWED times as far from the original's as these runs were up to
that step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from search.optimize.models.source import LoadedModel
from search.optimize.models.training import loss_of, repeatable
from search.optimize.verification.errors import ALLOWED, LEAST_ERROR
from search.optimize.verification.record import LossCurves

if TYPE_CHECKING:
    import torch

    from search.optimize.verification.launcher import TrainingPlan

NOISY_RUNS = 3
"""How often the original is trained with noise."""


def optimizer_of(module: torch.nn.Module, plan: TrainingPlan) -> torch.optim.Optimizer:
    """The optimizer of all weights that are trained; on a GPU in its fused form."""
    import torch

    made: Any = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[plan.optimizer]
    weights = [each for each in module.parameters() if each.requires_grad]
    found: torch.optim.Optimizer = made(
        weights, lr=plan.learning_rate, fused=any(each.is_cuda for each in weights)
    )
    return found


class OriginalCurve:
    """The losses of the original, which the module is now, and how far rounding moves them. `rounding`: the
    original's relative error of each result, by its name."""

    def __init__(
        self, models: Sequence[LoadedModel], plan: TrainingPlan, rounding: Mapping[str, float]
    ) -> None:
        self._models, self._plan, self._rounding = models, plan, rounding
        self._epsilon = 0.0
        """That of the loss's dtype."""
        self._losses = self._train()
        self._spread = [0.0] * plan.steps
        for number in range(NOISY_RUNS):
            noisy = self._train(self._noise(number))
            apart = [abs(one - other) for one, other in zip(noisy, self._losses, strict=True)]
            self._spread = list(map(max, self._spread, _largest_so_far(apart)))

    def compare(self) -> LossCurves:
        """Trains the module as it is now, with kernels."""
        losses = self._train()
        floor = max(ALLOWED * self._rounding.get("output 0", 0.0), LEAST_ERROR * self._epsilon)
        return LossCurves(
            optimizer=self._plan.optimizer,
            learning_rate=self._plan.learning_rate,
            original=self._losses,
            with_kernels=losses,
            spread=self._spread,
            allowed=[
                ALLOWED * own + floor * abs(loss)
                for own, loss in zip(self._spread, self._losses, strict=True)
            ],
        )

    def _train(self, on_gradients: Callable[[], None] = lambda: None) -> list[float]:
        """The loss of each step; the weights and buffers are restored afterwards."""
        import torch

        module = self._models[0].module
        losses = []
        with repeatable(module), _same_weights(module):
            optimizer = optimizer_of(module, self._plan)
            optimizer.register_step_pre_hook(lambda *_: on_gradients())
            for step in range(self._plan.steps):
                model = self._models[step % len(self._models)]
                [loss] = replace(model, optimizer=optimizer).run()
                self._epsilon = torch.finfo(loss.dtype).eps
                losses.append(float(loss))
            optimizer.zero_grad()
        return losses

    def _noise(self, seed: int) -> Callable[[], None]:
        """A function that adds noise to the gradients."""
        import torch

        module = self._models[0].module
        device = next(module.parameters()).device
        generator = torch.Generator(device).manual_seed(seed)

        def add() -> None:
            for name, weight in module.named_parameters():
                if weight.grad is None:
                    continue
                relative = max(self._rounding.get(f"the gradient of {name}", 0.0), self._epsilon)
                noise = torch.randn(weight.shape, generator=generator, device=device)
                scale = weight.grad.float().norm() * relative / math.sqrt(weight.numel())
                weight.grad.add_((noise * scale).to(weight.grad.dtype))

        return add


def _largest_so_far(values: Sequence[float]) -> list[float]:
    found: list[float] = []
    for each in values:
        found.append(max(found[-1] if found else 0.0, each if math.isfinite(each) else math.inf))
    return found


@contextlib.contextmanager
def _same_weights(module: torch.nn.Module) -> Iterator[None]:
    """Afterwards the weights are as they were before the block."""
    import torch

    before = [(each, each.detach().clone()) for each in module.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, values in before:
                weight.copy_(values)


def memory_of(model: LoadedModel) -> dict[str, int]:
    """The bytes that a step of training needs in addition to the weights and the optimizer's state (`step`;
    on a GPU only), and those that its forward pass saves for the backward pass (`saved`)."""
    import torch

    from evaluators.reference.gradients import saved_bytes

    assert model.optimizer is not None
    model.optimizer.zero_grad()
    found = {}
    if model.device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model.run()
        torch.cuda.synchronize()
        found["step"] = torch.cuda.max_memory_allocated() - before
        model.optimizer.zero_grad()
    with repeatable(model.module):
        found["saved"] = saved_bytes(_ForwardPass(model), model.inputs())
    return found


class _ForwardPass:
    """A model in the form that `saved_bytes` takes."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def forward_pass(self, *_: Any) -> torch.Tensor:
        """The loss."""
        with self._model.mode():
            args, kwargs = self._model.fresh()
            return loss_of(self._model.module(*args, **kwargs))

    def parameters(self) -> list[torch.Tensor]:
        """What is not saved in addition."""
        return [*self._model.module.parameters(), *self._model.module.buffers()]
