"""Orders arrive at a runner as they were sent; a runner's answers are checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from evaluators.records.problem import Problem
from evaluators.records.resources import FunctionResources
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.runner import messages
from evaluators.runner.messages import (
    Change,
    Changed,
    Counted,
    Done,
    Failed,
    HandIn,
    HandInKept,
    HandInTimestamps,
    Import,
    KeptHandedIn,
    Load,
    Loaded,
    MeasureSaved,
    Move,
    Order,
    Phase,
    ReadResources,
    ResourcesRead,
    Restore,
    RunCalls,
    RunnerAnswer,
    SavedMeasured,
    TimestampsHandedIn,
    TraceCalls,
    order_of,
)
from evaluators.runner.shared_buffers import Layout
from evaluators.system.channel import ProtocolError

RELU = Problem(name="relu", source="class Model: ...", overrides={"width": 8})
RESOURCES = FunctionResources(name="relu", registers=24, stack_bytes=8, shared_bytes=512)
LAYOUT = Layout.of([torch.empty(3, 5, device="meta")], 4)


@pytest.mark.parametrize(
    "order",
    [
        Move(scratch="/somewhere"),
        Import(problem=RELU, architecture="9.0"),
        ReadResources(architecture="9.0"),
        Load(
            problem=RELU,
            seed=1,
            buffers={"bytes": 8},
            arguments={"list": []},
            inputs=LAYOUT,
            outputs=LAYOUT,
            form=["list", [["0", "tensor"], ["1", None]]],
            returned=[[0, 1]],
        ),
        RunCalls(
            calls=[2, 0, 1],
            seeds=[7, 8, 9],
            turn=3,
            stand_in=2,
            deliver=False,
            chain=True,
            wait=True,
            keep=True,
            probe=True,
        ),
        HandIn(place=2, call=0),
        HandInKept(call=0, deliver=True, release=True),
        HandInTimestamps(marks=3),
        Change(how=WeightChange(seed=5, turn=(1, 2), buffers=("a",)), forms=[["w", [3]]], buffers=[["a", 1]]),
        Change(how=WeightChange(seed=5), forms=[], buffers=[]),
        Restore(),
        TraceCalls(calls=[1, 0]),
        MeasureSaved(),
    ],
)
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert order_of(json.loads(json.dumps(order.message()))) == order


@pytest.mark.parametrize(
    "answer",
    [
        Done(),
        Done(outputs=[8, 16]),
        Done(outputs=[], filling_ms=0.0),
        KeptHandedIn(outputs=[8], returned_again=True, suspect=True, keeps_all=True),
        KeptHandedIn(),
        TimestampsHandedIn(rows=[[1, -2], [0, 2**62]], workers=9),
        Changed(alike=True, buffers=["a"]),
        Counted(kernels=[("relu", 12)]),
        SavedMeasured(bytes=4096),
        ResourcesRead(functions=()),
        ResourcesRead(functions=(RESOURCES,)),
        Failed(phase=Phase.DEVICE, error="lost", compiler=True),
    ],
)
def test_an_answer_arrives_as_it_was_sent(answer: RunnerAnswer) -> None:
    assert type(answer).read(json.loads(json.dumps(answer.message()))) == answer


def test_absent_fields_are_left_out_of_a_message() -> None:
    assert Done().message() == {"op": "done"}
    assert Loaded().message() == {"op": "loaded"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Done, {"outputs": 8}),
        (Done, {"outputs": [True]}),
        (Done, {"outputs": [1.0]}),
        (Done, {"outputs": [[1]]}),
        (Done, {"filling_ms": "nought"}),
        (KeptHandedIn, {"outputs": [None]}),
        (TimestampsHandedIn, {"rows": [[1]]}),
        (TimestampsHandedIn, {"rows": [[1]], "workers": 0}),
        (TimestampsHandedIn, {"rows": [1], "workers": 1}),
        (TimestampsHandedIn, {"rows": [[1.5]], "workers": 1}),
        (TimestampsHandedIn, {"rows": [[2**63]], "workers": 1}),
        (TimestampsHandedIn, {"rows": [[1] * 99], "workers": 1}),
        (TimestampsHandedIn, {"rows": [[1]] * 5000, "workers": 5000}),
        (ResourcesRead, {}),
        (ResourcesRead, {"functions": {}}),
        (ResourcesRead, {"functions": [7]}),
        (ResourcesRead, {"functions": [{}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json()] * 9}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"threads": 1}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"name": 7}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"name": "f\x1b[2J"}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"name": "\ud800"}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"name": "f" * 102}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"registers": "168"}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"registers": 1.5}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"registers": True}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"stack_bytes": -1}]}),
        (ResourcesRead, {"functions": [RESOURCES.to_json() | {"shared_bytes": 10**400}]}),
        (SavedMeasured, {}),
        (SavedMeasured, {"bytes": -1}),
        (SavedMeasured, {"bytes": True}),
        (SavedMeasured, {"bytes": 1.5}),
        (Counted, {}),
        (Counted, {"kernels": {}}),
        (Counted, {"kernels": [["relu"]]}),
        (Counted, {"kernels": [["relu", -1]]}),
        (Counted, {"kernels": [["relu", True]]}),
        (Counted, {"kernels": [["relu", 10**15]]}),
        (Counted, {"kernels": [[1, 1]]}),
    ],
)
def test_an_answer_of_another_form_is_refused(kind: type[RunnerAnswer], fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        kind.read({"op": kind.op, **fields})


@pytest.mark.parametrize("phase", [None, 7, ["import"], {}, "verdict", "Phase.IMPORT"])
def test_a_lie_about_a_failure_is_still_a_failure(phase: Any) -> None:
    found = Failed.read({"op": "failed", "phase": phase, "error": "\ud800", "compiler": 1})
    assert found == Failed(phase=Phase.RUN, error="?", compiler=False)


def test_unreported_weights_have_none_of_the_forms() -> None:
    assert Changed.read({}) == Changed(alike=False, buffers=[])
    assert Changed.read({"alike": 1, "buffers": ["a", 7]}) == Changed(alike=False, buffers=["a"])


def test_every_order_has_a_unique_name() -> None:
    assert len(messages.ORDERS) == 12
