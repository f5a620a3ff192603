"""The figures of a run on W&B: its progress, its rounds, and its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evaluators.records.evaluation import Status
from search.observers.progress_items import ModelProgress, RoundSummary
from search.observers.run_progress import Progress
from search.records.events import RunStarted
from search.records.model_calls import Spending
from search.records.ranking import unconfirmed


def standing(progress: Progress) -> dict[str, float]:
    """The progress of a run: `best_*` of the best kernel so far, and the cost until then."""
    figures = {
        "evaluations_so_far": float(progress.evaluations),
        "elapsed_s": progress.state.used_s,
        "gpu_s_so_far": progress.device_s,
    }
    if (spent := progress.spent).calls:
        figures |= {f"{figure}_so_far": value for figure, value in cost_figures(spent).items()}
    if progress.best is not None and (timing := progress.best.timing) is not None:
        figures["best_ms"] = timing.kernel_ms
        figures["best_speedup"] = timing.speedup
        figures["best_speedup_low"] = timing.speedup_low
        figures["best_speedup_high"] = timing.speedup_high
    return figures


def round_metrics(summary: RoundSummary) -> dict[str, float]:
    """The metrics of a closed round; `models/*` covers the run until then."""
    metrics = {
        "round": float(summary.round),
        "ideas": float(summary.ideas),
        "evaluations": float(summary.evaluations),
        "wall_s": summary.wall_s,
        "gpu_s": summary.device_s,
        **{f"statuses/{status.value}": float(summary.statuses[status]) for status in Status},
    }
    for name, model in summary.models.items():
        metrics |= {f"models/{name}/{figure}": value for figure, value in model_figures(model).items()}
    if summary.correct_share is not None:
        metrics["correct_share"] = summary.correct_share
    return metrics


def model_figures(model: ModelProgress) -> dict[str, float]:
    """The cost of a model's calls, the number of its ideas, and its best speedup if it has one."""
    figures = {**cost_figures(model.spending), "ideas": float(model.ideas)}
    timing = model.best.timing if model.best else None
    return figures | {"best_speedup": timing.speedup} if timing else figures


def cost_figures(spent: Spending) -> dict[str, float]:
    """Calls, failed calls, tokens and dollars."""
    return {
        "calls": float(spent.calls),
        "failed_calls": float(spent.failed),
        "estimated_calls": float(spent.estimated),
        "tokens": float(spent.tokens),
        "dollars": float(spent.dollars),
    }


def run_summary(progress: Progress) -> dict[str, Any]:
    """How the run ended: the reason, the counts, the best kernel and its final measurement."""
    best, finished = progress.best, progress.finished
    summary: dict[str, Any] = {
        "reason": finished.reason if finished else "stopped",
        "evaluations": progress.evaluations,
        "statuses": _by_name(progress.statuses),
        "wall_s": progress.elapsed_s,
        "gpu_s": progress.device_s,
    }
    if progress.models:
        summary |= cost_figures(progress.spent)
        summary["models"] = {name: model_figures(model) for name, model in progress.models.items()}
        summary["failures"] = {cause.value: count for cause, count in progress.causes.items()}
    confirmed = finished.confirmed if finished else None
    if best is not None:
        summary |= {"best_variant": best.id, "best_round": best.round, "best_idea": best.idea}
        summary |= {"best_repairs": best.repairs} if best.repairs else {}
        summary |= {"confirmed": not unconfirmed(confirmed), "not_confirmed": unconfirmed(confirmed)}
    if confirmed is not None:
        summary["confirmed_status"] = confirmed.status.value
    if confirmed is not None and confirmed.timing is not None:
        timing = confirmed.timing
        summary |= {
            "confirmed_ms": timing.kernel_ms,
            "confirmed_speedup": timing.speedup,
            "confirmed_speedup_low": timing.speedup_low,
            "confirmed_speedup_high": timing.speedup_high,
            "confirmed_speedup_vs_compile": timing.speedup_vs_compile,
        }
    return summary


def _by_name(statuses: Counter[Status]) -> dict[str, int]:
    return {status.value: count for status, count in statuses.items()}


def facts(event: RunStarted) -> dict[str, Any]:
    """Facts about a run, in addition to its config."""
    return {
        "problem": event.problem.name,
        "problem_id": event.problem.id,
        "dtype": event.problem.dtype,
        "proposer": event.proposer,
        "strategy": event.strategy,
        "rounds": event.rounds,
        "seed": event.seed,
        "environment": dict(event.environment),
    }
