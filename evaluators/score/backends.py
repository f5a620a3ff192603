"""KernelBench's `backend`: the language that a folder of generations should be in. And what each language
gained."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from evaluators.base.languages import BACKENDS, LANGUAGES
from evaluators.base.nearest import near
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status

GENERATION_CONFIG = "generation_config.yaml"
"""KernelBench's file next to its generations."""
FOR_AMD = "hip"


def backend_of(folder: Path, given: str | None) -> str | None:
    """The backend of a folder: the one `given`, or the one in KernelBench's file there; None if neither says.
    Raises UsageError for one that is unknown or cannot be judged here."""
    name, where = given, "backend"
    if name is None:
        name, where = _in_config(folder / GENERATION_CONFIG), f"backend in {folder / GENERATION_CONFIG}"
    if name is None or name in BACKENDS:
        return name
    if name == FOR_AMD:
        raise UsageError(f"{where} is {name}, for AMD GPUs; Ideatree judges on NVIDIA GPUs and on CPUs")
    raise UsageError(f"{where} is {name}; known: {', '.join(BACKENDS)}{near(name, BACKENDS)}")


def _in_config(path: Path) -> str | None:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    name = found.get("backend") if isinstance(found, dict) else None
    return None if name is None else str(name)


def in_other_languages(backend: str | None, names: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each sample that is not in the backend's language. `names`: of samples and languages."""
    if backend is None:
        return []
    wanted = BACKENDS[backend]
    return [
        f"not in {LANGUAGES[wanted].title} (backend={backend}): {sample} is in {LANGUAGES[language].title}"
        for sample, language in names
        if language and language != wanted
    ]


def by_language(judged: Iterable[tuple[str, Evaluation]]) -> dict[str, dict[str, Any]]:
    """What each language gained: samples, those that are correct, and the geometric mean of their speedups
    (null if none is timed). `judged`: languages and evaluations."""
    found: dict[str, list[Evaluation]] = {}
    for language, evaluation in judged:
        if language and evaluation.status.is_of_the_kernel:
            found.setdefault(language, []).append(evaluation)
    return {
        language: {
            "samples": len(own),
            "correct": sum(each.status is Status.CORRECT for each in own),
            "geometric mean": _mean([each.speedup for each in own if each.timing is not None]),
        }
        for language, own in sorted(found.items())
    }


def language_lines(languages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What each language gained, in words, if there are several."""
    return [
        f"{LANGUAGES[name].title}: {each['correct']} of {each['samples']} correct"
        + (f", geometric mean {each['geometric mean']:.2f}x" if each["geometric mean"] else "")
        for name, each in languages.items()
        if len(languages) > 1
    ]


def _mean(speedups: list[float]) -> float | None:
    return statistics.geometric_mean(speedups) if speedups else None
