"""A small run as a script of events, with every status, a reused verdict, a stop and a resume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from evaluators.evaluation import Evaluation, Status, Timing
from evaluators.problem import Kernel, Problem
from search.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.tree import Category, Idea, Variant


def timing(speedup: float) -> Timing:
    return Timing(
        kernel_ms=2.0 / speedup,
        eager_ms=2.0,
        speedup=speedup,
        speedup_low=speedup * 0.98,
        speedup_high=speedup * 1.02,
        compile_ms=1.5,
    )


def correct(speedup: float) -> Evaluation:
    return Evaluation(status=Status.CORRECT, timing=timing(speedup), device_s=2.0)


def failed(status: Status, log: str = "", rule: str = "") -> Evaluation:
    return Evaluation(status=status, log=log, rule=rule, device_s=1.0)


def start(at_s: float = 0.0) -> RunStarted:
    return RunStarted(
        at_s=at_s,
        problem=Problem(name="level1/conv2d", source="class Model: ...", device="cuda"),
        proposer="playbook",
        strategy="idea_branching",
        rounds=2,
        seed=7,
        environment={"device": "NVIDIA H200", "torch": "2.11"},
    )


MEMORY = Idea(
    text="Load the tile with\n128-bit \x1b[31mvector loads",
    category=Category.MEMORY,
    parent="",
    round=1,
    proposer="playbook",
)
LATENCY = Idea(
    text="Prefetch [bold]the filter[/bold]",
    category=Category.LATENCY,
    parent="",
    round=1,
    proposer="playbook",
)


def variant(idea: Idea, name: str) -> Variant:
    kernel = Kernel(source=f"class ModelNew: ...  # {name}\n", language="cuda")
    return Variant(kernel=kernel, idea=idea.id, parent=idea.parent, round=idea.round)


FIRST = variant(MEMORY, "first")
FP16 = Idea(
    text="Use the tensor cores", category=Category.PRECISION, parent=FIRST.id, round=2, proposer="playbook"
)
FASTEST = variant(FP16, "fastest")


def written(at_s: float, variants: list[Variant]) -> Iterable[Event]:
    for number, each in enumerate(variants, start=1):
        yield VariantWritten(at_s=at_s, variant=each, number=number)
    for each in variants:
        yield VariantStage(at_s=at_s, variant_id=each.id, stage="queued")


def verdict(at_s: float, each: Variant, evaluation: Evaluation, *, reused: bool = False) -> Iterable[Event]:
    yield VariantStage(at_s=at_s, variant_id=each.id, stage="evaluating")
    yield VariantEvaluated(at_s=at_s, variant=replace(each, evaluation=evaluation), reused=reused)


BEST_OF_ONE = replace(FIRST, evaluation=correct(2.0))
BEST = replace(FASTEST, evaluation=correct(4.0))


def round_one() -> Iterable[Event]:
    second, third, fourth = variant(MEMORY, "second"), variant(LATENCY, "third"), variant(LATENCY, "fourth")
    yield IdeaProposed(at_s=1.0, idea=MEMORY, number=1, expansion=0)
    yield from written(2.0, [FIRST, second])
    yield from verdict(5.0, FIRST, correct(2.0))
    yield IdeaProposed(at_s=6.0, idea=LATENCY, number=2, expansion=0)
    yield from verdict(7.0, second, failed(Status.COMPILE_ERROR, "\nk.cu(3): error: no \x1b[1mfoo\n"))
    yield from written(8.0, [third, fourth])
    yield from verdict(9.0, third, failed(Status.INCORRECT, "max error 0.5"))
    yield from verdict(10.0, fourth, failed(Status.REJECTED, rule="calls the reference"))
    yield RoundClosed(at_s=10.0, round=1, best=BEST_OF_ONE, evaluations=4)


OF_TWO = [FASTEST, *(variant(FP16, name) for name in ("first", "slow", "killed", "raises", "ours"))]


def round_two_begins() -> Iterable[Event]:
    yield IdeaProposed(at_s=11.0, idea=FP16, number=1, expansion=0)
    yield from written(12.0, OF_TWO)
    yield from verdict(13.0, OF_TWO[1], correct(2.0), reused=True)
    yield from verdict(14.0, OF_TWO[2], failed(Status.TIMEOUT))


def round_two_ends() -> Iterable[Event]:
    yield from verdict(15.0, OF_TWO[3], failed(Status.CRASHED, "Segmentation fault"))
    yield from verdict(16.0, FASTEST, correct(4.0))
    yield from verdict(17.0, OF_TWO[4], failed(Status.RUNTIME_ERROR, "RuntimeError: boom"))
    yield from verdict(18.0, OF_TWO[5], failed(Status.INFRASTRUCTURE_ERROR, "worker lost"))
    yield RoundClosed(at_s=20.0, round=2, best=BEST, evaluations=9)


def the_end(confirmed: Evaluation) -> Iterable[Event]:
    yield BestConfirmed(at_s=30.0, variant=BEST, evaluation=confirmed)
    yield RunFinished(at_s=30.0, reason="rounds", best=BEST, confirmed=confirmed)


def scripts() -> dict[str, list[Event]]:
    """Runs by name; every observer takes each of them."""
    whole = [start(), *round_one(), *round_two_begins(), *round_two_ends(), *the_end(correct(3.9))]
    interrupted = RunFinished(at_s=14.5, reason="interrupted", best=BEST_OF_ONE, confirmed=None)
    stopped = [start(), *round_one(), *round_two_begins(), interrupted]
    rest = [*round_two_ends(), *the_end(correct(3.9))]
    return {
        "whole": whole,
        "interrupted": stopped,
        "resumed": [*stopped, start(14.5), *rest],
        "resumed, its past unknown": [start(14.5), *rest],
        "killed": [start(), *round_one(), *round_two_begins()],
        "stopped before it did anything": [start()],
        "nothing correct": [start(), RoundClosed(at_s=3.0, round=1, best=None, evaluations=0)],
        "no event at all": [],
        "not confirmed": [*whole[:-2], *the_end(failed(Status.INCORRECT, "wrong on new inputs"))],
        "every event twice": [event for event in whole for _ in range(2)],
    }


@pytest.fixture
def runs() -> dict[str, list[Event]]:
    return scripts()


@pytest.fixture
def whole_run() -> list[Event]:
    return scripts()["whole"]
