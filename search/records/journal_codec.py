"""The lines of a journal: events as plain JSON types, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from evaluators.base.json_record import from_fields
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.records.events import (
    BestConfirmed,
    Event,
    ExpansionAsked,
    IdeaImplemented,
    IdeaProposed,
    KernelDiagnosed,
    LeadersCompared,
    ModelCalled,
    ProbeMeasured,
    ProbeRequested,
    ProbeWritten,
    RoundClosed,
    RoundReflected,
    RunFinished,
    RunStarted,
    SeedExhausted,
    VariantEvaluated,
    VariantJudgedInFull,
    VariantWritten,
)
from search.records.model_calls import ModelCall
from search.records.probe_request import ProbeRequest
from search.records.ranking import MEDIAN
from search.records.tree import Idea, Reflection, Seed, Variant

FORMAT_VERSION = 7
"""The version of the lines that `encode` writes. Each `run_started` states it, for itself and the lines after
it. Lines without a version have version 1, which may lack the `ranking` and an entry's `why` and `drop_in`.
Version 3 added `expansion_asked`, version 4 `seed_exhausted`, version 5
`kernel_diagnosed`, version 6 `probe_requested`, `probe_measured` and `round_reflected`, version 7 races
(`variant_judged_in_full`, an expansion's `threshold` and an evaluation's `quick`) and `probe_written`, before
which `probe_measured` had the kernel."""


class NewerFormatError(ValueError):
    """The journal was written by a newer program."""


def encode(event: Event) -> dict[str, Any]:
    """One line of the journal, as plain JSON types. Raises TypeError for an event that is not journaled.

    A kernel's source is written once, by `variant_written` or `probe_written`; later lines refer to the id of
    the variant or of the probe's request.
    """
    body = asdict(event)
    del body["at_s"]
    match event:
        case RunStarted():
            name, body = "run_started", {"version": FORMAT_VERSION, **body}
            body["entries"] = [_seed_to_json(entry) for entry in event.entries]
        case ExpansionAsked():
            name = "expansion_asked"
        case IdeaProposed():
            name, body["idea"] = "idea_proposed", _idea_to_json(event.idea)
        case SeedExhausted():
            name = "seed_exhausted"
        case VariantWritten():
            name, body = "variant_written", {**_variant_to_json(event.variant), "number": event.number}
        case IdeaImplemented():
            name, body = "idea_implemented", {"idea": event.idea_id, "variants": event.variants}
        case ModelCalled():
            name, body = "model_called", body["call"]
        case VariantEvaluated(variant=variant):
            name, body = "variant_evaluated", _verdict_to_json(variant, event.reused)
        case VariantJudgedInFull(variant=variant):
            name, body = "variant_judged_in_full", _verdict_to_json(variant, event.reused)
        case RoundClosed():
            body = {"round": event.round, "evaluations": event.evaluations}
            name, body["best"] = "round_closed", event.best and event.best.id
        case LeadersCompared():
            ids = [variant.id for variant in event.variants]
            name, body = "leaders_compared", {"ids": ids, "evaluations": body["evaluations"]}
        case KernelDiagnosed():
            name = "kernel_diagnosed"
        case ProbeRequested():
            name, body = "probe_requested", {"id": event.request.id, **body["request"]}
        case ProbeWritten():
            name, body = "probe_written", {"request_id": event.request_id, **body["kernel"]}
        case ProbeMeasured():
            name = "probe_measured"
            del body["kernel"]
        case RoundReflected():
            name, body = "round_reflected", body["reflection"]
        case BestConfirmed():
            name, body = "best_confirmed", {"id": event.variant.id, "evaluation": body["evaluation"]}
        case RunFinished():
            name, body["best"] = "run_finished", event.best and event.best.id
        case _:
            raise TypeError(f"{type(event).__name__} is not a journaled event")
    return {"event": name, "at_s": event.at_s, **body}


def _verdict_to_json(variant: Variant, reused: bool) -> dict[str, Any]:
    verdict = variant.evaluation and variant.evaluation.to_json()
    return {"id": variant.id, "reused": reused, "evaluation": verdict}


class Decoder:
    """Restores the events of one journal, line by line. It remembers the variants and the probes' kernels to
    which later lines refer."""

    def __init__(self) -> None:
        self._variants: dict[str, Variant] = {}
        self._probes: dict[str, Kernel] = {}

    def decode(self, line: Mapping[str, Any]) -> Event:
        """Raises NewerFormatError where a newer format starts, and ValueError, TypeError or KeyError
        for anything else that no version of `encode` has written."""
        body = dict(line)
        name, at_s = body.pop("event"), float(body.pop("at_s"))
        match name:
            case "run_started":
                body = _in_this_format(body)
                entries = [_seed_fields(entry) for entry in body["entries"]]
                started: RunStarted = from_fields(RunStarted, {"at_s": at_s, **body, "entries": entries})
                return started
            case "expansion_asked":
                return ExpansionAsked(at_s=at_s, **body)
            case "idea_proposed":
                return IdeaProposed(at_s=at_s, **{**body, "idea": _idea_from_json(body["idea"])})
            case "seed_exhausted":
                return SeedExhausted(at_s=at_s, **body)
            case "variant_written":
                number = body.pop("number")
                return VariantWritten(at_s=at_s, variant=self._written(body), number=number)
            case "idea_implemented":
                return IdeaImplemented(at_s=at_s, idea_id=body["idea"], variants=body["variants"])
            case "model_called":
                return ModelCalled(at_s=at_s, call=ModelCall.from_json(body))
            case "variant_evaluated":
                return VariantEvaluated(at_s=at_s, variant=self._judged(body), reused=body["reused"])
            case "variant_judged_in_full":
                return VariantJudgedInFull(at_s=at_s, variant=self._judged(body), reused=body["reused"])
            case "round_closed":
                return RoundClosed(at_s=at_s, **{**body, "best": self._variant(body["best"])})
            case "leaders_compared":
                found = tuple(Evaluation.from_json(each) for each in body["evaluations"])
                variants = tuple(self._variants[id] for id in body["ids"])
                for variant, evaluation in zip(variants, found, strict=True):
                    if evaluation.status.is_of_the_kernel:
                        self._variants[variant.id] = replace(variant, evaluation=evaluation)
                return LeadersCompared(at_s=at_s, variants=variants, evaluations=found)
            case "kernel_diagnosed":
                diagnosis = Diagnosis.from_json(body["diagnosis"])
                return KernelDiagnosed(at_s=at_s, **{**body, "diagnosis": diagnosis})
            case "probe_requested":
                expected, request = body.pop("id"), ProbeRequest(**body)
                _check_id("probe", expected, request.id)
                return ProbeRequested(at_s=at_s, request=request)
            case "probe_written":
                request_id = body.pop("request_id")
                self._probes[request_id] = kernel = Kernel(**body)
                return ProbeWritten(at_s=at_s, request_id=request_id, kernel=kernel)
            case "probe_measured":
                body = {"kernel": None, **body}
                measured: ProbeMeasured = from_fields(ProbeMeasured, {"at_s": at_s, **body})
                written = self._probes.get(measured.request_id)
                return measured if written is None else replace(measured, kernel=written)
            case "round_reflected":
                return RoundReflected(at_s=at_s, reflection=Reflection(**body))
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

    def _judged(self, body: Mapping[str, Any]) -> Variant:
        variant = self._variants[body["id"]].judged(Evaluation.from_json(body["evaluation"]))
        self._variants[variant.id] = variant
        return variant

    def _variant(self, variant_id: str | None) -> Variant | None:
        return None if variant_id is None else self._variants[variant_id]


def _in_this_format(started: Mapping[str, Any]) -> dict[str, Any]:
    """A `run_started` of any version up to this one, in this version's form."""
    body = dict(started)
    version = body.pop("version", 1)
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"the journal's format is version {version}, this program knows up to {FORMAT_VERSION}; "
            "open it with the newer program that wrote it"
        )
    if version == 1:
        entries = [{"why": "", "drop_in": True, **entry} for entry in body["entries"]]
        body = {"ranking": MEDIAN, **body, "entries": entries}
    return body


def _variant_to_json(variant: Variant) -> dict[str, Any]:
    place = {"id": variant.id, "idea": variant.idea, "parent": variant.parent, "round": variant.round}
    place = {**place, "repairs": variant.repairs}
    return {**place, "language": variant.kernel.language, "source": variant.kernel.source}


def _seed_to_json(seed: Seed) -> dict[str, Any]:
    body = asdict(seed)
    kernel = body.pop("kernel")
    return {"id": body.pop("id"), "language": kernel["language"], "source": kernel["source"], **body}


def _seed_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON form of a `Seed`'s own fields. Raises KeyError for one that is missing."""
    kernel = {"source": written["source"], "language": written["language"]}
    return {"kernel": kernel, **{name: written[name] for name in ("id", "evaluation", "why", "drop_in")}}


def _idea_to_json(idea: Idea) -> dict[str, Any]:
    body = {"id": idea.id, **asdict(idea)}
    return {"told" if name == "known_ideas" else name: value for name, value in body.items()}


def _idea_from_json(data: Mapping[str, Any]) -> Idea:
    body = dict(data)
    expected, known = body.pop("id"), body.pop("told")
    idea: Idea = from_fields(Idea, {"known_ideas": known, **body})
    _check_id("idea", expected, idea.id)
    return idea


def _check_id(what: str, written: str, computed: str) -> None:
    if written != computed:
        raise ValueError(f"the {what} has the id {written}, but its content gives {computed}")
