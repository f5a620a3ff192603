from __future__ import annotations

import io
import logging
from dataclasses import replace

import pytest

from evaluators.records.problem import Kernel
from evaluators.records.time_spent import DeviceLease
from search.observers.plain import PlainConsole
from search.observers.run_progress import Progress
from search.records.events import (
    BestConfirmed,
    Event,
    ModelCalled,
    RoundReflected,
    RunStarted,
    VariantEvaluated,
)
from search.records.tree import Reflection, Variant


def play(events: list[Event], **options: object) -> list[str]:
    stream = io.StringIO()
    observer = PlainConsole(stream=stream, clock=lambda: 0.0, **options)  # type: ignore[arg-type]
    for event in events:
        observer.on_event(event)
    observer.close()
    return stream.getvalue().splitlines()


SCRIPTS = ("whole", "interrupted", "resumed", "killed", "not confirmed", "two models")
WHOLE = """\
[     0.0s] run       problem=level1/conv2d device="NVIDIA H200"
[     0.0s] run       proposer=playbook strategy=idea_branching seed=7 rounds=2 evaluations=20
[     1.0s] idea      r01.01 <id> from ref: memory access: Load the tile with 128-bit [31...
[     5.0s] variant   r01.01.1 <id> correct 1.00 ms  2.00x [1.96, 2.04]
[     5.0s] best      1.00 ms  2.00x [1.96, 2.04] variant <id>, memory access: Load the t...
[     6.0s] idea      r01.02 <id> from ref: asynchrony and latency hiding: Prefetch [bold...
[     7.0s] variant   r01.01.2 <id> compile_error k.cu(3): error: no [1mfoo
[     9.0s] variant   r01.02.1 <id> incorrect max error 0.5
[    10.0s] variant   r01.02.2 <id> rejected calls the reference
[    10.0s] round     1/2 ideas=2 evals=4 correct=25% best=1.00 ms  2.00x [1.96, 2.04] left=~10s
[    11.0s] idea      r02.01 <id> from <seed>: data type and precision: Use the tensor cores
[    13.0s] variant   r02.01.2 <id> correct 1.00 ms  2.00x [1.96, 2.04] (reused)
[    14.0s] variant   r02.01.3 <id> timeout
[    15.0s] variant   r02.01.4 <id> crashed Segmentation fault
[    16.0s] variant   r02.01.1 <id> correct 0.500 ms  4.00x [3.92, 4.08]
[    16.0s] best      0.500 ms  4.00x [3.92, 4.08] variant <id>, data type and precision:...
[    17.0s] variant   r02.01.5 <id> runtime_error RuntimeError: boom
[    18.0s] variant   r02.01.6 <id> infrastructure_error worker lost
[    20.0s] round     2/2 ideas=1 evals=5 correct=33% best=0.500 ms  4.00x [3.92, 4.08] left=~0s
[    30.0s] measured  <id> correct 0.513 ms  3.90x [3.82, 3.98], confirmed
[    30.0s] finished  rounds

round  ideas  evals  correct  best ms  speedup  95 % interval  idea
    1      2      4     25 %     1.00    2.00x   [1.96, 2.04]  memory access: Load the tile with...
    2      1      5     33 %    0.500    4.00x   [3.92, 4.08]  data type and precision: Use the t...

winner:    variant <id>, round 2, cuda
idea:      data type and precision: Use the tensor cores
confirmed: yes, 0.513 ms  3.90x [3.82, 3.98] over eager (2.00 ms), 2.92x over compile (1.50 ms)
in search: 0.500 ms  4.00x [3.92, 4.08] over eager (2.00 ms), 3.00x over compile (1.50 ms)
began at:  1.00 ms, the first idea's kernel; the winner is 2.00x as fast
verdicts:  2 correct, 1 compile_error, 1 runtime_error, 1 incorrect, 1 timeout, 1 crashed, 1
           rejected, 1 infrastructure_error; 1 reused
ended:     all rounds are done; 9 evaluations in 30s (18 per minute), devices busy 43% of the time"""


TWO_MODELS = """\
[     0.0s] run       problem=level1/conv2d device="NVIDIA H200"
[     0.0s] run       proposer=llm strategy=idea_branching seed=7 rounds=1 evaluations=unlimited
                      calls=100 dollars=5.0
[     1.0s] idea      r01.01 <id> from ref: memory access, openai/gpt-6: Load with 128 bits
[     4.0s] idea      r01.02 <id> from ref: asynchrony and latency hiding, google/gemini-...
[     6.0s] variant   r01.01.1 <id> compile_error no foo
[    10.0s] variant   r01.02.1 <id> correct 1.33 ms  1.50x [1.47, 1.53]
[    10.0s] best      1.33 ms  1.50x [1.47, 1.53] variant <id>, asynchrony and latency hi...
[    12.0s] variant   r01.01.2 <id> correct 0.667 ms  3.00x [2.94, 3.06] (repairs <seed>)
[    12.0s] best      0.667 ms  3.00x [2.94, 3.06] variant <id>, memory access, openai/gp...
[    20.0s] variant   r01.01.3 <id> incorrect max error 0.5
[    20.0s] round     1/1 ideas=2 evals=4 correct=50% best=0.667 ms  3.00x [2.94, 3.06] left=~0s
[    20.0s] models    7/100 calls, 3 failed (rate limited 2, malformed answer 1); 41.2k tokens;
                      $0.50/$5.00
[    21.0s] measured  <id> correct 0.667 ms  3.00x [2.94, 3.06], confirmed
[    21.0s] finished  rounds

round  ideas  evals  correct  best ms  speedup  95 % interval  idea
    1      2      4     50 %    0.667    3.00x   [2.94, 3.06]  memory access, openai/gpt-6: Load...

winner:    variant <id>, round 1, cuda (repairs <seed>)
idea:      memory access, openai/gpt-6: Load with 128 bits
confirmed: yes, 0.667 ms  3.00x [2.94, 3.06] over eager (2.00 ms), 2.25x over compile (1.50 ms)
in search: 0.667 ms  3.00x [2.94, 3.06] over eager (2.00 ms), 2.25x over compile (1.50 ms)
verdicts:  2 correct, 1 compile_error, 1 incorrect
ended:     all rounds are done; 4 evaluations in 21s (11.4 per minute), devices busy 38% of the time
cost:      7 calls, 3 failed (rate limited 2, malformed answer 1); 41.2k tokens; $0.50
model:     google/gemini-4-pro: 1 idea, best 1.50x; 3 calls, 2 failed; 8.00k tokens
model:     openai/gpt-6: 1 idea, best 3.00x; 4 calls, 1 failed; 33.2k tokens; $0.50"""


def without_ids(line: str) -> str:
    words = []
    for word in line.split(" "):
        bare = word.rstrip(",:)")
        is_id = len(bare) in (6, 12) and all(char in "0123456789abcdef" for char in bare)
        words.append(word.replace(bare, "<id>" if len(bare) == 12 else "<seed>") if is_id else word)
    return " ".join(words)


def test_a_whole_run_line_by_line(whole_run: list[Event]) -> None:
    lines = [without_ids(line) for line in play(whole_run, evaluations=20)]
    assert lines == WHOLE.splitlines()


def test_no_rate_where_waiting_for_verdicts_does_not_count(whole_run: list[Event]) -> None:
    lease = DeviceLease(device="node-1/0", held_s=1.0)  # of a queue's worker
    elsewhere = [
        replace(each, variant=each.variant.judged(each.variant.evaluation.held(lease)))
        if isinstance(each, VariantEvaluated) and each.variant.evaluation
        else each
        for each in whole_run
    ]
    lines = play([replace(each, at_s=each.at_s / 100) for each in elsewhere])
    ended = next(line for line in lines if line.startswith("ended:"))
    assert ended.endswith("9 evaluations in 0s, waiting for verdicts not counted")


@pytest.mark.parametrize("script", SCRIPTS)
def test_lines_fit_a_hundred_columns(script: str, runs: dict[str, list[Event]]) -> None:
    assert max(map(len, play(runs[script]))) <= 100


def test_rounds_without_a_limit(whole_run: list[Event]) -> None:
    started, *rest = whole_run
    assert isinstance(started, RunStarted)
    lines = play([replace(started, rounds=0), *rest])
    assert "rounds=unlimited" in lines[1]
    assert lines[2].split() == ["evaluations=unlimited"]
    assert sum(" round     1 ideas=2 " in line for line in lines) == 1
    assert not any("None" in line for line in lines)


def test_a_best_that_is_slower_than_the_first_is_called_slower(
    whole_run: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranking goes by the lower end of the interval, not by the median."""
    (variant,) = [each.variant for each in whole_run if isinstance(each, BestConfirmed)]
    assert variant.evaluation is not None and variant.evaluation.timing is not None
    timing = replace(variant.evaluation.timing, kernel_ms=0.25)
    first = Variant(
        kernel=Kernel(source="first", language="cuda"),
        idea=variant.idea,
        parent="",
        round=1,
        evaluation=replace(variant.evaluation, timing=timing),
    )
    monkeypatch.setattr(Progress, "first", property(lambda _: first))
    lines = play(whole_run)
    assert "began at:  0.250 ms, the first idea's kernel; the winner is 2.00x slower" in lines


def test_the_pace_of_recorded_verdicts_is_not_shown(whole_run: list[Event]) -> None:
    *lines, last = play(whole_run, evaluations=20, recorded=True)
    assert [without_ids(line) for line in lines] == WHOLE.splitlines()[:-1]
    assert last == "ended:     all rounds are done; 9 evaluations in 30s"


def test_a_run_of_two_models_line_by_line(runs: dict[str, list[Event]]) -> None:
    assert [without_ids(line) for line in play(runs["two models"], calls=100, dollars=5.0)] == (
        TWO_MODELS.splitlines()
    )


def test_a_single_model_is_named_with_its_ideas_only(runs: dict[str, list[Event]]) -> None:
    events = [event for event in runs["two models"] if "gemini" not in repr(event)]
    lines = [line for line in play(events) if "gpt-6" in line]
    assert [line.split()[2] for line in lines] == ["idea"]


def test_models_that_only_had_ideas_have_no_cost(runs: dict[str, list[Event]]) -> None:
    lines = play([event for event in runs["two models"] if not isinstance(event, ModelCalled)])
    assert not any("cost:" in line or "models " in line for line in lines)
    assert lines[-1] == "model:     openai/gpt-6: 1 idea, best 3.00x"


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_escape_sequence_reaches_the_log(script: str, runs: dict[str, list[Event]]) -> None:
    assert all(line.isprintable() for line in play(runs[script]))


def test_an_interrupted_run_shows_its_open_round(runs: dict[str, list[Event]]) -> None:
    lines = play(runs["interrupted"])
    assert "2 (open)      1      1     50 %     1.00" in "\n".join(lines)
    assert lines[-1].startswith("ended:     interrupted; 5 evaluations")
    assert "confirmed: no: it was not measured again" in lines


def test_a_killed_run_gets_its_table_at_close(runs: dict[str, list[Event]]) -> None:
    lines = play(runs["killed"])
    assert any(line.startswith("ended:     stopped early") for line in lines)


def test_a_winner_that_fails_its_confirmation_is_called_so(runs: dict[str, list[Event]]) -> None:
    assert "confirmed: NO: incorrect when measured again: wrong on new inputs" in play(runs["not confirmed"])


def test_a_resumed_run_with_its_past_ends_in_the_same_table(runs: dict[str, list[Event]]) -> None:
    resumed = play(runs["resumed, its past unknown"], past=runs["interrupted"])
    whole = play(runs["whole"])
    table = whole.index("")
    assert resumed[resumed.index("") :] == whole[table:]
    assert "resumed after round 1" in resumed[2]


def test_without_a_correct_kernel_there_is_no_winner(runs: dict[str, list[Event]]) -> None:
    lines = play(runs["nothing correct"])
    assert "winner:    none: no kernel was correct" in lines
    assert any("no correct kernel yet" in line for line in lines)


def test_a_stream_that_cannot_write_a_character_gets_a_question_mark(runs: dict[str, list[Event]]) -> None:
    raw = io.BytesIO()
    observer = PlainConsole(stream=io.TextIOWrapper(raw, encoding="ascii"))
    observer._write("3×3")
    assert raw.getvalue() == b"3?3\n"


def test_a_closed_pipe_is_reported_once(whole_run: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    observer = PlainConsole(stream=stream)
    stream.close()
    with caplog.at_level(logging.WARNING):
        for event in whole_run:
            observer.on_event(event)
    assert len(caplog.records) == 1


def test_a_reflection_is_a_note() -> None:
    reflection = Reflection(round=1, text="Wider loads \x1b[31mpaid: 2x [1.9, 2.1]. " * 4, model="a/b")
    lines = play([RoundReflected(at_s=9.0, reflection=reflection)])
    assert lines[0].startswith("[     9.0s] note      on round 1: Wider loads [31mpaid: 2x [1.9, 2.1]. Wider")
    assert len(lines) == 3
