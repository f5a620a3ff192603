"""A model with the record and the graph of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from evaluators.base.usage_error import UsageError
from search.optimize.extraction.fragments import Fragment, fragment_of
from search.optimize.extraction.graph import CallGraph, CaptureError, capture
from search.optimize.extraction.record import Place
from search.optimize.models.source import LoadedModel, model_errors
from search.optimize.profiling.chains import Chain, find_chains
from search.optimize.profiling.recording import OperatorKind, RecordedRun, record

if TYPE_CHECKING:
    from torch import fx


@dataclass(frozen=True, kw_only=True)
class TracedModel:
    """A model at one input shape, with a recorded run of its forward and the graph of the same calls."""

    model: LoadedModel
    run: RecordedRun
    graph: CallGraph

    @cached_property
    def chains(self) -> list[Chain]:
        """The calls that could be one kernel."""
        return find_chains(self.run)

    @cached_property
    def views(self) -> set[fx.Node]:
        """The calls that move no data."""
        calls = zip(self.graph.calls, self.run.calls, strict=True)
        return {node for node, call in calls if call.kind is OperatorKind.VIEW}

    def fragment(self, place: Place) -> Fragment:
        """The fragment at a place. Raises NoFragmentError."""
        return fragment_of(self.graph, self.run, place.calls)


def trace_model(model: LoadedModel) -> TracedModel:
    """Records and captures a run of the model. Raises UsageError where that is not possible."""
    with model_errors(model.title):
        run = record(model).forward
        try:
            graph = capture(model)
        except CaptureError as error:
            raise UsageError(f"model={model.title}: kernels cannot be installed: {error}") from error
    if graph.operators != [call.operator for call in run.calls]:
        why = "two runs call different operators"
        raise UsageError(f"model={model.title}: kernels cannot be installed: {why}")
    return TracedModel(model=model, run=run, graph=graph)
