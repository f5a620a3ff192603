"""The observers' wording of figures, ideas and the closing table: plain strings, one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from evaluators.base.cause import printable
from evaluators.records.evaluation import Evaluation, Status, Timing
from search.observers.progress_items import ModelProgress, RoundSummary
from search.observers.run_progress import Progress
from search.records.model_calls import Cause, ModelCall, Spending
from search.records.ranking import unconfirmed
from search.records.tree import Reflection, Variant

REASONS = {
    "rounds": "all rounds are done",
    "evaluations": "all evaluations are used",
    "seconds": "the time is up",
    "calls": "all model calls are used",
    "tokens": "all tokens are used",
    "dollars": "the dollars are used",
    "exhausted": "the proposer has no more ideas",
}
"""Why a run ended, in words; other reasons stand for themselves."""

LEAST_IDLE = 0.005
"""Share of the time below which it is not said that devices were idle."""

COLUMNS = ("round", "ideas", "evals", "correct", "best ms", "speedup", "95 % interval", "idea")
"""Columns of the trajectory table."""


def shorten(text: str, width: int) -> str:
    """The text in at most `width` characters, ending in three dots if it was cut."""
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


def short_id(id: str) -> str:
    """Enough of an id to find it in the journal. Library entries keep their names; the reference is `ref`."""
    is_hash = len(id) == 12 and all(char in "0123456789abcdef" for char in id)
    return (id[:6] if is_hash else printable(id)) or "ref"


def milliseconds(ms: float) -> str:
    """Three significant digits, without the unit."""
    return f"{ms:.0f}" if ms >= 100 else f"{ms:#.3g}"


def times(speedup: float) -> str:
    """A speedup: 1.42x, 12.3x, 123x."""
    digits = 2 if speedup < 9.995 else 1 if speedup < 99.95 else 0
    return f"{speedup:.{digits}f}x"


def interval(timing: Timing) -> str:
    """The 95 % interval of the speedup."""
    return f"[{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"


def gain(timing: Timing) -> str:
    """The time, speedup and interval of a kernel."""
    return f"{milliseconds(timing.kernel_ms)} ms  {times(timing.speedup)} {interval(timing)}"


def duration(seconds: float) -> str:
    """12s, 4m05s, 1h02m."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total % 3600 // 60:02d}m"


def share(value: float | None) -> str:
    """A share in per cent, `-` if there is none."""
    return "-" if value is None else f"{100 * value:.0f} %"


def many(number: int, thing: str) -> str:
    """1 idea, 2 ideas."""
    return f"{number} {thing}" + "s" * (number != 1)


def amount(number: float) -> str:
    """A count in three digits: 950, 41.2k, 1.24M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:#.3g}".rstrip(".") + letter
    return f"{number:.0f}"


def dollars(value: float) -> str:
    """$0.42; four decimals below a cent."""
    return f"${value:.4f}" if 0 < value < 0.01 else f"${value:,.2f}"


def cost(
    spent: Spending,
    limits: Mapping[str, float | None] | None = None,
    *,
    of: str = "/",
    causes: Counter[Cause] | None = None,
) -> list[str]:
    """Calls, tokens and dollars, each with its limit, if any, after `of`. Dollars are left out if no price is
    known. `causes` says why calls failed."""

    def used(number: float, what: str, word: Callable[[float], str]) -> str:
        limit = (limits or {}).get(what)
        return word(number) + (f"{of}{word(limit)}" if limit else "")

    calls = used(spent.calls, "calls", str)
    calls += " call" if calls == "1" else " calls"
    if spent.failed:
        why = ", ".join(f"{cause} {count}" for cause, count in (causes or Counter()).most_common())
        calls += f", {spent.failed} failed" + (f" ({why})" if why else "")
    most = "at most " if spent.estimated else ""
    tokens = f"{most}{used(spent.tokens, 'tokens', amount)} tokens"
    paid = f"{most}{used(float(spent.dollars), 'dollars', dollars)}"
    return [calls, tokens, *([paid] if spent.dollars else [])]


def failure(call: ModelCall) -> str:
    """A failed call, with its cause and the provider's message."""
    text = f"{printable(call.model)} {call.cause} (attempt {call.attempt})"
    return f"{text}: {printable(call.detail)}" if call.detail else text


def short_model(name: str) -> str:
    """A model's name without its provider."""
    return printable(name).rpartition("/")[2]


def reflection(found: Reflection) -> str:
    """A reflection, with its round."""
    return f"on round {found.round}: {printable(found.text)}"


def label(progress: Progress, idea_id: str, *, with_model: bool = False) -> str:
    """An idea as category and text, or its id if nothing else is known. Its model is named if there are
    several, or with `with_model`."""
    item = progress.ideas.get(idea_id)
    if item is None or item.idea is None:
        return f"idea {short_id(idea_id)}"
    idea = item.idea
    by = f", {printable(idea.model)}" if idea.model and (with_model or progress.several_models) else ""
    return f"{idea.category.value}{by}: {printable(idea.text)}"


def counts(statuses: Counter[Status]) -> str:
    """The number of each status, in the order of the statuses."""
    return ", ".join(f"{statuses[status]} {status.value}" for status in Status if statuses[status]) or "none"


def device(progress: Progress) -> str:
    """The device's name, or the problem's device if the environment does not name it."""
    if progress.started is None:
        return ""
    return printable(progress.started.environment.get("device", "")) or progress.started.problem.device


def why_not_correct(evaluation: Evaluation) -> str:
    """The broken rule, or the cause in one line."""
    return printable(evaluation.rule) or evaluation.cause


def repairs(variant: Variant) -> str:
    """The note after a variant that repairs another."""
    return f" (repairs {short_id(variant.repairs)})" if variant.repairs else ""


def trajectory(progress: Progress) -> list[tuple[str, ...]]:
    """One row per round, its cells in the order of `COLUMNS`; times and speedups are the best so far."""
    return [_row(progress, summary) for summary in progress.summaries]


def aligned(rows: Sequence[tuple[str, ...]], *, gap: str = "  ") -> list[str]:
    """The rows' figures, all but the last cell, right-aligned in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return [gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def _row(progress: Progress, summary: RoundSummary) -> tuple[str, ...]:
    best = summary.best
    timing = best.timing if best else None
    number = str(summary.round) if summary.round in progress.rounds else f"{summary.round} (open)"
    figures = (number, str(summary.ideas), str(summary.evaluations), share(summary.correct_share))
    if best is None or timing is None:
        return (*figures, "-", "-", "-", "no correct kernel yet")
    idea = label(progress, best.idea) if summary.improved else f"unchanged since round {best.round}"
    return (*figures, milliseconds(timing.kernel_ms), times(timing.speedup), interval(timing), idea)


def winner(progress: Progress) -> list[tuple[str, str]]:
    """The closing lines below the table, each a heading and its text."""
    best = progress.best
    lines = [] if best is None else _winner_lines(progress, best)
    if best is None:
        lines.append(("winner", "none: no kernel was correct"))
    lines.append(
        ("verdicts", counts(progress.statuses) + (f"; {progress.reused} reused" * bool(progress.reused)))
    )
    reason = progress.finished.reason if progress.finished else "stopped early"
    elapsed_s = progress.elapsed_s
    spent = f"{many(progress.evaluations, 'evaluation')} in {duration(elapsed_s)}"
    if progress.state.time.is_elsewhere and not progress.recorded:
        spent += ", waiting for verdicts not counted"
    elif elapsed_s > 0 and not progress.recorded:
        rate = progress.evaluations / elapsed_s * 60
        spent += f" ({rate:.3g} per minute){busy(progress)}"
    lines.append(("ended", f"{REASONS.get(reason, reason)}; {spent}"))
    return lines + _models_lines(progress)


def busy(progress: Progress) -> str:
    """For which share of the time each device was busy, and idle although a kernel was on its way to it; ""
    if that is not known."""
    shares = progress.state.time.shares(progress.elapsed_s)
    if not shares:
        return ""
    held, idle = (sorted(each) for each in zip(*shares.values(), strict=True))
    named = "device" if len(shares) == 1 else f"each of {len(shares)} devices"
    text = f", {'devices' if '' in shares else named} busy {_between(held)} of the time"
    return text + (f", idle {_between(idle)} while kernels were built" if idle[-1] >= LEAST_IDLE else "")


def _between(shares: Sequence[float]) -> str:
    """The range of sorted shares."""
    low, high = f"{shares[0]:.0%}", f"{shares[-1]:.0%}"
    return low if low == high else f"{low} to {high}"


def _models_lines(progress: Progress) -> list[tuple[str, str]]:
    """The cost of all models and, if there are several, a line for each."""
    lines = []
    if progress.spent.calls:
        lines.append(("cost", "; ".join(cost(progress.spent, causes=progress.causes))))
    if progress.several_models:
        lines += [("model", _model_line(name, model)) for name, model in sorted(progress.models.items())]
    return lines


def _model_line(name: str, model: ModelProgress) -> str:
    timing = model.best.timing if model.best else None
    best = f", best {times(timing.speedup)}" if timing else ", none correct" * (model.ideas > 0)
    parts = [many(model.ideas, "idea") + best, *(cost(model.spending) if model.spending.calls else [])]
    return f"{printable(name)}: {'; '.join(parts)}"


def _winner_lines(progress: Progress, best: Variant) -> list[tuple[str, str]]:
    finished = progress.finished
    confirmed = (finished.confirmed if finished else None) or progress.confirmed.get(best.kernel.id)
    lines = [
        ("winner", f"variant {best.id}, round {best.round}, {best.kernel.language}{repairs(best)}"),
        ("idea", label(progress, best.idea)),
    ]
    lines.append(("confirmed", _confirmed(confirmed)))
    if (timing := best.timing) is not None:
        lines.append(("in search", _over_baselines(timing)))
        first = progress.first
        if first and first.id != best.id and first.timing:
            first_ms = first.timing.kernel_ms
            gained = first_ms / timing.kernel_ms
            change = f"{times(gained)} as fast" if gained >= 1 else f"{times(1 / gained)} slower"
            text = f"{milliseconds(first_ms)} ms, the first idea's kernel; the winner is {change}"
            lines.append(("began at", text))
    return lines


def _confirmed(evaluation: Evaluation | None) -> str:
    """Whether the final measurement confirms the kernel, why not, and its figures."""
    why = unconfirmed(evaluation)
    if evaluation is None:
        return f"no: {why}"
    if evaluation.timing is None:
        reason = why_not_correct(evaluation)
        return f"NO: {why}" + f": {reason}" * bool(reason)
    figures = _over_baselines(evaluation.timing)
    return f"no, {why}: {figures}" if why else f"yes, {figures}"


def _over_baselines(timing: Timing) -> str:
    eager = f"{gain(timing)} over eager ({milliseconds(timing.eager_ms)} ms)"
    if timing.compile_ms is None or timing.speedup_vs_compile is None:
        return eager
    compiled = f"compile ({milliseconds(timing.compile_ms)} ms)"
    return f"{eager}, {times(timing.speedup_vs_compile)} over {compiled}"
