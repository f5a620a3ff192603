"""What a runner is told, and what it answers: records, and the messages that they travel as.

Orders come from the judge process or a builder, which are trusted. Answers come out of a process that runs a
candidate's code, which can send anything: `read` takes nothing that is not of the form that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

from evaluators.records.problem import Problem
from evaluators.reference.inputs.weight_changes import WeightChange
from evaluators.runner.shared_buffers import Layout
from evaluators.system.channel import Message, ProtocolError, printable

MOST_NS = 10**15
"""Of a kernel in a trace: eleven days."""


class Record:
    """An order or an answer; `op` is its name in a message."""

    op: ClassVar[str]

    def message(self) -> Message:
        """Plain JSON types; a field that is None is left out."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {"op": self.op} | {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in fields.items()
        }


@dataclass(frozen=True, kw_only=True)
class Move(Record):
    """The folder that the runner is confined to has this name now. It has no answer."""

    op = "move"
    scratch: str


@dataclass(frozen=True, kw_only=True)
class Import(Record):
    """Import the candidate, so that it compiles: `Imported`. `architecture`: of a GPU, "" for a CPU."""

    op = "import"
    problem: Problem
    architecture: str


@dataclass(frozen=True, kw_only=True)
class Load(Record):
    """Make the module, and open the shared buffers, whose descriptor comes along: `Loaded`. A candidate is
    imported the first time; what was loaded before goes. `arguments`:
    where in the module's arguments its inputs stand (see `containers.py`); `returned`: the numbers of outputs
    and of the inputs that they have to be; `lean`: memory is to be given back after each run: `MemoryReleased`."""

    op = "load"
    problem: Problem
    seed: int
    buffers: dict[str, Any]
    arguments: Any
    inputs: Layout
    outputs: Layout
    returned: list[list[int]] = field(default_factory=list)
    lean: bool = False


@dataclass(frozen=True, kw_only=True)
class RunCalls(Record):
    """Run the module once on each of these calls' inputs: on a GPU `Queued`, as soon as the work is; then
    `Done`.

    With `stand_in` n, fresh outputs are filled n times instead of running the module. Without `deliver` the
    outputs stay with the runner until the next run. In a `chain` each call depends on the answer before (see
    `dependent_calls.py`); who is to `wait` waits for the GPU after each call. `seeds` are of torch's
    generator, one a call, where the reference draws numbers; the GPU's gate opens for `turn`.
    """

    op = "run"
    calls: Sequence[int]
    seeds: Sequence[int] = ()
    turn: int = 0
    stand_in: int = 0
    deliver: bool = True
    chain: bool = False
    wait: bool = False


@dataclass(frozen=True, kw_only=True)
class HandIn(Record):
    """Deliver an output that a block kept, that of `call`, which was made at this place of it: `HandedIn`."""

    op = "hand in"
    place: int
    call: int


@dataclass(frozen=True, kw_only=True)
class Change(Record):
    """Give the module other weights (see `weight_changes.change`): `Changed`."""

    op = "change"
    how: WeightChange
    forms: list[list[object]]
    buffers: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class Restore(Record):
    """Give it back those that it had: `Restored`."""

    op = "restore"


@dataclass(frozen=True, kw_only=True)
class TraceCalls(Record):
    """Run these calls under the device's trace: `Counted`."""

    op = "trace"
    calls: Sequence[int]


Order = Move | Import | Load | RunCalls | HandIn | Change | Restore | TraceCalls
ORDERS: dict[str, type[Order]] = {
    each.op: each for each in (Move, Import, Load, RunCalls, HandIn, Change, Restore, TraceCalls)
}
FIELDS: dict[str, Callable[[Any], Any]] = {
    "problem": Problem.from_json,
    "inputs": Layout.from_json,
    "outputs": Layout.from_json,
    "how": WeightChange.from_json,
}
"""How those fields of orders are read that are records themselves."""


def order_of(message: Message) -> Order:
    """The order in a message. Raises KeyError or TypeError where it is none."""
    fields: dict[str, Any] = {
        name: FIELDS[name](value) if name in FIELDS else value
        for name, value in message.items()
        if name != "op"
    }
    return ORDERS[message["op"]](**fields)


class RunnerAnswer(Record):
    """What a runner says."""

    @classmethod
    def read(cls, message: Message) -> Self:
        """Out of a message with its name. Raises ProtocolError where the fields have not their form."""
        return cls()


class Imported(RunnerAnswer):
    """The candidate was imported."""

    op = "imported"


class Loaded(RunnerAnswer):
    """The module is there."""

    op = "loaded"


class Queued(RunnerAnswer):
    """All work of a block is queued."""

    op = "queued"


class HandedIn(RunnerAnswer):
    """The output is in the shared buffers."""

    op = "handed in"


class Restored(RunnerAnswer):
    """The weights are those that it had."""

    op = "restored"


@dataclass(frozen=True, kw_only=True)
class Done(RunnerAnswer):
    """The calls were made. `outputs`: on a CPU, the addresses of the outputs that stayed with the runner.
    `filling_ms`: what a runner of ours took to fill outputs."""

    op = "done"
    outputs: list[int] | None = None
    filling_ms: float | None = None

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`."""
        outputs, filling_ms = message.get("outputs"), message.get("filling_ms")
        if outputs is not None and not (
            isinstance(outputs, list) and all(type(each) is int for each in outputs)
        ):
            raise ProtocolError(f"no addresses of outputs: {outputs!r:.200}")
        if filling_ms is not None and type(filling_ms) is not float:
            raise ProtocolError(f"no time: {filling_ms!r:.200}")
        return cls(outputs=outputs, filling_ms=filling_ms)


class MemoryReleased(RunnerAnswer):
    """The memory of a run is the device's again."""

    op = "gave back"


@dataclass(frozen=True, kw_only=True)
class Changed(RunnerAnswer):
    """Whether the weights have the forms that were told, and which of the buffers are there."""

    op = "changed"
    alike: bool
    buffers: list[str]

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`. Who leaves a field out has no such weights."""
        buffers = message.get("buffers")
        known = [each for each in buffers if isinstance(each, str)] if isinstance(buffers, list) else []
        return cls(alike=message.get("alike") is True, buffers=known)


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
            raise ProtocolError(f"no valid trace: {kernels!r:.200}")
        return cls(kernels=[(printable(name), duration_ns) for name, duration_ns in kernels])


class Phase(StrEnum):
    """What a candidate was about when it failed."""

    IMPORT = "import"
    RUN = "run"
    OUTPUT = "output"
    """The output has not the form of the reference's."""
    DEVICE = "device"
    """An illegal access and the like: the context is lost."""
    DECLINED = "declined"
    """Its `supports` says no."""


@dataclass(frozen=True, kw_only=True)
class Failed(RunnerAnswer):
    """An order has failed. `compiler`: for want of torch's own, which is hidden where a problem's kernels
    must do the work themselves."""

    op = "failed"
    phase: Phase
    error: str
    compiler: bool = False

    @classmethod
    def read(cls, message: Message) -> Self:
        """See `RunnerAnswer`. Who leaves a field out, or lies in it, has failed all the same."""
        said = message.get("phase")
        phase = next((each for each in Phase if each.value == said), Phase.RUN)
        error = printable(message.get("error", ""))
        return cls(phase=phase, error=error, compiler=message.get("compiler") is True)


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and 0 <= value[1] < MOST_NS
    )
