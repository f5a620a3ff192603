from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluators.evaluation import Correctness, Evaluation, Status, Timing
from evaluators.problem import DTYPES, Kernel, Problem
from search.events import (
    BestConfirmed,
    Event,
    IdeaImplemented,
    IdeaProposed,
    LeadersCompared,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.journal import Decoder, Journal, JournalError, encode, rebuild, replay
from search.llm import Cause, ModelCall, Purpose, Usage
from search.ranking import RANKINGS
from search.tree import Category, Idea, Seed, Variant
from tests.search.fakes import PROBLEM, correct, failed, kernel, search

positive = st.floats(1e-6, 1e6)
sizes: Any = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
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
def evaluations(draw: st.DrawFn) -> Evaluation:
    status = draw(st.sampled_from(Status))
    figures = st.builds(
        Correctness,
        checked_calls=st.integers(0, 100),
        normwise_error=st.floats(0, allow_nan=False),
        eager_error=positive,
        families=st.dictionaries(st.text(), st.booleans(), max_size=2),
    )
    return Evaluation(
        status=status,
        timing=draw(timings()) if status is Status.CORRECT else None,
        correctness=draw(st.none() | figures),
        log=draw(st.text()),
        rule=draw(texts) if status is Status.REJECTED else "",
        environment=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
        device_s=draw(st.floats(0, 1e6)),
    )


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """The events of some run of a single idea."""
    problem = Problem(
        name=draw(texts),
        source=draw(texts),
        overrides=draw(st.dictionaries(st.text(), sizes, max_size=3)),
        dtype=draw(st.sampled_from(DTYPES)),
    )
    seeds = st.builds(Seed, id=st.text(), kernel=kernels, evaluation=st.none() | evaluations())
    idea = Idea(
        text=draw(st.text()),
        category=draw(st.sampled_from(Category)),
        parent=draw(st.text()),
        round=1,
        proposer=draw(st.text()),
        model=draw(st.text()),
        plan=draw(st.text()),
        told=tuple(draw(st.lists(st.text(), max_size=3))),
    )
    unique = draw(st.lists(kernels, min_size=1, max_size=4, unique_by=lambda k: k.id))
    written = [
        Variant(kernel=k, idea=idea.id, parent=idea.parent, round=1, repairs=draw(st.text())) for k in unique
    ]
    judged = [replace(v, evaluation=draw(evaluations())) for v in written]
    tokens = st.integers(0, 10**6)
    usage = Usage(input_tokens=draw(tokens), cached_tokens=draw(tokens), output_tokens=draw(tokens))
    call = ModelCall(
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
    started = RunStarted(
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
    again = draw(evaluations())
    together = tuple(draw(evaluations()) for _ in judged)
    ours = Status.INFRASTRUCTURE_ERROR
    ranked = [
        replace(v, evaluation=v.evaluation if each.status is ours else each)
        for v, each in zip(judged, together, strict=True)
    ]
    return [
        started,
        IdeaProposed(at_s=2.0, idea=idea, number=1, expansion=draw(st.integers(0, 5))),
        ModelCalled(at_s=2.5, call=call),
        *(VariantWritten(at_s=3.0, variant=v, number=i) for i, v in enumerate(written, 1)),
        IdeaImplemented(at_s=3.5, idea_id=idea.id, variants=len(written)),
        *(VariantEvaluated(at_s=4.0, variant=v, reused=draw(st.booleans())) for v in judged),
        RoundClosed(at_s=5.0, round=1, best=draw(st.none() | st.sampled_from(judged)), evaluations=3),
        LeadersCompared(at_s=5.5, variants=tuple(judged), evaluations=together),
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
    search(path, rounds=2)
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


def test_stages_are_not_journaled() -> None:
    with pytest.raises(TypeError, match="VariantStage"):
        encode(VariantStage(at_s=0.0, variant_id="x", stage="queued"))


def events_of_a_run() -> list[Event]:
    """One round: three ideas in one answer, two variants of the first, both judged."""
    ideas = [
        Idea(text=f"idea {i}", category=Category.MEMORY, parent="", round=1, proposer="fake")
        for i in range(3)
    ]
    idea = ideas[0].id
    first = Variant(kernel=kernel(1), idea=idea, parent="", round=1)
    second = Variant(kernel=kernel(2), idea=idea, parent="", round=1)
    judged = [
        Variant(kernel=v.kernel, idea=idea, parent="", round=1, evaluation=e)
        for v, e in ((first, correct()), (second, failed()))
    ]
    started = RunStarted(
        at_s=0.0, problem=PROBLEM, proposer="fake", strategy="fake", rounds=1, seed=0, environment={}
    )
    return [
        started,
        *(IdeaProposed(at_s=1.0, idea=it, number=i, expansion=0, of=3) for i, it in enumerate(ideas, 1)),
        VariantWritten(at_s=2.0, variant=first, number=1),
        VariantWritten(at_s=2.0, variant=second, number=2),
        *(VariantEvaluated(at_s=3.0, variant=v) for v in judged),
    ]


def written(path: Path, events: list[Event]) -> Path:
    with Journal(path) as journal:
        journal.append(events)
    return path


def test_what_was_appended_is_there_again(tmp_path: Path) -> None:
    events = events_of_a_run()
    path = written(tmp_path / "journal.jsonl", events[:6])
    with Journal(path) as journal:
        assert list(journal.past) == events[:6]
        journal.append(events[6:])
    assert replay(path) == events


def test_a_batch_is_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    with Journal(tmp_path / "journal.jsonl") as journal:
        write = os.write

        def counted(fd: int, data: bytes) -> int:
            sizes.append(len(data))
            return write(fd, data)

        monkeypatch.setattr(os, "write", counted)
        journal.append(events_of_a_run())
    assert sizes == [journal.path.stat().st_size]


def test_a_failed_append_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = events_of_a_run()
    write = os.write

    def disk_full(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(fd, data[:-50])

    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events[:1])
        monkeypatch.setattr(os, "write", disk_full)
        with pytest.raises(OSError, match="No space"):
            journal.append(events[1:4])
        monkeypatch.undo()
        journal.append(events[1:4])
    assert replay(journal.path) == events[:4]


@pytest.mark.parametrize("tail", [b'{"event": "round_cl', b'{"event": "run_fi\n', b"\x00" * 40, b"{}"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    events = events_of_a_run()
    path = written(tmp_path / "journal.jsonl", events)
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)
    with caplog.at_level(logging.WARNING):
        assert replay(path) == events
    assert "line 9 is torn" in caplog.text
    with Journal(path) as journal:
        assert path.stat().st_size == whole
        journal.append([RoundClosed(at_s=9.0, round=1, best=None, evaluations=2)])
    assert len(replay(path)) == len(events) + 1


def test_a_torn_batch_is_cut_off_as_a_whole(tmp_path: Path) -> None:
    events = events_of_a_run()
    lines = [json.dumps(encode(event)) + "\n" for event in events]
    kept = {1: 1, 2: 1, 3: 1, 4: 4, 5: 5, 6: 6, 7: 7, 8: 8}
    for lines_there, events_kept in kept.items():
        path = tmp_path / f"{lines_there}.jsonl"
        path.write_text("".join(lines[:lines_there]))
        assert replay(path) == events[:events_kept]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"garbage\n", "corrupt"),
        (b'{"event": "idea_pro\n', "corrupt"),
        (b"null\n", "corrupt"),
        (b"7\n", "not an event"),
        (b'{"event": "tea_served", "at_s": 1}\n', "tea_served"),
        (b'{"event": "round_closed", "at_s": 1}\n', "not an event"),
    ],
)
def test_a_corrupt_line_in_the_middle_is_an_error(tmp_path: Path, line: bytes, why: str) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = line
    path.write_bytes(b"".join(lines))
    for read in (replay, Journal):
        with pytest.raises(JournalError, match=f"line 5.*{why}"):
            read(path)


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", events_of_a_run())
    path.write_text(path.read_text().replace("class ModelNew: ...  # 1", "class ModelNew: ...  # 3"))
    with pytest.raises(JournalError, match=r"line 5.*id"):
        replay(path)


def test_two_cannot_append_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path):
        with pytest.raises(JournalError, match="another process is running this search"):
            Journal(path)
        replay(path)
    Journal(path).close()


def test_rebuild_knows_what_is_left_to_do() -> None:
    events = events_of_a_run()
    state = rebuild(events)
    assert list(state.proposed) == [0]
    assert len(state.proposed[0]) == 3
    assert set(state.verdicts) == {kernel(1).id, kernel(2).id}
    assert state.evaluations == 2
    assert state.used_s == 3.0
    assert state.finished is None
    closed = rebuild([*events, RoundClosed(at_s=4.0, round=1, best=None, evaluations=2)])
    assert (closed.tree.rounds_closed, closed.proposed) == (1, {})


def test_our_own_failures_are_no_verdicts() -> None:
    events = events_of_a_run()[:-2]
    variant = next(e.variant for e in events if isinstance(e, VariantWritten))
    ours = Variant(
        kernel=variant.kernel,
        idea=variant.idea,
        parent="",
        round=1,
        evaluation=failed(Status.INFRASTRUCTURE_ERROR),
    )
    state = rebuild([*events, VariantEvaluated(at_s=3.0, variant=ours)])
    assert state.verdicts == {}
    assert state.evaluations == 1


def test_a_large_journal_opens_soon(tmp_path: Path) -> None:
    """A tenth of the 10,000 variants that `benchmarks/engine_overhead.py` opens within 5 s; counted is CPU
    time."""
    path = tmp_path / "journal.jsonl"
    search(path, rounds=5, ideas=25, branch=8)
    began = time.process_time()
    with Journal(path) as journal:
        state = rebuild(journal.past)
    assert time.process_time() - began < 2.0
    assert len(state.tree.variants) == 1000
