"""What a run leaves on disk in addition to its journal: every kernel, the winner, and the figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.base.source_comment import source_comment
from evaluators.records.evaluation import Evaluation, Timing
from evaluators.suites.definitions.solutions import SOLUTION_FILE, solution_of
from search.records.events import Event, IdeaProposed, RunStarted, VariantEvaluated, VariantWritten
from search.records.model_calls import Spending
from search.records.ranking import unconfirmed
from search.records.run_state import RunState
from search.records.tree import Idea, Variant


class RunFolder:
    """An observer that writes each kernel to `variants/<id>.py` of the folder.

    `past` are the events of a resumed run: kernels that are in the journal but were not yet written when the
    earlier process died are written now.
    """

    def __init__(self, folder: Path, past: Iterable[Event] = ()) -> None:
        self._variants = folder / "variants"
        self._variants.mkdir(parents=True, exist_ok=True)
        self._problem = ""
        self._ideas: dict[str, Idea] = {}
        for event in past:
            self.on_event(event)

    def on_event(self, event: Event) -> None:
        """Writes the kernel of a new variant, and again when values are filled in."""
        match event:
            case RunStarted(problem=problem):
                self._problem = problem.name
            case IdeaProposed(idea=idea):
                self._ideas[idea.id] = idea
            case VariantWritten(variant=variant):
                if not self._path(variant).exists():
                    self._write(variant)
            case VariantEvaluated(variant=variant) if variant.declared is not None:
                self._write(variant)

    def _path(self, variant: Variant) -> Path:
        return self._variants / f"{variant.id}.py"

    def _write(self, variant: Variant) -> None:
        title = f"Variant {variant.id}{_repairs(variant)} of {self._problem}"
        header = _header(title, self._ideas[variant.idea])
        write_atomically(self._path(variant), header + variant.kernel.source)

    def close(self) -> None:
        """Does nothing: every file is already complete."""


def finalise(folder: Path, state: RunState) -> dict[str, Any]:
    """Writes `best.py` (if there is a winner; for a definition, `solution.json` too) and `summary.json`;
    returns the summary.

    This works for an unfinished run too: its best is the fastest variant so far, unconfirmed. Raises
    ValueError for a journal without a start.
    """
    if state.started is None:
        raise ValueError(f"{folder}: the journal has no run_started event, so there is nothing to summarise")
    best, evaluation = _winner(state)
    if best is not None and evaluation is not None and evaluation.timing is not None:
        timing = evaluation.timing
        figures = f"{timing.speedup:.3f}x eager ({timing.speedup_low:.3f} to {timing.speedup_high:.3f})"
        why = unconfirmed(_final(state))
        figures += f", not confirmed: {why}" * bool(why)
        title = f"Best kernel for {state.started.problem.name}: {figures}; variant {best.id}{_repairs(best)}"
        source = _header(title, state.tree.ideas[best.idea]) + best.kernel.source
        write_atomically(folder / "best.py", source)
        solution = solution_of(
            state.started.problem,
            best.kernel,
            name=f"ideatree_{best.id}",
            description=f"{figures}. {state.tree.ideas[best.idea].text}",
        )
        if solution is not None:
            write_atomically(folder / SOLUTION_FILE, json.dumps(solution, indent=2) + "\n")
    summary = summarise(state)
    write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def summarise(state: RunState) -> dict[str, Any]:
    """The figures of a run, as in `summary.json`; the names end in the units.

    `best` is null if no kernel was correct, or none stayed correct when measured again. Its figures and the
    baselines are those of the final measurement if there is one. `best.confirmed` says whether the interval
    of the final measurement lies above 1.00 against eager; `best.not_confirmed` is the reason if it does not.
    `statuses` counts the `evaluations`. `best.idea` is the idea's text. Raises ValueError for a state without
    a start.
    """
    if state.started is None:
        raise ValueError("the run has not started, so there is nothing to summarise")
    started = state.started
    best, evaluation = _winner(state)
    timing = evaluation.timing if evaluation else None
    return {
        "problem": started.problem.name,
        "device": started.environment.get("device", started.problem.device),
        "rounds": state.tree.rounds_closed,
        "evaluations": state.evaluations,
        "statuses": {status.value: n for status, n in sorted(state.statuses.items())},
        "baselines_ms": {
            "eager": timing.eager_ms if timing else None,
            "compile": timing.compile_ms if timing else None,
        },
        "best": _best(state, best, timing) if best and timing else None,
        "cost": {**_cost(state), "gpu_s": state.device_s, "wall_s": state.used_s},
        "time": _time(state),
    }


def _winner(state: RunState) -> tuple[Variant | None, Evaluation | None]:
    """The variant to report, with its final measurement or, without one, its evaluation in the search."""
    best = state.finished.best if state.finished else next(iter(state.tree.best()), None)
    return best, _final(state) or (best.evaluation if best else None)


def _final(state: RunState) -> Evaluation | None:
    """The winner's final measurement."""
    return state.finished.confirmed if state.finished else None


def _best(state: RunState, best: Variant, timing: Timing) -> dict[str, Any]:
    why = unconfirmed(_final(state))
    return {
        "variant": best.id,
        "idea": state.tree.ideas[best.idea].text,
        "round": best.round,
        "kernel_ms": timing.kernel_ms,
        "speedup": timing.speedup,
        "speedup_low": timing.speedup_low,
        "speedup_high": timing.speedup_high,
        "speedup_vs_compile": timing.speedup_vs_compile,
        "confirmed": not why,
        "not_confirmed": why,
    }


def _cost(state: RunState) -> dict[str, Any]:
    """The cost of all models, and of each model that was called or proposed ideas."""
    ideas = Counter(idea.model for idea in state.tree.ideas.values() if idea.model)
    models = {}
    for name in sorted({*state.spending, *ideas}):
        each = state.spending.get(name, Spending())
        models[name] = {
            "calls": each.calls,
            "tokens": each.tokens,
            "dollars": float(each.dollars),
            "ideas": ideas[name],
        }
    spent = state.spent
    return {
        "calls": spent.calls,
        "failed_calls": spent.failed,
        "estimated_calls": spent.estimated,
        "tokens": spent.tokens,
        "dollars": float(spent.dollars),
        "models": models,
    }


def _time(state: RunState) -> dict[str, Any]:
    """Where the time of the measurements went, and for how long each device was held and idle. The shares are
    null if they are not known."""
    use, shares = state.time, state.time.shares(state.used_s)
    devices = {}
    for name, each in sorted(use.devices.items()):
        held_share, idle_share = shares.get(name, (None, None))
        devices[name] = {**asdict(each), "held_share": held_share, "idle_share": idle_share}
    return {
        "build_s": use.build_s,
        "waited_s": use.waited_s,
        "stages_s": use.stages_s,
        "devices": devices,
    }


def _repairs(variant: Variant) -> str:
    return f" (repairs {variant.repairs})" if variant.repairs else ""


def _header(title: str, idea: Idea) -> str:
    """A comment to put before the source. It shifts line numbers but not the code's meaning."""
    by = f", by {idea.model}" if idea.model else ""
    text = f"Idea {idea.id}{by}, round {idea.round}, {idea.category.value}: {idea.text}"
    return source_comment(title) + source_comment(text)
