"""Runs written as journals, for cases that no search produces on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from search.records.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    LeadersCompared,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.records.journal import Journal
from search.records.tree import Category, Idea, Seed, Variant

DEVICE = {"device": "Fake GPU", "torch": "9.9"}


def reference(operation: str, *, features: int = 64) -> str:
    return f'''"""A reference."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.{operation}(x)


features = {features}


def get_inputs():
    return [torch.randn(8, features)]


def get_init_inputs():
    return []
'''


def problem(operation: str, *, name: str = "", **more: Any) -> Problem:
    return Problem(name=name or f"file/{operation}_of_ours", source=reference(operation), **more)


def kernel(name: str, *, changed: int = 0, language: str = "triton") -> Kernel:
    """A kernel of about sixty lines. Different names share no lines; `changed` lines differ."""
    lines = [f"    {name}_{n} = load({name}, {n}) {'-' if n < changed else '+'} {n}" for n in range(60)]
    return Kernel(source="\n".join(["class ModelNew:", *lines, ""]), language=language)


def correct(speedup: float, *, kernel_ms: float = 0.5, device: dict[str, str] | None = None) -> Evaluation:
    timing = Timing(
        kernel_ms=kernel_ms,
        eager_ms=kernel_ms * speedup,
        speedup=speedup,
        speedup_low=speedup * 0.99,
        speedup_high=speedup * 1.01,
    )
    return Evaluation(status=Status.CORRECT, timing=timing, environment=DEVICE if device is None else device)


def failed(status: Status = Status.INCORRECT, log: str = "off by one") -> Evaluation:
    rule = "too_fast" if status is Status.REJECTED else ""
    return Evaluation(status=status, log=log, rule=rule, environment=DEVICE)


class Story:
    """One run; each method records an event."""

    def __init__(self, folder: Path, problem: Problem, *, entries: tuple[Seed, ...] = ()) -> None:
        folder.mkdir(parents=True)
        self.problem = problem
        self._journal = folder / "journal.jsonl"
        self._record(
            RunStarted(
                at_s=0.0,
                problem=problem,
                proposer="fake",
                strategy="fake",
                rounds=1,
                seed=0,
                environment=DEVICE,
                entries=entries,
            )
        )

    def idea(self, text: str, parent: str = "", *, proposer: str = "llm", gain: float = 0.0) -> Idea:
        idea = Idea(
            text=text,
            category=Category.MEMORY,
            parent=parent,
            round=1,
            proposer=proposer,
            model="a model",
            predicted_gain=gain,
        )
        self.add(idea)
        return idea

    def add(self, idea: Idea) -> None:
        self._record(IdeaProposed(at_s=0.0, idea=idea, number=1, expansion=0))

    def variant(
        self, idea: Idea, kernel: Kernel, evaluation: Evaluation | None, *, repairs: str = ""
    ) -> Variant:
        variant = Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=1, repairs=repairs)
        self._record(VariantWritten(at_s=0.0, variant=variant, number=1))
        if evaluation is not None:
            judged = replace(variant, evaluation=evaluation)
            self._record(VariantEvaluated(at_s=0.0, variant=judged))
        return variant

    def confirm(self, variant: Variant, evaluation: Evaluation) -> None:
        self._record(BestConfirmed(at_s=0.0, variant=variant, evaluation=evaluation))

    def compare(self, found: Mapping[Variant, Evaluation]) -> None:
        variants, evaluations = tuple(found), tuple(found.values())
        self._record(LeadersCompared(at_s=0.0, variants=variants, evaluations=evaluations))

    def _record(self, event: Event) -> None:
        with Journal(self._journal) as journal:
            journal.append([event])
