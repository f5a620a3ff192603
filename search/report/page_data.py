"""The contents of a run's page as plain JSON types, made only from the frames."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evaluators.records.diagnosis import SHOWN_LAUNCHES, Diagnosis, shortened
from evaluators.records.evaluation import Evaluation, Status
from search.observers import wording
from search.observers.marks import CATEGORY_WORDS, MARKS
from search.observers.run_progress import Progress
from search.records.ranking import unconfirmed
from search.records.tree import Category
from search.report.gains import gains_by
from search.report.html import plain
from search.report.run_frames import RunFrames
from search.report.texts import Texts

if TYPE_CHECKING:
    import pandas as pd

CAUSES_SHOWN = 20
"""Causes of failures with a separate bar."""
LINEAGE = ("known_ideas", "parent_idea", "start", "depth", "lineage")
"""Columns of ideas that the page leaves out, because it has the tree."""
TEXTS = ("source", "log")
"""Columns of variants that the page has as texts."""


def page_data(frames: RunFrames, texts: Texts) -> dict[str, Any]:
    """Everything except the long texts, which are added to `texts`; the data has their numbers."""
    calls = _records(frames.calls)
    for call in calls:
        said = frames.texts.get(call["id"])
        for name in ("system", "prompt", "answer"):
            call[name] = texts.add(getattr(said, name)) if said else None
    variants = _records(frames.variants)
    for variant in variants:
        for name in TEXTS:
            variant[name] = texts.add(variant[name])
    return {
        "run": _run(frames, texts),
        "winner": _winner(frames),
        "entries": _entries(frames, texts),
        "diagnoses": {id: _diagnosis(each) for id, each in frames.progress.state.diagnoses.items()},
        "ideas": _records(frames.ideas.drop(columns=list(LINEAGE))),
        "variants": variants,
        "rounds": _records(frames.rounds),
        "calls": calls,
        "probes": _probes(frames),
        "time": _time(frames.progress),
        "categories": _records(gains_by(frames, "category")),
        "models": _records(gains_by(frames, "model")),
        "languages": _records(gains_by(frames, "language")),
        "failures": _failures(frames),
        "words": {
            "categories": {each.value: CATEGORY_WORDS[each][0] for each in Category},
            "statuses": {status.value: MARKS[status].glyph for status in Status},
        },
    }


def _run(frames: RunFrames, texts: Texts) -> dict[str, Any]:
    progress = frames.progress
    started = progress.state.started
    assert started is not None, "every run has a start"
    columns, *rows = (wording.COLUMNS, *wording.trajectory(progress))
    facts = {"proposer": started.proposer, "strategy": started.strategy, "seed": str(started.seed)}
    limits: dict[str, float | None] = {"rounds": progress.rounds_limit, "seconds": progress.seconds_limit}
    limits |= {"evaluations": progress.evaluations_limit, **progress.model_limits}
    return {
        "folder": frames.folder.resolve().name,
        "problem": started.problem.name,
        "device": wording.device(progress),
        "facts": facts | dict(started.environment),
        "limits": {name: limit for name, limit in limits.items() if limit},
        "recorded": progress.recorded,
        "open": progress.finished is None,
        "rounds_closed": progress.rounds_closed,
        "evaluations": progress.evaluations,
        "closing": [list(line) for line in wording.winner(progress)],
        "columns": list(columns),
        "trajectory": [list(row) for row in rows],
        "reflections": [
            [f"round {number}", each.text] for number, each in sorted(progress.state.reflections.items())
        ],
        "reference": texts.add(started.problem.source),
    }


def _time(progress: Progress) -> dict[str, Any]:
    """Where the time of the measurements went, and on how many devices."""
    use = progress.state.time
    return {
        "stages_s": {name: _plain(seconds) for name, seconds in use.stages_s.items()},
        "build_s": _plain(use.build_s),
        "devices": len(use.devices),
        "elsewhere": use.is_elsewhere,
    }


def _winner(frames: RunFrames) -> dict[str, Any] | None:
    """The fastest kernel so far, with the figures of its final measurement if there is one."""
    progress = frames.progress
    if (best := progress.best) is None:
        return None
    confirmed = progress.finished.confirmed if progress.finished else None
    confirmed = confirmed or progress.confirmed.get(best.kernel.id)
    counts: Evaluation | None = confirmed if confirmed and confirmed.timing else best.evaluation
    if counts is None or (timing := counts.timing) is None:
        return None
    roofline = counts.roofline or (best.evaluation.roofline if best.evaluation else None)
    return {
        "id": best.id,
        "confirmed": confirmed is not None and not unconfirmed(confirmed),
        "measured_again": confirmed is not None and confirmed.timing is not None,
        "kernel_ms": timing.kernel_ms,
        "eager_ms": timing.eager_ms,
        "compile_ms": timing.compile_ms,
        "speedup": timing.speedup,
        "speedup_low": timing.speedup_low,
        "speedup_high": timing.speedup_high,
        "floor_ms": roofline.floor_ms if roofline else None,
        "bound": roofline.bound if roofline else None,
        "roofline_share": roofline.share(timing.kernel_ms) if roofline else None,
    }


def _entries(frames: RunFrames, texts: Texts) -> list[dict[str, Any]]:
    """The library's kernels that ideas start from."""
    started = frames.progress.state.started
    parents = set(frames.ideas["parent"])
    return [
        {
            "id": entry.id,
            "why": entry.why,
            "kernel": entry.kernel.id,
            "source": texts.add(entry.kernel.source),
        }
        for entry in (started.entries if started else ())
        if entry.id in parents
    ]


def _diagnosis(found: Diagnosis) -> Any:
    """What the page shows of a kernel's diagnosis."""
    fields = ("reached", "missing", "call_us", "gaps_us", "isolation", "seconds")
    findings = [asdict(each) | {"kernel": shortened(each.kernel)} for each in found.findings]
    times = [
        asdict(each) | {"kernel": shortened(each.kernel), "total_us": each.total_us}
        for each in found.times[:SHOWN_LAUNCHES]
    ]
    return plain(
        {name: getattr(found, name) for name in fields}
        | {"findings": findings, "times": times, "figures": list(found.figures())}
    )


def _probes(frames: RunFrames) -> list[dict[str, Any]]:
    """The probes in the order in which they were asked for."""
    state = frames.progress.state
    results = {id: each.probe for id, each in state.probed.items()}
    return [
        {
            "round": each.round,
            "base": each.base,
            "question": each.question,
            "what": each.what,
            "result": found.text() if (found := results.get(each.id)) else "not written",
        }
        for each in state.probes.values()
    ]


def _failures(frames: RunFrames) -> list[dict[str, Any]]:
    """Counts of evaluations by status and, for failures, by cause."""
    own = frames.variants[(frames.variants["status"] != "") & ~frames.variants["reused"].astype(bool)]
    counted = Counter(zip(own["status"], own["cause"], strict=True))
    shown = set(dict(counted.most_common(CAUSES_SHOWN)))
    found: Counter[tuple[str, str]] = Counter()
    for (status, cause), count in counted.items():
        found[status, cause if (status, cause) in shown else "other causes"] += count
    return [{"status": status, "cause": cause, "count": n} for (status, cause), n in found.most_common()]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows, with null for values that JSON does not have."""
    rows = frame.reset_index().to_dict(orient="records")
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.item() if hasattr(value, "item") else value
