"""What the MCP server's tools answer with, made of a run. Every figure has its unit in its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluators.app.verdict_report import cut
from evaluators.records.evaluation import Evaluation, Roofline
from search.engine.agent import Agent
from search.records.tree import Outcome, Seed, Variant


@dataclass(frozen=True, kw_only=True)
class RunStanding:
    """Where the run stands: what is used, and left (None: no limit)."""

    round: int
    rounds_left: int | None
    evaluations: int
    evaluations_left: int | None
    seconds: float
    seconds_left: float | None
    used_up: str
    """The limit that allows nothing more; "" while there is none."""
    under_way: dict[str, str]
    """Variants without a verdict, with the stage that they are in."""
    finished: str
    """Why the run ended; "" while it goes on."""


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """A kernel with its verdict. Errors are normwise, against the reference in float64; `wrong_on` names
    further kinds of inputs on which it is not within the tolerance. `why` says what the library found it for;
    without `drop_in` it computes something else, and is there to be read."""

    id: str
    kind: str
    language: str
    status: str
    idea: str = ""
    round: int = 0
    repairs: str = ""
    kernel_ms: float | None = None
    eager_ms: float | None = None
    compile_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    roofline_share: float | None = None
    bound: str = ""
    error: float | None = None
    eager_error: float | None = None
    wrong_on: list[str] = field(default_factory=list)
    rule: str = ""
    log: str = ""
    why: str = ""
    drop_in: bool = True
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ProblemReport:
    """What is to be made fast, and by which rules it is judged."""

    name: str
    reference: str
    sizes: dict[str, Any]
    dtype: str
    device: str
    tolerance: str
    libraries: str
    rules: str
    languages: list[str]
    categories: list[str]
    facts: dict[str, str]
    eager_ms: float | None
    compile_ms: float | None
    roofline: Roofline | None
    standing: RunStanding


@dataclass(frozen=True, kw_only=True)
class Tried:
    """An idea and what became of it: its best variant, and that one's time over its parent's (`gain`)."""

    idea: str
    round: int
    category: str
    text: str
    parent: str
    expected: str
    by: str
    variants: dict[str, str]
    """Status by the variant's id."""
    best: str = ""
    kernel_ms: float | None = None
    speedup: float | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """Ideas, oldest first; `ideas` counts all of them."""

    ideas: int
    tried: list[Tried]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The run's fastest correct kernels, and the library's for this problem; each the fastest first."""

    best: list[KernelReport]
    library: list[KernelReport]


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """An idea that is there now."""

    idea: str
    round: int
    parent: str
    standing: RunStanding


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A kernel with its verdict, and what the budget has left."""

    kernel: KernelReport
    standing: RunStanding


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How the run ended. `confirmed`: whether the whole interval of the best kernel's final measurement lies
    above 1.00; `not_confirmed` says why not. `summary` is what `summary.json` in the run's folder holds."""

    reason: str
    confirmed: bool
    not_confirmed: str
    best: KernelReport | None
    folder: str
    summary: dict[str, Any]


def standing(agent: Agent) -> RunStanding:
    """What an agent is told of its run."""
    budget, state = agent.session.budget, agent.session.state
    closed, remaining_s = state.tree.rounds_closed, budget.remaining_s
    return RunStanding(
        round=agent.round,
        rounds_left=None if budget.rounds is None else max(0, budget.rounds - closed),
        evaluations=budget.spent,
        evaluations_left=None if budget.evaluations is None else budget.available,
        seconds=round(budget.elapsed_s, 1),
        seconds_left=None if remaining_s is None else round(remaining_s, 1),
        used_up=budget.exhausted(closed) or "",
        under_way=dict(agent.stages),
        finished=state.finished.reason if state.finished else "",
    )


def variant_report(
    variant: Variant, confirmed: Evaluation | None = None, *, source: bool = False
) -> KernelReport:
    """What is told of a variant: by its final measurement where one is given, else by its verdict."""
    evaluation = confirmed or variant.evaluation
    return KernelReport(
        id=variant.id,
        kind="variant",
        language=variant.kernel.language,
        idea=variant.idea,
        round=variant.round,
        repairs=variant.repairs,
        source=variant.kernel.source if source else "",
        **({"status": "under way"} if evaluation is None else _figures(evaluation)),
    )


def entry_report(entry: Seed, *, source: bool) -> KernelReport:
    """What is told of an entry of the library; with its `source` where that is asked for."""
    return KernelReport(
        id=entry.id,
        kind="library",
        language=entry.kernel.language,
        why=entry.why,
        drop_in=entry.drop_in,
        source=entry.kernel.source if source else "",
        **({"status": "not measured here"} if entry.evaluation is None else _figures(entry.evaluation)),
    )


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    """What a report says of an evaluation."""
    found: dict[str, Any] = {"status": evaluation.status.value, "rule": evaluation.rule}
    found["log"] = "\n".join(cut(evaluation.log.strip()))
    if (timing := evaluation.timing) is not None:
        for name in ("kernel_ms", "eager_ms", "compile_ms", "speedup", "speedup_low", "speedup_high"):
            found[name] = digits(getattr(timing, name))
    if evaluation.roofline is not None:
        found |= {"roofline_share": digits(evaluation.roofline_share), "bound": evaluation.roofline.bound}
    if (correctness := evaluation.correctness) is not None:
        found["error"] = digits(correctness.normwise_error)
        found["eager_error"] = digits(correctness.eager_error)
        found["wrong_on"] = [kind for kind, right in correctness.distributions.items() if not right]
    return found


def outcome_report(outcome: Outcome, speedups: Mapping[str, float]) -> Tried:
    """What is told of an idea; `speedups` are those of all kernels, by id, for its gain over its parent."""
    idea, best = outcome.idea, outcome.best
    timing = best.evaluation.timing if best and best.evaluation else None
    before = speedups.get(idea.parent)
    return Tried(
        idea=idea.id,
        round=idea.round,
        category=idea.category.value,
        text=idea.text,
        parent=idea.parent,
        expected=idea.expected,
        by=idea.model,
        variants={v.id: v.evaluation.status.value if v.evaluation else "under way" for v in outcome.variants},
        best=best.id if best else "",
        kernel_ms=digits(timing.kernel_ms) if timing else None,
        speedup=digits(timing.speedup) if timing else None,
        gain=digits(timing.speedup / before) if timing and before else None,
    )


def digits(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")
