"""A run as pandas frames, for the report and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from evaluators.evaluation import Evaluation
from search.events import Event, ModelCalled, VariantEvaluated, VariantWritten
from search.journal import JournalError, replay
from search.llm import ModelCall, Spending
from search.observers import wording
from search.observers.progress import Progress
from search.observers.progress_records import RoundSummary
from search.reports.calls import (
    CallTexts,
    calls_about_idea,
    calls_by_idea,
    calls_by_variant,
    read_texts,
)
from search.tree import Idea, Outcome, Variant, speedups_of

if TYPE_CHECKING:
    import pandas as pd

LIMITS = ("evaluations", "seconds", "calls", "tokens", "dollars")
"""Of a budget, besides its rounds."""
NUMBERS = (
    *("kernel_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high"),
    *("speedup_vs_compile", "roofline_share", "own_share", "device_s", "build_s", "written_s"),
    *("evaluated_s", "gain", "correct_share", "wall_s", "elapsed_s", "dollars", "seconds", "at_s"),
)
"""Columns of floating-point numbers, not-a-number where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class RunFrames:
    """One run. Ideas, variants and calls are indexed by id, rounds by number; `docs/report.md` has the
    columns. `progress` is the run's state as the console shows it, and `texts` what models were asked."""

    folder: Path
    ideas: pd.DataFrame
    variants: pd.DataFrame
    rounds: pd.DataFrame
    calls: pd.DataFrame
    progress: Progress = field(repr=False)
    texts: Mapping[str, CallTexts] = field(repr=False)


def load_run(folder: str | Path) -> RunFrames:
    """The run in a folder, in progress or ended. Needs pandas. Raises OSError where there is no journal, and
    JournalError for one that cannot be read, or that has no run yet."""
    place = Path(folder)
    events = replay(place / "journal.jsonl")
    if not events:
        raise JournalError(f"{place / 'journal.jsonl'} is empty: the run has not begun")
    return frames_of(events, place, read_texts(place))


def frames_of(events: Iterable[Event], folder: Path, texts: Mapping[str, CallTexts]) -> RunFrames:
    """The frames of a run with these events."""
    rows = _Rows(folder, texts)
    for event in events:
        rows.apply(event)
    return RunFrames(
        folder=folder,
        ideas=_frame(rows.ideas(), "id", _IDEA),
        variants=_frame(rows.variants(), "id", _VARIANT),
        rounds=_frame(map(_round_row, rows.progress.summaries), "round", _ROUND),
        calls=_frame(rows.call_rows(), "id", _CALL),
        progress=rows.progress,
        texts=texts,
    )


_IDEA = """
    id round number category text parent proposer model expected builds_on known_ideas variants correct
    best kernel_ms speedup speedup_low speedup_high gain calls tokens dollars
"""
_VARIANT = """
    id idea number round category proposer model parent repairs lineage language kernel status reused compared
    kernel_ms eager_ms compile_ms speedup speedup_low speedup_high speedup_vs_compile roofline_share own_share
    new_best on_path rule cause log source written_s evaluated_s device_s build_s calls tokens dollars
"""
_ROUND = """
    round ideas evaluations correct_share best improved kernel_ms speedup speedup_low speedup_high
    evaluations_so_far wall_s elapsed_s device_s calls tokens dollars
"""
_CALL = "id at_s model purpose about attempt tokens dollars seconds estimated cause detail"


def _frame(rows: Iterable[dict[str, Any]], index: str, columns: str) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=columns.split())
    numbers = {name: "float64" for name in NUMBERS if name in frame}
    return frame.astype(numbers).set_index(index)


class _Rows:
    """Takes in the events of a run; then has the rows of its frames."""

    def __init__(self, folder: Path, texts: Mapping[str, CallTexts]) -> None:
        self.progress = Progress(**_settings(folder))
        self._texts = texts
        self._calls: dict[str, ModelCalled] = {}
        self._written_s: dict[str, float] = {}
        self._evaluated_s: dict[str, float] = {}
        self._new_bests: set[str] = set()

    def apply(self, event: Event) -> None:
        """Takes in the next event."""
        before = self.progress.best
        self.progress.apply(event)
        match event:
            case ModelCalled(call=call):
                self._calls[call.id] = event
            case VariantWritten(variant=variant):
                self._written_s.setdefault(variant.id, event.at_s)
            case VariantEvaluated(variant=variant):
                self._evaluated_s.setdefault(variant.id, event.at_s)
                best = self.progress.best
                if best is not None and best is not before:
                    self._new_bests.add(best.id)

    def call_rows(self) -> Iterable[dict[str, Any]]:
        """Every call of a model, in their order."""
        for id, event in self._calls.items():
            call = event.call
            row = {name: getattr(call, name) for name in ("model", "about", "attempt", "seconds", "detail")}
            yield row | {
                "id": id,
                "at_s": event.at_s,
                "purpose": call.purpose.value,
                "tokens": call.usage.tokens,
                "dollars": call.dollars,
                "estimated": call.estimated,
                "cause": call.cause.value if call.cause else "",
            }

    def ideas(self) -> Iterable[dict[str, Any]]:
        """Every idea, in their order."""
        tree = self.progress.state.tree
        calls = [event.call for event in self._calls.values()]
        asked = calls_by_idea(calls, self._texts, tree.ideas.values())
        about = calls_about_idea(calls, tree.variants.values())
        history = tree.history()
        speedups = speedups_of(tree.variants.values(), history)
        for outcome in history:
            idea = outcome.idea
            spent = _spent(about.get(idea.id, ()))
            ids = [*asked[idea.id], *(call.id for call in about.get(idea.id, ()))]
            number = self.progress.ideas[idea.id].number
            yield _idea_row(outcome, number, speedups) | spent | {"calls": tuple(ids)}

    def variants(self) -> Iterable[dict[str, Any]]:
        """Every variant, in the order of their ideas."""
        tree, best = self.progress.state.tree, self.progress.best
        path = {each.id for each in tree.lineage(best)} if best else set()
        calls = {id: event.call for id, event in self._calls.items()}
        wrote = calls_by_variant(calls.values(), self._texts, tree.variants.values())
        for item in self.progress.ideas.values():
            for cell in item.variants.values():
                variant = tree.variants[cell.variant.id]
                ids = wrote[variant.id]
                yield self._variant_row(variant, tree.ideas[variant.idea]) | {
                    "number": cell.number,
                    "reused": cell.reused,
                    "on_path": variant.id in path,
                    "calls": tuple(ids),
                    **_spent(calls[id] for id in ids),
                }

    def _variant_row(self, variant: Variant, idea: Idea) -> dict[str, Any]:
        tree, own = self.progress.state.tree, variant.evaluation
        counts = tree.ranking.evaluation(variant.kernel.id, own) if own else None
        compared = counts is not None and counts is not own
        return {
            **{name: getattr(variant, name) for name in ("id", "idea", "round", "parent", "repairs")},
            **{name: getattr(idea, name) for name in ("proposer", "model")},
            "category": idea.category.value,
            "lineage": tuple(each.id for each in tree.lineage(variant)),
            "language": variant.kernel.language,
            "kernel": variant.kernel.id,
            "source": variant.kernel.source,
            "status": own.status.value if own else "",
            "compared": counts.status.value if counts and compared else "",
            "new_best": variant.id in self._new_bests,
            "written_s": self._written_s.get(variant.id),
            "evaluated_s": self._evaluated_s.get(variant.id),
            **_timing_columns(counts),
            **_verdict_columns(own),
        }


def _settings(folder: Path) -> dict[str, Any]:
    """What the run folder's config says of limits, and whether the verdicts are a recording's."""
    path = folder / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    if not isinstance(config, dict):
        return {}
    budget, repeated = config.get("budget") or {}, config.get("replay") or {}
    limits = {name: budget.get(name) for name in LIMITS}
    rounds = config.get("rounds") or budget.get("rounds")
    return {**limits, "rounds": rounds, "recorded": bool(repeated.get("run") and repeated.get("evaluations"))}


def _idea_row(outcome: Outcome, number: int, speedups: Mapping[str, float]) -> dict[str, Any]:
    idea, best = outcome.idea, outcome.best
    names = ("id", "round", "text", "parent", "proposer", "model", "expected", "builds_on", "known_ideas")
    verdicts = [each.evaluation for each in outcome.variants if each.evaluation]
    timing = _timing_columns(best.evaluation if best else None)
    seed = speedups.get(idea.parent) or 1.0  # as the history that proposers are shown
    return {
        **{name: getattr(idea, name) for name in names},
        "number": number,
        "category": idea.category.value,
        "variants": len(outcome.variants),
        "correct": sum(each.timing is not None for each in verdicts),
        "best": best.id if best else "",
        "gain": best.evaluation.speedup / seed if best and best.evaluation else math.nan,
        **{name: timing.get(name) for name in ("kernel_ms", "speedup", "speedup_low", "speedup_high")},
    }


def _round_row(summary: RoundSummary) -> dict[str, Any]:
    names = ("round", "ideas", "evaluations", "correct_share", "improved", "evaluations_so_far")
    spent = Spending.total(model.spending for model in summary.models.values())
    timing = _timing_columns(summary.best.evaluation if summary.best else None)
    return {
        **{name: getattr(summary, name) for name in (*names, "wall_s", "elapsed_s", "device_s")},
        "best": summary.best.id if summary.best else "",
        **{name: timing.get(name) for name in ("kernel_ms", "speedup", "speedup_low", "speedup_high")},
        "calls": spent.calls,
        "tokens": spent.tokens,
        "dollars": float(spent.dollars),
    }


def _timing_columns(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None or (timing := evaluation.timing) is None:
        return {}
    names = ("kernel_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high")
    return {name: getattr(timing, name) for name in (*names, "speedup_vs_compile")} | {
        "roofline_share": evaluation.roofline_share
    }


def _verdict_columns(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return {"rule": "", "cause": "", "log": ""}
    names = ("rule", "log", "own_share", "device_s", "build_s")
    failed = evaluation.timing is None
    return {name: getattr(evaluation, name) for name in names} | {
        "cause": wording.why_not_correct(evaluation) if failed else ""
    }


def _spent(calls: Iterable[ModelCall]) -> dict[str, Any]:
    total = Spending()
    for call in calls:
        total.add(call)
    return {"tokens": total.tokens, "dollars": float(total.dollars)}
