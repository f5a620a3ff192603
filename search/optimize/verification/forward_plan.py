"""Access to a loaded `optimized/` model: its plan, a CUDA graph of it, its kernels' results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from search.optimize.models.source import LoadedModel


def plan_of(model: LoadedModel) -> Any:
    """The `ForwardPlan` of a model with kernels."""
    return type(model.module).plan  # type: ignore[attr-defined]


def record_graph(model: LoadedModel) -> Callable[[], Any]:
    """Records the forward as a CUDA graph; returns a function that replays it with the model's inputs. Raises
    NoGraphError."""
    plan = plan_of(model)
    call, _, tensors = plan.call_of(model.args, model.kwargs)
    graphs, given = call.shape.graphs, [tensors[number] for number in call.passed]
    graphs.pop(model.module, None)
    plan.as_graph = True
    try:
        model.run()
    finally:
        plan.as_graph = False
    found = graphs[model.module]
    if isinstance(found, Exception):
        raise found
    return lambda: found(*given)


@contextlib.contextmanager
def watch_kernels(plan: Any, on_call: Callable[[str, tuple[Any, ...], Any], Any]) -> Iterator[None]:
    """Within the block, passes the name, inputs and result of each kernel call to `on_call`."""
    own = plan.kernels

    def watch(name: str) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            found = own[name](*inputs)
            on_call(name, inputs, found)
            return found

        return call

    plan.kernels = {name: watch(name) for name in own}
    try:
        yield
    finally:
        plan.kernels = own
