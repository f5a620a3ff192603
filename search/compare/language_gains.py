"""What each language of kernels gained in the searches of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evaluators.base.languages import LANGUAGES
from evaluators.records.evaluation import Status
from search.records.events import VariantEvaluated, VariantJudgedInFull


@dataclass(frozen=True, kw_only=True)
class LanguageGain:
    """The kernels of one search in one language: how many were evaluated, how many of them are correct, and
    the best one's speedup over eager PyTorch (0 if none is correct)."""

    kernels: int = 0
    correct: int = 0
    speedup: float = 0.0

    def after(self, event: VariantEvaluated | VariantJudgedInFull) -> LanguageGain:
        """With one more verdict."""
        judged = event.variant.evaluation
        assert judged is not None
        is_new = not event.reused
        return LanguageGain(
            kernels=self.kernels + (is_new and isinstance(event, VariantEvaluated)),
            correct=self.correct + (is_new and judged.status is Status.CORRECT),
            speedup=max(self.speedup, judged.speedup),
        )


@dataclass(frozen=True, kw_only=True)
class ArmLanguage:
    """The kernels of an arm's searches in one language: `kernels` evaluated, `correct` ones, the `searches`
    with a correct one, the geometric mean of these searches' best `speedup` in it (0 without any), and the
    searches that it has `won`: no other language had a faster kernel."""

    kernels: int
    correct: int
    searches: int
    speedup: float
    won: int

    def __str__(self) -> str:
        """In words."""
        counts = f"{self.correct} of {self.kernels} kernels correct"
        if not self.searches:
            return counts
        best = f"best {self.speedup:.2f}x (geometric mean of {self.searches} searches)"
        return f"{counts}, {best}, the fastest in {self.won}"


def by_arm(searches: Iterable[tuple[str, Mapping[str, LanguageGain]]]) -> dict[str, dict[str, ArmLanguage]]:
    """What each language gained in each arm. `searches`: arms and their searches' gains. Empty if no search
    had kernels in two languages, because there is nothing to compare then."""
    gains: dict[str, list[Mapping[str, LanguageGain]]] = {}
    for arm, own in searches:
        gains.setdefault(arm, []).append(own)
    if len({name for found in gains.values() for each in found for name in each}) < 2:
        return {}
    return {
        arm: {name: _of_language(name, found) for name in LANGUAGES if any(name in each for each in found)}
        for arm, found in gains.items()
    }


def _of_language(name: str, found: Iterable[Mapping[str, LanguageGain]]) -> ArmLanguage:
    own = [(each[name], each) for each in found if name in each]
    bests = [gain.speedup for gain, _ in own if gain.speedup]
    return ArmLanguage(
        kernels=sum(gain.kernels for gain, _ in own),
        correct=sum(gain.correct for gain, _ in own),
        searches=len(bests),
        speedup=statistics.geometric_mean(bests) if bests else 0.0,
        won=sum(0 < gain.speedup >= max(one.speedup for one in each.values()) for gain, each in own),
    )


def language_lines(gains: Mapping[str, Mapping[str, ArmLanguage]]) -> list[str]:
    """One line for each arm and language."""
    return [
        f"{LANGUAGES[name].title}, {arm}: {each}"
        for arm, found in gains.items()
        for name, each in found.items()
    ]


def to_json(gains: Mapping[str, Mapping[str, ArmLanguage]]) -> dict[str, Any]:
    """As plain JSON types."""
    return {arm: {name: asdict(each) for name, each in found.items()} for arm, found in gains.items()}
