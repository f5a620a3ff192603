"""A small run as a script of events, with every status, a reused verdict, a stop and a resume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Kernel, Problem
from search.records.events import (
    BestConfirmed,
    Event,
    IdeaImplemented,
    IdeaProposed,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.records.model_calls import Cause, ModelCall, Purpose, Usage
from search.records.tree import Category, Idea, Variant


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
    yield IdeaImplemented(at_s=at_s, idea_id=variants[0].idea, variants=len(variants))


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


BY_GPT = replace(MEMORY, text="Load with 128 bits", proposer="llm", model="openai/gpt-6")
BY_GEMINI = replace(LATENCY, text="Prefetch the filter", proposer="llm", model="google/gemini-4-pro")
BROKEN, OTHER, THIRD = variant(BY_GPT, "broken"), variant(BY_GPT, "other"), variant(BY_GEMINI, "third")
MENDED = replace(variant(BY_GPT, "mended"), repairs=BROKEN.id)


def call(
    at_s: float, number: int, model: str, tokens: int = 0, dollars: float = 0.0, **failed: object
) -> ModelCalled:
    made = ModelCall(
        id=f"{number:06d}",
        model=model,
        purpose=Purpose.CODE,
        about="",
        attempt=int(failed.pop("attempt", 1)),  # type: ignore[call-overload]
        usage=Usage(input_tokens=tokens - tokens // 4, output_tokens=tokens // 4),
        dollars=dollars,
        seconds=1.0,
        **failed,  # type: ignore[arg-type]
    )
    return ModelCalled(at_s=at_s, call=made)


def two_models() -> Iterable[Event]:
    """One round of one model's ideas and another's: calls that fail, a repair that gives the best kernel."""
    limited = {"cause": Cause.RATE_LIMITED, "detail": "429:\nslow \x1b[31mdown"}
    yield replace(start(), proposer="llm", rounds=1)
    yield call(1.0, 1, "openai/gpt-6", 12_000, 0.25)
    yield IdeaProposed(at_s=1.0, idea=BY_GPT, number=1, expansion=0)
    yield call(2.0, 2, "google/gemini-4-pro", **limited)
    yield call(3.0, 3, "google/gemini-4-pro", attempt=2, **limited)
    yield call(4.0, 4, "google/gemini-4-pro", 8_000)
    yield IdeaProposed(at_s=4.0, idea=BY_GEMINI, number=2, expansion=1)
    yield call(5.0, 5, "openai/gpt-6", 6_000, 0.125)
    yield VariantWritten(at_s=5.0, variant=BROKEN, number=1)
    yield from verdict(6.0, BROKEN, failed(Status.COMPILE_ERROR, "no foo"))
    yield from written(7.0, [THIRD])
    yield call(8.0, 6, "openai/gpt-6", 4_000, 0.0625, cause=Cause.MALFORMED, detail="no ModelNew")
    yield call(9.0, 7, "openai/gpt-6", 11_200, 0.0625)
    yield VariantWritten(at_s=9.0, variant=MENDED, number=2)
    yield from verdict(10.0, THIRD, correct(1.5))
    yield VariantWritten(at_s=11.0, variant=OTHER, number=3)
    yield IdeaImplemented(at_s=11.0, idea_id=BY_GPT.id, variants=3)
    yield from verdict(12.0, MENDED, correct(3.0))
    yield from verdict(20.0, OTHER, failed(Status.INCORRECT, "max error 0.5"))
    best = replace(MENDED, evaluation=correct(3.0))
    yield RoundClosed(at_s=20.0, round=1, best=best, evaluations=4)
    yield BestConfirmed(at_s=21.0, variant=best, evaluation=correct(3.0))
    yield RunFinished(at_s=21.0, reason="rounds", best=best, confirmed=correct(3.0))


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
        "two models": list(two_models()),
    }


@pytest.fixture
def runs() -> dict[str, list[Event]]:
    return scripts()


@pytest.fixture
def whole_run() -> list[Event]:
    return scripts()["whole"]
