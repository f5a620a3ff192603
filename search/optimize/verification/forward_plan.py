"""The kernels of a model that runs them, and what goes in and comes out of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from search.optimize.models.source import LoadedModel


def plan_of(model: LoadedModel) -> Any:
    """Of a model with kernels."""
    return type(model.module).plan  # type: ignore[attr-defined]


def recorded(model: LoadedModel) -> Any:
    """The forward as it is now, as a CUDA graph that takes the model's inputs. Raises NoGraphError."""
    plan = plan_of(model)
    graphs = plan.shape_of(model.inputs()).graphs
    graphs.pop(model.module, None)
    plan.as_graph = True
    try:
        model.run()
    finally:
        plan.as_graph = False
    found = graphs[model.module]
    if isinstance(found, Exception):
        raise found
    return found


@contextlib.contextmanager
def watched(plan: Any, told: Callable[[str, tuple[Any, ...], Any], Any]) -> Iterator[None]:
    """In the block `told` is given the name, the inputs and the result of each call of a kernel."""
    own = plan.kernels

    def watch(name: str) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            found = own[name](*inputs)
            told(name, inputs, found)
            return found

        return call

    plan.kernels = {name: watch(name) for name in own}
    try:
        yield
    finally:
        plan.kernels = own
