"""What each language gained in the searches of a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel
from search.compare.curves import Searched, of_events
from search.compare.language_gains import LanguageGain, by_arm, language_lines, to_json
from search.records.events import VariantEvaluated
from search.records.tree import Variant


def evaluated(language: str, speedup: float, *, reused: bool = False) -> VariantEvaluated:
    found = Evaluation(status=Status.INCORRECT, log="wrong")
    if speedup:
        times = dict.fromkeys(("eager_ms", "speedup", "speedup_low", "speedup_high"), speedup)
        found = Evaluation(status=Status.CORRECT, timing=Timing(kernel_ms=1.0, **times))
    kernel = Kernel(source=f"{language} {speedup}", language=language)
    variant = Variant(kernel=kernel, idea="i", parent="", round=1, evaluation=found)
    return VariantEvaluated(at_s=1.0, variant=variant, reused=reused)


def test_gains_of_a_search_are_counted_and_kept() -> None:
    events = [
        evaluated("triton", 2.0),
        evaluated("triton", 0.0),
        evaluated("cute", 3.0),
        evaluated("cute", 3.0, reused=True),
    ]
    found = of_events(events, problem="p", arm="a", seed=0)
    assert found.languages == {
        "triton": LanguageGain(kernels=2, correct=1, speedup=2.0),
        "cute": LanguageGain(kernels=1, correct=1, speedup=3.0),
    }
    assert Searched.from_json(found.to_json()) == found
    before = replace(found, languages={}).to_json().replace('"languages": {}, ', "")
    assert Searched.from_json(before).languages == {}, "a file of an earlier version"


def test_each_arm_says_what_its_languages_gained() -> None:
    first = {"triton": LanguageGain(kernels=4, correct=2, speedup=2.0), "cute": LanguageGain(kernels=2)}
    second = {
        "triton": LanguageGain(kernels=1, correct=1, speedup=2.0),
        "cute": LanguageGain(kernels=3, correct=3, speedup=8.0),
    }
    gains = by_arm([("puct", first), ("puct", second), ("beam", {})])
    assert language_lines(gains) == [
        "CuTe DSL, puct: 3 of 5 kernels correct, best 8.00x (geometric mean of 1 searches), the fastest in 1",
        "Triton, puct: 3 of 5 kernels correct, best 2.00x (geometric mean of 2 searches), the fastest in 1",
    ]
    assert to_json(gains)["puct"]["cute"]["speedup"] == pytest.approx(8.0)
    assert to_json(gains)["beam"] == {}


def test_one_language_is_no_comparison() -> None:
    assert by_arm([("puct", {"triton": LanguageGain(kernels=4, correct=2, speedup=2.0)})]) == {}
