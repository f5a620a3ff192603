from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluators.records.diagnosis import Diagnosis, Finding, KernelTime, Level
from evaluators.records.evaluation import Correctness, Evaluation, QuickStage, Status, Timing
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes, ProbeTrace, TraceMarks
from evaluators.records.problem import DTYPES, Kernel, Problem
from search.records.events import (
    BestConfirmed,
    Event,
    ExpansionAsked,
    IdeaImplemented,
    IdeaProposed,
    KernelDiagnosed,
    LeadersCompared,
    ModelCalled,
    ProbeMeasured,
    ProbeRequested,
    ProbeWritten,
    RoundClosed,
    RoundReflected,
    RunFinished,
    RunStarted,
    SeedExhausted,
    VariantEvaluated,
    VariantJudgedInFull,
    VariantStage,
    VariantWritten,
)
from search.records.journal import replay
from search.records.journal_codec import FORMAT_VERSION, Decoder, NewerFormatError, encode
from search.records.model_calls import Cause, ModelCall, Purpose, Usage
from search.records.probe_request import ProbeRequest
from search.records.ranking import MEDIAN, RANKINGS
from search.records.tree import Category, Idea, Reflection, Seed, Variant
from tests.search.fakes import kernel, search
from tests.search.small_run import events_of_a_run

positive = st.floats(1e-6, 1e6)
sizes: Any = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)

PROBE = ProbeRequest(question="is it the stores?", what="no stores", base="seed1", round=2, model="one")
TIMED = Probe(
    status=ProbeStatus.TIMED,
    times=ProbeTimes.of([1.0] * 6, [2.0] * 6),
    trace=ProbeTrace.of(TraceMarks(names=("load",)), [[1, 5]], 1),
)
DIAGNOSIS = Diagnosis(
    device="NVIDIA H200",
    reached=("static", "trace"),
    missing={"counters": "ncu is missing"},
    findings=(
        Finding(name="spills", evidence="12 of 13", confidence=Level.STATIC, helps="a tile", share=0.3),
    ),
    times=(KernelTime(kernel="k", launches=2, mean_us=3.5),),
    seconds={"static and trace": 4.2},
)
texts = st.text(min_size=1).filter(str.strip)
kernels = st.builds(Kernel, source=texts, language=st.sampled_from(["triton", "cuda", "cpp"]))


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    low, speedup, high = sorted(draw(st.tuples(positive, positive, positive)))
    return Timing(
        kernel_ms=draw(positive),
        eager_ms=draw(positive),
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        compile_ms=draw(st.none() | positive),
        kernel_samples_ms=tuple(draw(st.lists(positive, max_size=3))),
        eager_samples_ms=tuple(draw(st.lists(positive, max_size=3))),
    )


@st.composite
def quick_stages(draw: st.DrawFn) -> QuickStage:
    return QuickStage(timing=draw(timings()), threshold=draw(st.none() | positive))


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    status = draw(st.sampled_from(Status))
    figures = st.builds(
        Correctness,
        checked_calls=st.integers(0, 100),
        normwise_error=st.floats(0, allow_nan=False),
        eager_error=positive,
        distributions=st.dictionaries(st.text(), st.booleans(), max_size=2),
    )
    return Evaluation(
        status=status,
        timing=draw(timings()) if status is Status.CORRECT else None,
        correctness=draw(st.none() | figures),
        log=draw(st.text()),
        rule=draw(texts) if status is Status.REJECTED else "",
        quick=draw(quick_stages()) if status is Status.OUTPACED else None,
        environment=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
        device_s=draw(st.floats(0, 1e6)),
    )


@st.composite
def ideas(draw: st.DrawFn) -> Idea:
    return Idea(
        text=draw(st.text()),
        category=draw(st.sampled_from(Category)),
        parent=draw(st.text()),
        round=1,
        proposer=draw(st.text()),
        model=draw(st.text()),
        plan=draw(st.text()),
        known_ideas=tuple(draw(st.lists(st.text(), max_size=3))),
    )


@st.composite
def calls(draw: st.DrawFn) -> ModelCall:
    tokens = st.integers(0, 10**6)
    usage = Usage(input_tokens=draw(tokens), cached_tokens=draw(tokens), output_tokens=draw(tokens))
    return ModelCall(
        id=draw(st.text()),
        model=draw(st.text()),
        purpose=draw(st.sampled_from(Purpose)),
        about=draw(st.text()),
        attempt=draw(st.integers(1, 9)),
        usage=usage,
        dollars=draw(positive),
        seconds=draw(positive),
        estimated=draw(st.booleans()),
        cause=draw(st.none() | st.sampled_from(Cause)),
        detail=draw(st.text()),
    )


@st.composite
def starts(draw: st.DrawFn) -> RunStarted:
    problem = Problem(
        name=draw(texts),
        source=draw(texts),
        overrides=draw(st.dictionaries(st.text(), sizes, max_size=3)),
        dtype=draw(st.sampled_from(DTYPES)),
    )
    seeds = st.builds(Seed, id=st.text(), kernel=kernels, evaluation=st.none() | evaluations())
    return RunStarted(
        at_s=draw(positive),
        problem=problem,
        proposer=draw(st.text()),
        strategy=draw(st.text()),
        rounds=draw(st.integers(0, 9)),
        seed=draw(st.integers()),
        environment=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
        entries=tuple(draw(st.lists(seeds, max_size=2))),
        ranking=draw(st.sampled_from(RANKINGS)),
    )


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """The events of some run of a single idea."""
    idea = draw(ideas())
    unique = draw(st.lists(kernels, min_size=1, max_size=4, unique_by=lambda k: k.id))
    written = [
        Variant(kernel=k, idea=idea.id, parent=idea.parent, round=1, repairs=draw(st.text())) for k in unique
    ]
    judged = [replace(v, evaluation=draw(evaluations())) for v in written]
    again = draw(evaluations())
    full = [replace(v, evaluation=draw(evaluations())) for v in judged]
    together = tuple(draw(evaluations()) for _ in judged)
    ranked = [
        replace(v, evaluation=each if each.status.is_of_the_kernel else v.evaluation)
        for v, each in zip(full, together, strict=True)
    ]
    return [
        draw(starts()),
        ExpansionAsked(at_s=1.5, number=0, seed="", ideas=2, variants=3, round=1, threshold=1.5),
        SeedExhausted(at_s=1.5, seed="", round=1),
        IdeaProposed(at_s=2.0, idea=idea, number=1, expansion=draw(st.integers(0, 5))),
        ModelCalled(at_s=2.5, call=draw(calls())),
        *(VariantWritten(at_s=3.0, variant=v, number=i) for i, v in enumerate(written, 1)),
        IdeaImplemented(at_s=3.5, idea_id=idea.id, variants=len(written)),
        *(VariantEvaluated(at_s=4.0, variant=v, reused=draw(st.booleans())) for v in judged),
        *(VariantJudgedInFull(at_s=4.5, variant=v, reused=draw(st.booleans())) for v in full),
        RoundClosed(at_s=5.0, round=1, best=draw(st.none() | st.sampled_from(full)), evaluations=3),
        LeadersCompared(at_s=5.5, variants=tuple(full), evaluations=together),
        KernelDiagnosed(at_s=5.7, seed=ranked[0].id, kernel=ranked[0].kernel.id, diagnosis=DIAGNOSIS),
        ProbeRequested(at_s=5.8, request=PROBE),
        ProbeWritten(at_s=5.9, request_id=PROBE.id, kernel=ranked[0].kernel),
        ProbeMeasured(at_s=5.9, request_id=PROBE.id, kernel=ranked[0].kernel, probe=TIMED),
        ProbeMeasured(at_s=5.9, request_id="not written", kernel=None, probe=None),
        RoundReflected(at_s=5.8, reflection=Reflection(round=1, text=draw(st.text()), model=draw(st.text()))),
        BestConfirmed(at_s=6.0, variant=ranked[0], evaluation=again),
        RunFinished(
            at_s=7.0, reason=draw(st.text()), best=ranked[0], confirmed=draw(st.none() | st.just(again))
        ),
    ]


@pytest.mark.slow
@given(events=runs())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_events_survive_the_way_to_json_and_back(events: list[Event]) -> None:
    lines = [json.dumps(encode(event)) for event in events]
    assert all("\n" not in line for line in lines)
    decoder = Decoder()
    assert [decoder.decode(json.loads(line)) for line in lines] == events


def test_the_lines_have_the_documented_names(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=2, comparisons=0)
    names = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert names[0] == "run_started"
    assert names[-2:] == ["best_confirmed", "run_finished"]
    assert set(names[1:-2]) == {
        "idea_proposed",
        "variant_written",
        "idea_implemented",
        "variant_evaluated",
        "round_closed",
    }


def test_a_source_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=1)
    text = path.read_text()
    for event in replay(path):
        if isinstance(event, VariantWritten):
            assert text.count(json.dumps(event.variant.kernel.source)) == 1


def test_version_6_had_a_probes_kernel_in_its_result() -> None:
    measured = ProbeMeasured(at_s=1.0, request_id=PROBE.id, kernel=kernel(0), probe=TIMED)
    line = {**encode(measured), "kernel": {"source": kernel(0).source, "language": kernel(0).language}}
    assert Decoder().decode(line) == measured


def test_stages_are_not_journaled() -> None:
    with pytest.raises(TypeError, match="VariantStage"):
        encode(VariantStage(at_s=0.0, variant_id="x", stage="queued"))


def test_each_start_of_a_run_says_the_format() -> None:
    lines = [encode(event) for event in events_of_a_run()]
    assert lines[0]["version"] == FORMAT_VERSION
    assert not any("version" in line for line in lines[1:])


def test_lines_without_a_version_are_the_first_versions() -> None:
    """They may lack what that version did not have from its beginning."""
    seed = Seed(id="level1/fake", kernel=kernel(0))
    start = replace(cast(RunStarted, events_of_a_run()[0]), entries=(seed,), ranking=MEDIAN)
    line = encode(start)
    del line["version"], line["ranking"], line["entries"][0]["why"], line["entries"][0]["drop_in"]
    assert Decoder().decode(line) == start
    with pytest.raises(KeyError, match="why"):
        Decoder().decode({**line, "version": FORMAT_VERSION})


def test_a_newer_format_is_refused() -> None:
    line = {**encode(events_of_a_run()[0]), "version": FORMAT_VERSION + 1}
    with pytest.raises(NewerFormatError, match=f"version {FORMAT_VERSION + 1}.*up to {FORMAT_VERSION}"):
        Decoder().decode(line)
