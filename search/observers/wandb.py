"""A run on Weights & Biases: the best so far by evaluations, metrics per round, tables of ideas and variants
with their lineage, the best kernel as an artifact, and the report as a file."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.base.cause import printable
from evaluators.records.problem import content_id
from search.observers.calls import read_texts
from search.observers.rows import IDEA, VARIANT, RunRows
from search.observers.run_progress import Progress
from search.observers.wandb_figures import facts, round_metrics, run_summary, standing
from search.records.events import (
    Event,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantJudgedInFull,
)
from search.records.tree import Variant

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "off")
IDEAS = tuple(name for name in IDEA.split() if name not in ("known_ideas", "calls"))
"""Columns of the table of ideas, a part of the rows' columns."""
IN_THE_FOLDER = ("source", "log", "configurations", "resources", "calls")
VARIANTS = tuple(name for name in VARIANT.split() if name not in IN_THE_FOLDER)
"""Columns of the table of variants; the run's folder has their sources and logs."""


class WandbObserver:
    """Logs a run to W&B, into `run_dir/wandb`. Its step is the number of evaluations so far; the figures are
    those of the console and the run's frames.

    `mode`: `online`; `offline` (upload later with `wandb sync`); `off`; or `auto`, which is online if an API
    key is configured and offline otherwise. `config` is shown in addition to the run's own facts. `past` has
    the events of earlier processes of this run; they share one W&B run, named by `run_id` (default: derived
    from `run_dir`). It never fails a run: the first problem is logged as a warning and ends the logging to
    W&B. Raises ValueError for an unknown mode.
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
        job_type: str | None = None,
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
        self._place: dict[str, Any] = {"project": project, "entity": entity, "name": name, "group": group}
        self._place |= {"job_type": job_type, "tags": list(tags)}
        self._config = dict(config or {})
        self._id = run_id or content_id(str(self._run_dir))
        self._settings = {
            "silent": True,
            "console": "off",
            "init_timeout": init_timeout_s,
            "finish_timeout": finish_timeout_s,
            # Its monitor queries the GPU every few seconds, which would disturb the timing of kernels.
            "x_disable_stats": True,
        }
        self._rows = RunRows(Progress(clock=clock))
        self._progress = self._rows.progress
        self._unsent: list[tuple[int, dict[str, float]]] = []
        """Metrics still to be logged, with their steps; all of the past when the run is opened."""
        self._wandb: Any = None
        self._run: Any = None
        for event in past:
            self._take(event)

    def on_event(self, event: Event) -> None:
        """Logs the event."""
        if self._mode == "off":
            return
        self._take(event)
        match event:
            case RunStarted():
                self._guarded(lambda: self._start(event))
            case RunFinished():
                self._guarded(self._send)
                self._guarded(self._log_end)
            case _:
                self._guarded(self._send)

    def close(self) -> None:
        """Ends the W&B run, waiting at most `finish_timeout_s` for data still to be sent."""
        if self._run is not None and self._progress.finished is None:
            self._guarded(self._log_end)
        if self._run is not None:
            self._guarded(lambda: self._run.finish(exit_code=0 if self._progress.finished else 1))
        self._run, self._mode = None, "off"

    def _take(self, event: Event) -> None:
        """Applies the event to the run's rows, and keeps its metrics."""
        self._rows.apply(event)
        progress = self._progress
        match event:
            case VariantEvaluated(reused=False) | VariantJudgedInFull(reused=False):
                self._unsent.append((progress.evaluations, standing(progress)))
            case RoundClosed(round=round):
                metrics = standing(progress) | round_metrics(progress.rounds[round])
                self._unsent.append((progress.evaluations, metrics))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Does a step of the logging, if it is on; an exception from W&B turns it off with one warning."""
        if self._mode == "off":
            return
        try:
            step()
        except ImportError as error:
            self._mode, self._run = "off", None
            logger.warning("W&B is off (%s); to use it: pip install 'wandb>=0.31'", error)
        except Exception as error:  # no failure of an external service should end a search
            self._mode, self._run = "off", None
            logger.warning("W&B is off for the rest of this run: %s: %s", type(error).__name__, error)

    def _start(self, event: RunStarted) -> None:
        if self._run is not None:  # a worker has described the device
            self._run.config.update({"run": facts(event)}, allow_val_change=True)
            return
        import wandb

        # Otherwise it advertises its tracing on the terminal when a model's SDK is loaded.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        self._wandb = wandb
        self._run = self._init(event)
        for figures, by in (("best_*", "evaluations_so_far"), ("statuses/*", "round"), ("models/*", "round")):
            self._run.define_metric(figures, step_metric=by)
        self._send()

    def _init(self, event: RunStarted) -> Any:
        wandb, place = self._wandb, self._run_dir / "wandb"
        arguments = {
            **self._place,
            "dir": str(self._run_dir),
            "config": {**self._config, "run": facts(event)},
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
                    "W&B stays offline (%s); upload the run later: wandb sync %s/offline-*", reason, place
                )
                # wandb reserves the id of the failed attempt
                return wandb.init(mode="offline", id=f"{self._id}-offline", **arguments)
        if mode == "offline":
            logger.info("W&B is offline; upload the run later: wandb sync %s/offline-*", place)
        return wandb.init(mode=mode, id=self._id, **arguments)

    def _mode_that_works(self) -> str:
        """`online` only with an API key, because asking for one would prompt in the middle of the run's
        output.

        `disabled` if the mode is `auto` and the user has disabled W&B itself (WANDB_MODE).
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

    def _send(self) -> None:
        """Logs the kept metrics, once there is a run to log them to."""
        while self._run is not None and self._unsent:
            step, metrics = self._unsent.pop(0)
            data: dict[str, Any] = dict(metrics)
            if "round" in metrics:
                # Only this round's ideas: the whole table in every round would grow quadratically.
                ideas = (row for row in self._rows.ideas({}) if row["round"] == metrics["round"])
                data["round_ideas"] = self._table(IDEAS, ideas)
            self._run.log(data, step=step)

    def _log_end(self) -> None:
        texts = read_texts(self._run_dir)
        variants = list(self._rows.variants(texts))
        ideas = self._table(IDEAS, self._rows.ideas(texts))
        self._run.log({"ideas": ideas, "variants": self._table(VARIANTS, variants)})
        self._run.summary.update(run_summary(self._progress))
        if (best := self._progress.best) is not None:
            self._log_kernel(best, variants)
        report = self._run_dir / "report.html"
        if report.exists():
            # A copy, because W&B would only link to a file elsewhere, and print that on the terminal.
            copy = Path(shutil.copy(report, self._run.dir))
            self._run.save(str(copy), base_path=self._run.dir, policy="now")

    def _log_kernel(self, best: Variant, variants: Iterable[Mapping[str, Any]]) -> None:
        """Logs the kernel as an artifact, with its source and facts."""
        kernel = self._run_dir / "wandb" / f"best_{best.id}.py"
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_text(best.kernel.source)
        progress = self._progress
        problem = progress.started.problem.name if progress.started else "kernel"
        line = (progress.idea_of(each) for each in progress.state.tree.lineage(best))
        known = next((row for row in variants if row["id"] == best.id), {})
        metadata = run_summary(progress) | {
            "variant": {name: _cell(known.get(name)) for name in VARIANTS},
            "ideas": [idea.text for idea in line if idea],
        }
        artifact = self._wandb.Artifact(
            name="best-" + re.sub(r"[^A-Za-z0-9._-]+", "-", problem)[:100], type="kernel", metadata=metadata
        )
        artifact.add_file(str(kernel), name="best.py", policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact)

    def _table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Any:
        data = [[_cell(row.get(name)) for name in columns] for row in rows]
        return self._wandb.Table(columns=list(columns), data=data)


def _cell(value: Any) -> Any:
    """A value in the form that a W&B table takes: a lineage as text, None for a missing number."""
    if isinstance(value, tuple):
        return " > ".join(value)
    return None if isinstance(value, float) and math.isnan(value) else value
