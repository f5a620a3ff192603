"""A run on Weights & Biases: the best so far by evaluations, metrics of each round, tables of ideas and
variants with their lineage, the best kernel as an artifact, the report as a file."""

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
from search.records.events import Event, RoundClosed, RunFinished, RunStarted, VariantEvaluated
from search.records.tree import Variant

logger = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "off")
IDEAS = tuple(name for name in IDEA.split() if name not in ("known_ideas", "calls"))
"""Columns of the table of ideas: those of the run's frames."""
VARIANTS = tuple(name for name in VARIANT.split() if name not in ("source", "log", "calls"))
"""And of the variants; their sources and logs are in the run's folder."""


class WandbObserver:
    """Logs a run to W&B, into `run_dir/wandb`. Its step is the number of evaluations so far; the figures are
    those of the console and of the run's frames.

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
            # Its monitor asks the GPU for figures every few seconds: not while kernels are being timed.
            "x_disable_stats": True,
        }
        self._rows = RunRows(Progress(clock=clock))
        self._progress = self._rows.progress
        self._unsent: list[tuple[int, dict[str, float]]] = []
        """What is still to be logged, with its step: all of the past, when the run is opened."""
        self._wandb: Any = None
        self._run: Any = None
        for event in past:
            self._take(event)

    def on_event(self, event: Event) -> None:
        """Logs what the event is worth."""
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
        """Ends the W&B run, waiting at most `finish_timeout_s` for what is still to be sent."""
        if self._run is not None and self._progress.finished is None:
            self._guarded(self._log_end)
        if self._run is not None:
            self._guarded(lambda: self._run.finish(exit_code=0 if self._progress.finished else 1))
        self._run, self._mode = None, "off"

    def _take(self, event: Event) -> None:
        """Lets the event change the run's rows, and keeps the metrics that it brings."""
        self._rows.apply(event)
        progress = self._progress
        match event:
            case VariantEvaluated(reused=False):
                self._unsent.append((progress.evaluations, standing(progress)))
            case RoundClosed(round=round):
                metrics = standing(progress) | round_metrics(progress.rounds[round])
                self._unsent.append((progress.evaluations, metrics))

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

    def _send(self) -> None:
        """Logs what was kept, once there is a run to log it to."""
        while self._run is not None and self._unsent:
            step, metrics = self._unsent.pop(0)
            data: dict[str, Any] = dict(metrics)
            if "round" in metrics:
                # Only this round's: the whole table, every round, would grow with the square.
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
            # A copy: of a file elsewhere W&B would keep a link alone, and say so on the terminal.
            copy = Path(shutil.copy(report, self._run.dir))
            self._run.save(str(copy), base_path=self._run.dir, policy="now")

    def _log_kernel(self, best: Variant, variants: Iterable[Mapping[str, Any]]) -> None:
        """As an artifact: its source, and what is known of it."""
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
    """A value as a table of W&B takes it: a lineage as text, nothing where there is no number."""
    if isinstance(value, tuple):
        return " > ".join(value)
    return None if isinstance(value, float) and math.isnan(value) else value
