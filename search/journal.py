"""The record of a run: an append-only file, one event a line, from which all state is replayed.

What is appended is with the operating system before anything else sees it: a killed process loses only
the work in flight. (The idea of optuna's `storages/journal/_file.py`.)
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem, Size
from search.events import (
    BestConfirmed,
    Event,
    IdeaImplemented,
    IdeaProposed,
    LeadersCompared,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.llm import ModelCall, Spending
from search.ranking import MEDIAN, Ranking
from search.tree import Category, Idea, Seed, Tree, Variant

logger = logging.getLogger(__name__)


class JournalError(ValueError):
    """A journal that cannot be read or written; the message says where and why."""


class Journal:
    """Appends events to the file at `path`, which is created, or continued after its last whole batch.

    `past` holds the events that were there. One process at a time: raises JournalError when another has
    the journal open, or when a line before the last is corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            events, self._size = _read(path)
        except BlockingIOError:
            os.close(self._fd)
            raise JournalError(f"another process is running this search: {path} is locked") from None
        except JournalError:
            os.close(self._fd)
            raise
        os.ftruncate(self._fd, self._size)
        self.past: tuple[Event, ...] = tuple(events)

    def append(self, events: Iterable[Event]) -> None:
        """Writes a batch of events with one system call: after a crash it is there as a whole or not at all.

        Raises OSError when the disk does not take it; the journal is then as it was before.
        """
        data = b"".join(json.dumps(encode(event)).encode() + b"\n" for event in events)
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Waits until the disk has what was appended: survives a power loss, not only a killed process."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Syncs, and lets another process have the journal."""
        self.sync()
        os.close(self._fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def replay(path: Path) -> list[Event]:
    """The events of a journal, oldest first; reads only, also while a search is writing.

    Left out with a warning: a torn last line, and the ideas of a last answer of which only a part is there.
    Raises JournalError naming the line for anything else that is not an event.
    """
    return _read(path)[0]


@dataclass
class RunState:
    """What a run knows of itself: the tree, and what the engine needs to go on from here."""

    tree: Tree = field(default_factory=Tree)
    started: RunStarted | None = None
    """The first start: what the run is about."""
    finished: RunFinished | None = None
    """How it ended; None while it is running, again or for the first time."""
    proposed: dict[int, list[Idea]] = field(default_factory=dict)
    """The ideas of the open round, by the index of their expansion."""
    implemented: set[str] = field(default_factory=set)
    """Ids of the ideas of which the proposer has written all variants that it will."""
    spending: dict[str, Spending] = field(default_factory=dict)
    """On calls, by model."""
    verdicts: dict[str, Evaluation] = field(default_factory=dict)
    """By kernel id: what an equal kernel may take over. Our own failures are not among them."""
    confirmed: dict[str, Evaluation] = field(default_factory=dict)
    """By kernel id: final measurements, our own failures left out."""
    statuses: Counter[Status] = field(default_factory=Counter)
    """Of all evaluations, those taken over not counted."""
    evaluations: int = 0
    device_s: float = 0.0
    used_s: float = 0.0

    @property
    def spent(self) -> Spending:
        """On the calls of all models."""
        return Spending.total(self.spending.values())

    def apply(self, event: Event) -> None:
        """Takes in the next event; the engine and the replay of a journal do so alike."""
        self.used_s = max(self.used_s, event.at_s)
        match event:
            case RunStarted():
                if self.started is None:
                    self.started, self.tree.ranking = event, Ranking(event.ranking)
                self.finished = None
            case IdeaProposed(idea=idea, expansion=expansion):
                self.tree.add_idea(idea)
                self.proposed.setdefault(expansion, []).append(idea)
            case ModelCalled(call=call):
                self.spending.setdefault(call.model, Spending()).add(call)
            case VariantWritten(variant=variant):
                self.tree.add_variant(variant)
            case IdeaImplemented(idea_id=idea_id):
                self.implemented.add(idea_id)
            case VariantEvaluated(variant=variant, reused=reused):
                self._take_verdict(variant, reused)
            case RoundClosed(round=number):
                self.tree.rounds_closed = number
                self.proposed = {}
            case LeadersCompared(evaluations=evaluations):
                self.device_s += sum(each.device_s for each in evaluations)
                self.tree.compare(event.by_kernel)
            case BestConfirmed(variant=variant, evaluation=evaluation):
                self.device_s += evaluation.device_s
                if evaluation.status is not Status.INFRASTRUCTURE_ERROR:
                    self.confirmed[variant.kernel.id] = evaluation
            case RunFinished():
                self.finished = event

    def _take_verdict(self, variant: Variant, reused: bool) -> None:
        evaluation = variant.evaluation
        if evaluation is None:
            raise ValueError(f"variant {variant.id} was evaluated but has no evaluation")
        self.tree.evaluate(variant.id, evaluation)
        if reused:
            return
        self.evaluations += 1
        self.statuses[evaluation.status] += 1
        self.device_s += evaluation.device_s
        if evaluation.status is not Status.INFRASTRUCTURE_ERROR:
            self.verdicts[variant.kernel.id] = evaluation


def rebuild(events: Iterable[Event]) -> RunState:
    """The state of a run after these events. Raises ValueError or KeyError where they cannot be one run's."""
    state = RunState()
    for event in events:
        state.apply(event)
    return state


def encode(event: Event) -> dict[str, Any]:
    """One line of the journal, as plain JSON types. Raises TypeError for an event that is not journaled.

    A kernel's source is written once, by `variant_written`; later lines refer to the variant's id.
    """
    body: dict[str, Any]
    match event:
        case RunStarted():
            name, body = "run_started", asdict(event)
            body["entries"] = [_seed_to_json(entry) for entry in event.entries]
        case IdeaProposed(idea=idea):
            body = {"idea": {"id": idea.id, **asdict(idea)}, "number": event.number}
            name, body = "idea_proposed", {**body, "expansion": event.expansion, "of": event.of}
        case VariantWritten(variant=variant):
            name, body = "variant_written", _variant_to_json(variant)
            body = {**body, "number": event.number}
        case IdeaImplemented():
            name, body = "idea_implemented", {"idea": event.idea_id, "variants": event.variants}
        case ModelCalled():
            name, body = "model_called", asdict(event.call)
        case VariantEvaluated(variant=variant):
            name, body = "variant_evaluated", {"id": variant.id, "reused": event.reused}
            body["evaluation"] = _evaluation_to_json(variant.evaluation)
        case RoundClosed():
            body = {"round": event.round, "evaluations": event.evaluations}
            name, body = "round_closed", {**body, "best": event.best and event.best.id}
        case LeadersCompared():
            body = {"ids": [variant.id for variant in event.variants]}
            body["evaluations"] = [evaluation.to_json() for evaluation in event.evaluations]
            name = "leaders_compared"
        case BestConfirmed():
            name, body = "best_confirmed", {"id": event.variant.id, "evaluation": event.evaluation.to_json()}
        case RunFinished():
            body = {"reason": event.reason, "best": event.best and event.best.id}
            name, body = "run_finished", {**body, "confirmed": _evaluation_to_json(event.confirmed)}
        case _:
            raise TypeError(f"{type(event).__name__} is not a journaled event")
    return {"event": name, "at_s": event.at_s, **{key: body[key] for key in body if key != "at_s"}}


class Decoder:
    """Restores the events of one journal, line by line; remembers the variants that later lines refer to."""

    def __init__(self) -> None:
        self._variants: dict[str, Variant] = {}

    def decode(self, line: Mapping[str, Any]) -> Event:
        """Raises ValueError, TypeError or KeyError when `line` is not what `encode` writes."""
        body = dict(line)
        name, at_s = body.pop("event"), float(body.pop("at_s"))
        match name:
            case "run_started":
                body["problem"] = _problem_from_json(body["problem"])
                body["entries"] = tuple(_seed_from_json(entry) for entry in body["entries"])
                body.setdefault("ranking", MEDIAN)  # older journals
                return RunStarted(at_s=at_s, **body)
            case "idea_proposed":
                return IdeaProposed(at_s=at_s, **{**body, "idea": _idea_from_json(body["idea"])})
            case "variant_written":
                number = body.pop("number")
                return VariantWritten(at_s=at_s, variant=self._written(body), number=number)
            case "idea_implemented":
                return IdeaImplemented(at_s=at_s, idea_id=body["idea"], variants=body["variants"])
            case "model_called":
                return ModelCalled(at_s=at_s, call=ModelCall.from_json(body))
            case "variant_evaluated":
                evaluation = Evaluation.from_json(body["evaluation"])
                variant = replace(self._variants[body["id"]], evaluation=evaluation)
                self._variants[variant.id] = variant
                return VariantEvaluated(at_s=at_s, variant=variant, reused=body["reused"])
            case "round_closed":
                return RoundClosed(at_s=at_s, **{**body, "best": self._variant(body["best"])})
            case "leaders_compared":
                found = tuple(Evaluation.from_json(each) for each in body["evaluations"])
                variants = tuple(self._variants[id] for id in body["ids"])
                for variant, evaluation in zip(variants, found, strict=True):
                    if evaluation.status is not Status.INFRASTRUCTURE_ERROR:
                        self._variants[variant.id] = replace(variant, evaluation=evaluation)
                return LeadersCompared(at_s=at_s, variants=variants, evaluations=found)
            case "best_confirmed":
                evaluation = Evaluation.from_json(body["evaluation"])
                return BestConfirmed(at_s=at_s, variant=self._variants[body["id"]], evaluation=evaluation)
            case "run_finished":
                confirmed = body["confirmed"] and Evaluation.from_json(body["confirmed"])
                best = self._variant(body["best"])
                return RunFinished(at_s=at_s, reason=body["reason"], best=best, confirmed=confirmed)
        raise ValueError(f"{name!r} is not an event of this version's journal")

    def _written(self, body: dict[str, Any]) -> Variant:
        kernel = Kernel(source=body.pop("source"), language=body.pop("language"))
        expected = body.pop("id")
        variant = Variant(kernel=kernel, **body)
        _check_id("variant", expected, variant.id)
        self._variants[variant.id] = variant
        return variant

    def _variant(self, variant_id: str | None) -> Variant | None:
        return None if variant_id is None else self._variants[variant_id]


def _read(path: Path) -> tuple[list[Event], int]:
    """The events of whole batches, and how many bytes of the file they take."""
    decoder = Decoder()
    events: list[Event] = []
    ends = [0]
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            data = _parse(line)
            if data is None and file.read(1):
                raise JournalError(f"{path}, line {number} is corrupt: {line[:60]!r}")
            if data is None:
                logger.warning("%s: line %d is torn and left out: %.60r", path, number, line)
                break
            try:
                events.append(decoder.decode(data))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                found = f"{type(error).__name__}: {error}"
                raise JournalError(f"{path}, line {number}: not an event ({found}): {line[:60]!r}") from error
            ends.append(ends[-1] + len(line))
    partial = _partial_batch(events)
    if partial:
        logger.warning("%s: the last answer is there in part; its %d lines are left out", path, partial)
    whole = len(events) - partial
    return events[:whole], ends[whole]


def _parse(line: bytes) -> Any:
    """The line's JSON; None for a line without an end, or that is not JSON."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def _partial_batch(events: list[Event]) -> int:
    """How many events at the end belong to a batch that was not written to its end; 0 if there is none."""
    last = events[-1] if events else None
    if not isinstance(last, IdeaProposed):
        return 0
    there = 0
    for event in reversed(events):
        if not isinstance(event, IdeaProposed) or _answer_of(event) != _answer_of(last):
            break
        there += 1
    return there if there < last.of else 0


def _answer_of(event: IdeaProposed) -> tuple[int, int]:
    return event.idea.round, event.expansion


def _variant_to_json(variant: Variant) -> dict[str, Any]:
    place = {"id": variant.id, "idea": variant.idea, "parent": variant.parent, "round": variant.round}
    place = {**place, "repairs": variant.repairs}
    return {**place, "language": variant.kernel.language, "source": variant.kernel.source}


def _evaluation_to_json(evaluation: Evaluation | None) -> dict[str, Any] | None:
    return None if evaluation is None else evaluation.to_json()


def _seed_to_json(seed: Seed) -> dict[str, Any]:
    kernel = {"language": seed.kernel.language, "source": seed.kernel.source}
    found = {"why": seed.why, "drop_in": seed.drop_in}
    return {"id": seed.id, **kernel, "evaluation": _evaluation_to_json(seed.evaluation), **found}


def _seed_from_json(data: Mapping[str, Any]) -> Seed:
    evaluation = None if data["evaluation"] is None else Evaluation.from_json(data["evaluation"])
    kernel = Kernel(source=data["source"], language=data["language"])
    found = {key: data[key] for key in ("why", "drop_in") if key in data}  # older journals lack them
    return Seed(id=data["id"], kernel=kernel, evaluation=evaluation, **found)


def _idea_from_json(data: Mapping[str, Any]) -> Idea:
    body = dict(data)
    expected, category, told = body.pop("id"), Category(body.pop("category")), tuple(body.pop("told"))
    idea = Idea(category=category, told=told, **body)
    _check_id("idea", expected, idea.id)
    return idea


def _problem_from_json(data: Mapping[str, Any]) -> Problem:
    overrides = {name: _size_from_json(value) for name, value in data["overrides"].items()}
    return Problem(**{**data, "overrides": overrides})


def _size_from_json(value: Any) -> Size:
    if isinstance(value, list):
        return tuple(_size_from_json(item) for item in value)
    return value  # type: ignore[no-any-return]


def _check_id(what: str, written: str, computed: str) -> None:
    if written != computed:
        raise ValueError(f"the {what} says that its id is {written}, but its content gives {computed}")
