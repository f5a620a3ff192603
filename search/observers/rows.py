"""A run as rows: one per idea, variant, round and model call. The data frames, the report and the tables on
W&B all use them. Plain dictionaries: pandas is not needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from evaluators.records.configurations import configuration_lines
from evaluators.records.evaluation import Evaluation
from evaluators.records.resources import resource_lines
from search.observers import wording
from search.observers.calls import CallTexts, calls_about_idea, calls_by_idea, calls_by_variant
from search.observers.progress_items import RoundSummary
from search.observers.run_progress import Progress
from search.records.events import Event, ModelCalled, VariantEvaluated, VariantJudgedInFull, VariantWritten
from search.records.model_calls import ModelCall, Spending
from search.records.tree import Idea, Outcome, Tree, Variant, speedups_of

IDEA = """
    id round number category text parent parent_idea start depth lineage proposer model expected
    predicted_gain refuted_by builds_on known_ideas variants correct best kernel_ms speedup speedup_low
    speedup_high gain calls tokens dollars
"""
VARIANT = """
    id idea number round category proposer model parent repairs lineage language kernel status reused compared
    kernel_ms eager_ms compile_ms speedup speedup_low speedup_high speedup_vs_compile roofline_share own_share
    new_best on_path rule cause log configurations resources source
    written_s evaluated_s waited_s device_s build_s stages_s calls tokens dollars
"""
ROUND = """
    round ideas evaluations correct_share best improved kernel_ms speedup speedup_low speedup_high
    evaluations_so_far wall_s elapsed_s device_s calls tokens dollars
"""
CALL = "id at_s model purpose about attempt tokens dollars seconds estimated cause detail"


class RunRows:
    """Collects the events of a run and gives its rows, with the columns above (`docs/guides/report.md`
    explains them). All events go through `apply`; `progress` must not have seen any yet. An idea or a variant
    of which only a part was seen has no row."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._calls: dict[str, ModelCalled] = {}
        self._written_s: dict[str, float] = {}
        self._evaluated_s: dict[str, float] = {}
        self._new_bests: set[str] = set()

    def apply(self, event: Event) -> None:
        """Takes the next event."""
        before = self.progress.best
        self.progress.apply(event)
        match event:
            case ModelCalled(call=call):
                self._calls[call.id] = event
            case VariantWritten(variant=variant):
                self._written_s.setdefault(variant.id, event.at_s)
            case VariantEvaluated(variant=variant) | VariantJudgedInFull(variant=variant):
                self._evaluated_s.setdefault(variant.id, event.at_s)
                best = self.progress.best
                if best is not None and best is not before:
                    self._new_bests.add(best.id)

    def calls(self) -> Iterable[dict[str, Any]]:
        """Every model call, in order."""
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

    def rounds(self) -> Iterable[dict[str, Any]]:
        """Every closed round and, if the run stopped in the middle of one, that one."""
        return map(_round_row, self.progress.summaries)

    def ideas(self, texts: Mapping[str, CallTexts]) -> Iterable[dict[str, Any]]:
        """Every idea, in order; the calls' `texts` show which call proposed it."""
        tree = self.progress.state.tree
        calls = [event.call for event in self._calls.values()]
        asked = calls_by_idea(calls, texts, tree.ideas.values())
        about = calls_about_idea(calls, tree.variants.values())
        history = tree.history()
        speedups = speedups_of(tree.variants.values(), history)
        for outcome in history:
            idea = outcome.idea
            spent = _spent(about.get(idea.id, ()))
            ids = [*asked[idea.id], *(call.id for call in about.get(idea.id, ()))]
            number = self.progress.ideas[idea.id].number
            row = _idea_row(outcome, number, speedups) | _idea_lineage(tree, idea)
            yield row | spent | {"calls": tuple(ids)}

    def variants(self, texts: Mapping[str, CallTexts]) -> Iterable[dict[str, Any]]:
        """Every variant, in the order of their ideas; the calls' `texts` show which call wrote it."""
        tree, best = self.progress.state.tree, self.progress.best
        path = {each.id for each in tree.lineage(best)} if best else set()
        calls = {id: event.call for id, event in self._calls.items()}
        wrote = calls_by_variant(calls.values(), texts, tree.variants.values())
        for item in self.progress.ideas.values():
            if item.id not in tree.ideas:
                continue
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


def _idea_row(outcome: Outcome, number: int, speedups: Mapping[str, float]) -> dict[str, Any]:
    idea, best = outcome.idea, outcome.best
    names = (
        *("id", "round", "text", "parent", "proposer", "model", "expected", "predicted_gain", "refuted_by"),
        *("builds_on", "known_ideas"),
    )
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


def _idea_lineage(tree: Tree, idea: Idea) -> dict[str, Any]:
    """The ideas that led to an idea's seed, and the idea itself."""
    seed = tree.variants.get(idea.parent)
    line = tree.lineage(seed) if seed else []
    ids = (*(each.idea for each in line), idea.id)
    return {
        "parent_idea": seed.idea if seed else "",
        "start": line[0].parent if line else idea.parent,
        "depth": len(ids),
        "lineage": ids,
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
        empty: tuple[str, ...] = ()
        return {
            "rule": "",
            "cause": "",
            "log": "",
            "configurations": empty,
            "resources": empty,
            "stages_s": {},
        }
    names = ("rule", "log", "own_share", "device_s", "build_s")
    failed = evaluation.timing is None
    return {name: getattr(evaluation, name) for name in names} | {
        "cause": wording.why_not_correct(evaluation) if failed else "",
        "configurations": tuple(configuration_lines(evaluation.configurations)),
        "stages_s": dict(evaluation.stages_s),
        "waited_s": evaluation.lease.waited_s if evaluation.lease else None,
        "resources": tuple(resource_lines(evaluation.resources)),
    }


def _spent(calls: Iterable[ModelCall]) -> dict[str, Any]:
    total = Spending()
    for call in calls:
        total.add(call)
    return {"tokens": total.tokens, "dollars": float(total.dollars)}
