"""The answers of the MCP server's tools. Names of figures end in their units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluators.app.verdict_report import cut
from evaluators.records.configurations import configuration_lines
from evaluators.records.evaluation import Evaluation, Roofline
from evaluators.records.resources import resource_lines
from search.engine.agent import Agent
from search.records.tree import Outcome, Seed, Variant


@dataclass(frozen=True, kw_only=True)
class RunStanding:
    """The state of the run: what is used, and what is left (null: no limit)."""

    round: int
    rounds_left: int | None
    evaluations: int
    evaluations_left: int | None
    seconds: float
    seconds_left: float | None
    used_up: str
    """The limit that forbids more work; "" if none does."""
    under_way: dict[str, str]
    """Variants without a verdict, by id, with their stage."""
    finished: str
    """Why the run ended; "" while it is running."""


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """A kernel with its verdict. `error` and `eager_error` are normwise errors against the reference in
    float64. `wrong_on` lists other kinds of inputs on which the kernel exceeds the tolerance. `speedup` is
    over eager PyTorch, with the ends of its 95 % interval. `roofline_share` is the share of the hardware's
    limit that is reached, 0 to 1. `configurations` has a line for each that the kernel declares. `resources`
    has a line for each compiled GPU function, if known; its stack has spilled registers, and arrays with
    variable indices. `why` says why the library suggested the kernel; without `drop_in` it solves another
    problem and is only there to read."""

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
    configurations: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    why: str = ""
    drop_in: bool = True
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class DiagnosisReport:
    """What a kernel's profile means, in words."""

    id: str
    diagnosis: str


@dataclass(frozen=True, kw_only=True)
class ProblemReport:
    """The problem, and the rules by which kernels are judged."""

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
    """An idea and its results: its best variant, and how many times as fast as its parent that is
    (`gain`)."""

    idea: str
    round: int
    category: str
    text: str
    parent: str
    expected: str
    by: str
    variants: dict[str, str]
    """Statuses by variant id."""
    best: str = ""
    kernel_ms: float | None = None
    speedup: float | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """Ideas, oldest first; `ideas` is the number of all of them."""

    ideas: int
    tried: list[Tried]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The run's fastest correct kernels, and the library's kernels for this problem; each fastest first."""

    best: list[KernelReport]
    library: list[KernelReport]


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """The idea, as recorded."""

    idea: str
    round: int
    parent: str
    standing: RunStanding


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A kernel with its verdict, and the state of the run."""

    kernel: KernelReport
    standing: RunStanding


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How the run ended. `confirmed`: whether the whole 95 % interval of the best kernel's final measurement
    lies above 1.00; otherwise `not_confirmed` is the reason. `summary` is the content of `summary.json` in
    the run's folder."""

    reason: str
    confirmed: bool
    not_confirmed: str
    best: KernelReport | None
    folder: str
    summary: dict[str, Any]


def standing(agent: Agent) -> RunStanding:
    """The state of the agent's run."""
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
    """The report of a variant: its final measurement if given, otherwise its verdict."""
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
    """The report of a library entry."""
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
    """The part of a report that comes from an evaluation."""
    found: dict[str, Any] = {"status": evaluation.status.value, "rule": evaluation.rule}
    found["log"] = "\n".join(cut(evaluation.log.strip()))
    found["configurations"] = configuration_lines(evaluation.configurations)
    found["resources"] = resource_lines(evaluation.resources)
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
    """The report of an idea. `speedups` has those of all kernels, by id, for the gain over the parent."""
    idea, best = outcome.idea, outcome.best
    timing = best.timing if best else None
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
    """Rounds to four significant digits."""
    return None if value is None else float(f"{value:.4g}")
