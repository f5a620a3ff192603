"""The orders that a runner receives and its answers: records, and the messages that carry them.

Orders come from the judge process or a builder, which are trusted. Answers come from a process that runs a
candidate's code and can send anything: `read` accepts only fields of the expected form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self, get_args

from evaluators.base.json_record import require_types
from evaluators.records.diagnosis import shortened
from evaluators.records.probe import MOST_MARKS, MOST_WORKERS
from evaluators.records.problem import Problem
from evaluators.records.resources import MOST_FUNCTIONS, FunctionResources
from evaluators.reference.containers import TENSOR
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.runner.shared_buffers import Layout
from evaluators.system.channel import Message, ProtocolError, printable

MOST_NS = 10**15
"""Longest accepted time of a kernel in a trace: eleven days."""


class Record:
    """An order or an answer; `op` is its name in a message."""

    op: ClassVar[str]

    def message(self) -> Message:
        """Plain JSON types, without the fields that are None."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {"op": self.op} | {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in fields.items()
        }


@dataclass(frozen=True, kw_only=True)
class Move(Record):
    """The folder that the runner is confined to was renamed to this. It has no answer."""

    op = "move"
    scratch: str


@dataclass(frozen=True, kw_only=True)
class Import(Record):
    """Import the candidate, so that it compiles. Answer: `Imported`. `architecture`: the GPU's, "" for a
    CPU."""

    op = "import"
    problem: Problem
    architecture: str


@dataclass(frozen=True, kw_only=True)
class ReadResources(Record):
    """Read the resources of the functions that the import compiled for a GPU of this architecture. Answer:
    `ResourcesRead`."""

    op = "read resources"
    architecture: str


@dataclass(frozen=True, kw_only=True)
class Load(Record):
    """Create the module, and open the shared buffers, whose descriptor comes with the message. Answer:
    `Loaded`. A candidate is imported the first time; a module loaded before is dropped.

    Attributes:
        arguments: where in the module's arguments its inputs are (see `containers.py`).
        form: the structure of the output (see `containers.form_of`).
        returned: pairs of the index of an output and of the input that it must be.
        lean: free the memory after each run. Answer: `MemoryReleased`.
    """

    op = "load"
    problem: Problem
    seed: int
    buffers: dict[str, Any]
    arguments: Any
    inputs: Layout
    outputs: Layout
    form: Any = TENSOR
    returned: list[list[int]] = field(default_factory=list)
    lean: bool = False


@dataclass(frozen=True, kw_only=True)
class RunCalls(Record):
    """Run the module once on the inputs of each of these calls. Answers: on a GPU `Queued`, once all work is
    queued; then `Done`.

    Attributes:
        seeds: one per call for torch's generator, if the reference draws numbers.
        turn: the number for which the GPU's gate opens.
        stand_in: if positive, fill fresh outputs this many times instead of running the module.
        deliver: copy the outputs to the shared buffers; otherwise the runner keeps them until the next run.
        chain: make each call depend on the answer before (see `dependent_calls.py`).
        wait: wait for the GPU after each call.
        keep: keep the outputs of the first call since a run without `keep`, as a caller might.
        probe: the outputs may have any form and are dropped, except for tables of timestamps in those of the
            last call.
        forward: in training, run the forward pass alone, and drop the outputs.
    """

    op = "run"
    calls: Sequence[int]
    seeds: Sequence[int] = ()
    turn: int = 0
    stand_in: int = 0
    deliver: bool = True
    chain: bool = False
    wait: bool = False
    keep: bool = False
    probe: bool = False
    forward: bool = False


@dataclass(frozen=True, kw_only=True)
class HandIn(Record):
    """Deliver an output that the runner kept: that of `call`, which was at this place in its block. Answer:
    `HandedIn`."""

    op = "hand in"
    place: int
    call: int


@dataclass(frozen=True, kw_only=True)
class HandInKept(Record):
    """Deliver the outputs that were kept since a run of `call`, as they are now; without `deliver`, only
    report their addresses. With `release`, stop holding others, and look what the kernel keeps.
    Answer: `KeptHandedIn`."""

    op = "hand in kept"
    call: int
    deliver: bool
    release: bool = False


@dataclass(frozen=True, kw_only=True)
class HandInTimestamps(Record):
    """Hand in the timestamps in the outputs of a probe's last call: a row for each worker, with `marks`
    columns or one more. Answer: `TimestampsHandedIn`."""

    op = "hand in timestamps"
    marks: int


@dataclass(frozen=True, kw_only=True)
class Change(Record):
    """Change the module's weights (see `weight_changes.change`). Answer: `Changed`."""

    op = "change"
    how: WeightChange
    forms: list[list[object]]
    buffers: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class Restore(Record):
    """Restore the module's original weights. Answer: `Restored`."""

    op = "restore"


@dataclass(frozen=True, kw_only=True)
class TraceCalls(Record):
    """Run these calls under the device's trace. Answer: `Counted`."""

    op = "trace"
    calls: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class MeasureSaved(Record):
    """In training, measure what the forward pass saves for the backward pass. Answer: `SavedMeasured`."""

    op = "measure saved"


Order = (
    Move
    | Import
    | ReadResources
    | Load
    | RunCalls
    | HandIn
    | HandInKept
    | HandInTimestamps
    | Change
    | Restore
    | TraceCalls
    | MeasureSaved
)
ORDERS: dict[str, type[Order]] = {each.op: each for each in get_args(Order)}
FIELDS: dict[str, Callable[[Any], Any]] = {
    "problem": Problem.from_json,
    "inputs": Layout.from_json,
    "outputs": Layout.from_json,
    "how": WeightChange.from_json,
}
"""How to read those fields of orders that are records themselves."""


def order_of(message: Message) -> Order:
    """The order in a message. Raises KeyError or TypeError if it is invalid."""
    fields: dict[str, Any] = {
        name: FIELDS[name](value) if name in FIELDS else value
        for name, value in message.items()
        if name != "op"
    }
    return ORDERS[message["op"]](**fields)


class RunnerAnswer(Record):
    """A runner's answer."""

    @classmethod
    def read(cls, message: Message) -> Self:
        """Reads the fields of a message with this `op`. Raises ProtocolError if their form is wrong."""
        return cls()


class Imported(RunnerAnswer):
    """The candidate was imported."""

    op = "imported"


@dataclass(frozen=True, kw_only=True)
class ResourcesRead(RunnerAnswer):
    """The compiled functions, at most MOST_FUNCTIONS, with short printable names."""

    op = "resources read"
    functions: tuple[FunctionResources, ...]

    def message(self) -> Message:
        """See `Record`."""
        return {"op": self.op, "functions": [each.to_json() for each in self.functions]}

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        said = message.get("functions")
        if not isinstance(said, list) or len(said) > MOST_FUNCTIONS:
            raise ProtocolError(f"not resources of functions: {said!r:.200}")
        return cls(functions=tuple(map(_resources_in, said)))


class Loaded(RunnerAnswer):
    """The module is loaded."""

    op = "loaded"


class Queued(RunnerAnswer):
    """All work of a block is queued."""

    op = "queued"


class HandedIn(RunnerAnswer):
    """The output is in the shared buffers."""

    op = "handed in"


@dataclass(frozen=True, kw_only=True)
class KeptHandedIn(RunnerAnswer):
    """The kept outputs are in the shared buffers, or at these addresses. For the rest see `KeptOutputs`."""

    op = "kept handed in"
    outputs: list[int] | None = None
    returned_again: bool = False
    suspect: bool = False
    keeps_all: bool = False

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        said = {name: message.get(name) is True for name in ("returned_again", "suspect", "keeps_all")}
        return cls(outputs=_addresses_in(message), **said)


@dataclass(frozen=True, kw_only=True)
class TimestampsHandedIn(RunnerAnswer):
    """The timestamps of a probe, those of at most MOST_WORKERS of its `workers`; no rows if its outputs have
    none."""

    op = "timestamps handed in"
    rows: list[list[int]]
    workers: int

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        rows, workers = message.get("rows"), message.get("workers")
        if not (isinstance(rows, list) and len(rows) <= MOST_WORKERS and all(map(_is_row, rows))):
            raise ProtocolError(f"not timestamps: {rows!r:.200}")
        if type(workers) is not int or not len(rows) <= workers < MOST_NS:
            raise ProtocolError(f"not a number of workers: {workers!r:.200}")
        return cls(rows=rows, workers=workers)


class Restored(RunnerAnswer):
    """The original weights are restored."""

    op = "restored"


@dataclass(frozen=True, kw_only=True)
class Done(RunnerAnswer):
    """The calls have been made. `outputs`: on a CPU, the addresses of the outputs that the runner kept.
    `filling_ms`: how long a baseline runner took to fill outputs."""

    op = "done"
    outputs: list[int] | None = None
    filling_ms: float | None = None

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        outputs, filling_ms = _addresses_in(message), message.get("filling_ms")
        if filling_ms is not None and type(filling_ms) is not float:
            raise ProtocolError(f"not a time: {filling_ms!r:.200}")
        return cls(outputs=outputs, filling_ms=filling_ms)


class MemoryReleased(RunnerAnswer):
    """The memory of a run is freed."""

    op = "gave back"


@dataclass(frozen=True, kw_only=True)
class Changed(RunnerAnswer):
    """Whether the weights have the expected forms, and which of the buffers exist."""

    op = "changed"
    alike: bool
    buffers: list[str]

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`. A missing field means that there are no such weights."""
        buffers = message.get("buffers")
        known = [each for each in buffers if isinstance(each, str)] if isinstance(buffers, list) else []
        return cls(alike=message.get("alike") is True, buffers=known)


@dataclass(frozen=True, kw_only=True)
class SavedMeasured(RunnerAnswer):
    """The bytes that a forward pass has saved."""

    op = "saved measured"
    bytes: int

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        size = message.get("bytes")
        if type(size) is not int or size < 0:
            raise ProtocolError(f"not a number of bytes: {size!r:.200}")
        return cls(bytes=size)


@dataclass(frozen=True, kw_only=True)
class Counted(RunnerAnswer):
    """Every kernel that ran, by name, with its time in ns."""

    op = "counted"
    kernels: list[tuple[str, int]]

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        kernels = message.get("kernels")
        if not (isinstance(kernels, list) and all(_is_entry(each) for each in kernels)):
            raise ProtocolError(f"not a trace: {kernels!r:.200}")
        return cls(kernels=[(printable(name), duration_ns) for name, duration_ns in kernels])


class Phase(StrEnum):
    """What a candidate was doing when it failed."""

    IMPORT = "import"
    RUN = "run"
    OUTPUT = "output"
    """The output's form differs from the reference's."""
    DEVICE = "device"
    """An illegal access or similar: the context is lost."""
    DECLINED = "declined"
    """Its `supports` rejected the case."""


@dataclass(frozen=True, kw_only=True)
class Failed(RunnerAnswer):
    """An order failed. `compiler`: because torch's own compiler is missing, which is hidden if a problem's
    kernels must do the work themselves."""

    op = "failed"
    phase: Phase
    error: str
    compiler: bool = False

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`. A missing or invalid field is a failure all the same."""
        said = message.get("phase")
        phase = next((each for each in Phase if each.value == said), Phase.RUN)
        error = printable(message.get("error", ""))
        return cls(phase=phase, error=error, compiler=message.get("compiler") is True)


def _addresses_in(message: Message) -> list[int] | None:
    outputs = message.get("outputs")
    if outputs is not None and not (isinstance(outputs, list) and all(type(each) is int for each in outputs)):
        raise ProtocolError(f"not addresses of outputs: {outputs!r:.200}")
    return outputs


def _resources_in(value: Any) -> FunctionResources:
    try:
        found = FunctionResources.from_json(value)
        require_types(found)
    except (TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not resources of a function: {value!r:.200}") from error
    if not found.name.isprintable() or found.name != shortened(found.name):
        raise ProtocolError(f"not a short name of a function: {found.name!r:.200}")
    return found


def _is_row(value: Any) -> bool:
    """Whether this is a row of timestamps."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_MARKS + 1
        and all(type(each) is int and -(2**63) <= each < 2**63 for each in value)
    )


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and 0 <= value[1] < MOST_NS
    )
