"""A run on Weights & Biases: metrics of each round, the table of ideas, the best kernel's source."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.cause import printable
from evaluators.evaluation import Status
from evaluators.problem import content_id
from search.events import Event, RoundClosed, RunFinished, RunStarted
from search.llm import Spending
from search.observers import wording
from search.observers.progress import Progress
from search.observers.progress_records import IdeaProgress, ModelProgress, RoundSummary
from search.ranking import unconfirmed

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "off")
COLUMNS = (
    "round",
    "idea",
    "model",
    "parent",
    "category",
    "text",
    "best_variant",
    "best_repairs",
    "best_ms",
    "best_speedup",
    "statuses",
)
"""Of the table of ideas."""


class WandbObserver:
    """Logs a run to W&B, into `run_dir/wandb`.

    `mode`: `online`, `offline` (send it later with `wandb sync`), `off`, or `auto`: online where an API key
    is configured, otherwise offline. `config` is shown next to what the run says of itself.
    `past` holds the events of earlier processes of this run; they share one W&B run, named by `run_id` (by
    default from the path of `run_dir`). Never fails a run: the first thing that goes wrong is logged as a
    warning and ends the logging to W&B. Raises ValueError for a mode that is none.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        mode: str | bool = "auto",
        project: str = "ideatree",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        init_timeout_s: float = 30.0,
        finish_timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        past: Iterable[Event] = (),
    ) -> None:
        self._mode = "off" if mode is False else mode  # YAML reads an unquoted off as false
        if self._mode not in MODES:
            raise ValueError(f"wandb.mode is {mode!r}; it must be one of {', '.join(MODES)}")
        self._run_dir = run_dir.resolve()
        self._place = {"project": project, "entity": entity, "name": name, "group": group, "tags": list(tags)}
        self._config = dict(config or {})
        self._id = run_id or content_id(str(self._run_dir))
        self._settings = {
            "silent": True,
            "console": "off",
            "init_timeout": init_timeout_s,
            "finish_timeout": finish_timeout_s,
            # Its monitor asks the GPU for figures every few seconds: not while kernels are being timed.
            "x_disable_stats": True,
        }
        self._progress = Progress(clock=clock, past=past)
        self._wandb: Any = None
        self._run: Any = None

    def on_event(self, event: Event) -> None:
        """Logs what the event is worth."""
        self._progress.apply(event)
        match event:
            case RunStarted():
                self._guarded(lambda: self._start(event))
            case RoundClosed(round=round):
                self._guarded(lambda: self._log_round(self._progress.rounds[round]))
            case RunFinished():
                self._guarded(self._log_end)

    def close(self) -> None:
        """Ends the W&B run, waiting at most `finish_timeout_s` for what is still to be sent."""
        if self._run is not None and self._progress.finished is None:
            self._guarded(self._log_end)
        if self._run is not None:
            self._guarded(lambda: self._run.finish(exit_code=0 if self._progress.finished else 1))
        self._run, self._mode = None, "off"

    def _guarded(self, step: Callable[[], None]) -> None:
        """Does a step of the logging, if it is on; whatever W&B raises turns it off with one warning."""
        if self._mode == "off":
            return
        try:
            step()
        except ImportError as error:
            self._mode, self._run = "off", None
            logger.warning("W&B is off (%s); to have it: pip install 'wandb>=0.31'", error)
        except Exception as error:  # a foreign service: no kind of failure of it is worth a search
            self._mode, self._run = "off", None
            logger.warning("W&B is off for the rest of this run: %s: %s", type(error).__name__, error)

    def _start(self, event: RunStarted) -> None:
        if self._run is not None:
            return
        import wandb

        # It would advertise its tracing on the terminal of whoever has a model's SDK loaded.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        self._wandb = wandb
        self._run = self._init(event)
        for number in sorted(self._progress.rounds):
            self._log_round(self._progress.rounds[number])

    def _init(self, event: RunStarted) -> Any:
        wandb, place = self._wandb, self._run_dir / "wandb"
        arguments = {
            **self._place,
            "dir": str(self._run_dir),
            "config": {**self._config, "run": _facts(event)},
            "settings": self._settings,
            "reinit": "create_new",
        }
        mode = self._mode_that_works()
        if mode == "online":
            try:
                run = wandb.init(mode=mode, id=self._id, resume="allow", **arguments)
                logger.info("W&B: %s", run.url)
                return run
            except wandb.Error as error:
                reason = printable(str(error))
                logger.warning(
                    "W&B stays offline (%s); send it later: wandb sync %s/offline-*", reason, place
                )
                # wandb keeps the id of the attempt that failed for itself
                return wandb.init(mode="offline", id=f"{self._id}-offline", **arguments)
        if mode == "offline":
            logger.info("W&B is offline; send the run later: wandb sync %s/offline-*", place)
        return wandb.init(mode=mode, id=self._id, **arguments)

    def _mode_that_works(self) -> str:
        """`online` only with an API key: asking for one would be a prompt amid the run's own output.

        `disabled` where `auto` finds that the user has said so to W&B itself (WANDB_MODE).
        """
        if self._mode == "offline":
            return "offline"
        session = self._wandb.setup(settings=self._wandb.Settings(silent=True))
        if self._mode == "auto" and session.settings.mode == "disabled":
            return "disabled"
        if self._wandb.login(prompt=False, verify=False):
            return "online"
        if self._mode == "online":
            logger.warning("W&B stays offline: no API key is configured; log in with: wandb login")
        return "offline"

    def _log_round(self, summary: RoundSummary) -> None:
        # Of the ideas only those of this round: the whole table, every round, would grow with the square.
        table = self._table(self._progress.ideas_of(summary.round))
        metrics = {**round_metrics(summary), "round_ideas": table}
        self._run.log(metrics, step=summary.round, commit=True)

    def _log_end(self) -> None:
        progress = self._progress
        self._run.log({"ideas": self._table(progress.ideas.values())})
        self._run.summary.update(run_summary(progress))
        if progress.best is None:
            return
        kernel = self._run_dir / "wandb" / f"best_{progress.best.id}.py"
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text(progress.best.kernel.source)
        problem = progress.started.problem.name if progress.started else "kernel"
        artifact = self._wandb.Artifact(
            name="best-" + re.sub(r"[^A-Za-z0-9._-]+", "-", problem)[:100],
            type="kernel",
            metadata=run_summary(progress),
        )
        artifact.add_file(str(kernel), name="best.py", policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact)

    def _table(self, ideas: Iterable[IdeaProgress]) -> Any:
        return self._wandb.Table(columns=list(COLUMNS), data=[list(idea_row(item)) for item in ideas])


def round_metrics(summary: RoundSummary) -> dict[str, float]:
    """The figures of a closed round: `best_*` of the run so far, `statuses/*` and the rest of this round."""
    metrics = {
        "round": float(summary.round),
        "ideas": float(summary.ideas),
        "evaluations": float(summary.evaluations),
        "evaluations_so_far": float(summary.evaluations_so_far),
        "wall_s": summary.wall_s,
        "elapsed_s": summary.elapsed_s,
        "gpu_s": summary.device_s,
        **{f"statuses/{status.value}": float(summary.statuses[status]) for status in Status},
    }
    for name, model in summary.models.items():
        metrics |= {f"models/{name}/{figure}": value for figure, value in model_figures(model).items()}
    spent = Spending.total(model.spending for model in summary.models.values())
    if spent.calls:
        metrics |= {f"{figure}_so_far": value for figure, value in cost_figures(spent).items()}
    if summary.correct_share is not None:
        metrics["correct_share"] = summary.correct_share
    timing = summary.best.evaluation.timing if summary.best and summary.best.evaluation else None
    if timing is not None:
        metrics["best_ms"] = timing.kernel_ms
        metrics["best_speedup"] = timing.speedup
        metrics["best_speedup_low"] = timing.speedup_low
        metrics["best_speedup_high"] = timing.speedup_high
    return metrics


def idea_row(item: IdeaProgress) -> tuple[int | str | float | None, ...]:
    """What became of an idea, in the order of `COLUMNS`; None where no variant is correct."""
    idea, best = item.idea, item.best
    timing = best.evaluation.timing if best and best.evaluation else None
    about = (idea.model, idea.parent, idea.category.value, idea.text) if idea else ("", "", "", "")
    result = (best.id, best.repairs, timing.kernel_ms, timing.speedup) if best and timing else (None,) * 4
    return (item.round, item.id, *about, *result, wording.counts(item.statuses))


def model_figures(model: ModelProgress) -> dict[str, float]:
    """What a model's calls cost, how many ideas it had, and its best speedup where it has any."""
    figures = {**cost_figures(model.spending), "ideas": float(model.ideas)}
    timing = model.best.evaluation.timing if model.best and model.best.evaluation else None
    return figures | {"best_speedup": timing.speedup} if timing else figures


def cost_figures(spent: Spending) -> dict[str, float]:
    """Calls, those of them that failed, tokens and dollars."""
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


def _facts(event: RunStarted) -> dict[str, Any]:
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
