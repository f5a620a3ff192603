"""Many runs as data frames, to ask what they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from search.proposers.llm.novelty import repeated
from search.report.run_frames import RunFrames

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class CorpusFrames:
    """The frames of several runs, one below the other. The first level of each index is the run's name;
    `docs/guides/report.md` lists the columns.

    Attributes:
        searches: One row per run: what it found, when, and at what cost. `rounds` counts those with a
            measurement. The figures are those of the final measurement where `confirmed`, else of the round.
        ideas: One row per idea, also with `repeats` (whether its words repeat an earlier idea of its run) and
            `pays` (whether its best variant is faster than its seed, beyond noise).
        variants: One row per variant.
        rounds: One row per round.
    """

    searches: pd.DataFrame
    ideas: pd.DataFrame
    variants: pd.DataFrame
    rounds: pd.DataFrame


def corpus_frames(runs: Mapping[str, RunFrames]) -> CorpusFrames:
    """The frames of at least one run, by name. Needs pandas."""
    import pandas as pd

    def below(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        return pd.concat({name: each for name, each in frames.items() if len(each)}, names=["search"])

    searches = pd.DataFrame({"search": name, **_search(run)} for name, run in runs.items())
    return CorpusFrames(
        searches=searches.set_index("search"),
        ideas=below({name: _ideas(run) for name, run in runs.items()}),
        variants=below({name: run.variants for name, run in runs.items()}),
        rounds=below({name: run.rounds for name, run in runs.items()}),
    )


def _search(run: RunFrames) -> dict[str, Any]:
    """What one run found, when, and at what cost."""
    judged = run.variants[run.variants["status"] != ""]
    correct = judged[judged["status"] == "correct"]
    best = correct.sort_values("speedup_low").iloc[-1] if len(correct) else None
    started = run.progress.started
    assert started is not None  # a journal that is empty cannot be opened
    final = _final(run, best)
    figures = ("kernel_ms", "speedup", "speedup_low", "speedup_high", "speedup_vs_compile", "roofline_share")
    return {
        "problem": started.problem.name,
        "device": started.environment.get("device", ""),
        "rounds": int((run.rounds["evaluations"] > 0).sum()),
        "ideas": len(run.ideas),
        "evaluations": len(judged),
        "correct": len(correct),
        "best": "" if best is None else best.name,
        "best_round": 0 if best is None else best["round"],
        "confirmed": bool(final),
        **{name: final.get(name, nan if best is None else best[name]) for name in figures},
        "characters_asked": sum(len(each.system) + len(each.prompt) for each in run.texts.values()),
        "characters_answered": sum(len(each.answer) for each in run.texts.values()),
        "device_s": judged["device_s"].sum(),
    }


def _final(run: RunFrames, best: pd.Series | None) -> dict[str, float | None]:
    """The figures of the best kernel's final measurement, if it had one and passed."""
    found = None if best is None else run.progress.confirmed.get(best["kernel"])
    if found is None or (timing := found.timing) is None:
        return {}
    names = ("kernel_ms", "speedup", "speedup_low", "speedup_high", "speedup_vs_compile")
    return {name: getattr(timing, name) for name in names} | {"roofline_share": found.roofline_share}


def _ideas(run: RunFrames) -> pd.DataFrame:
    """The ideas of a run with the columns that only a corpus has."""
    surely = run.ideas["gain"] * run.ideas["speedup_low"] / run.ideas["speedup"]
    return run.ideas.assign(repeats=_repeats(run), pays=surely > 1)


def _repeats(run: RunFrames) -> list[bool]:
    """Whether each idea says the same as an earlier one of its run, as far as their words show."""
    texts = list(run.ideas["text"])
    return [repeated(text, texts[:place]) for place, text in enumerate(texts)]
