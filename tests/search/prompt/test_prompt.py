"""The command that shows what a model is asked."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from search.prompt import __main__ as prompt
from search.prompt.sections import sections
from search.records.journal import replay
from search.records.run_state import rebuild

RUN = Path(__file__).parents[1] / "recordings" / "softmax_cpu"
TREE = rebuild(replay(RUN / "journal.jsonl")).tree
FAILED = next(v for v in TREE.variants.values() if v.evaluation and v.evaluation.timing is None)
IDEA = next(iter(TREE.ideas.values()))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert prompt.main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_first_question_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "problem=level1/matmul", "ideas=7", "device=cpu", "proposer.examples=false")
    assert "Propose 7 optimisation ideas" in text
    assert "size = 768" in text


@pytest.mark.slow
@pytest.mark.parametrize("facts", ["h200", "conv2d_h200"])
def test_the_first_question_of_a_search_on_a_device_that_is_elsewhere(
    facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "problem=level1/conv2d", f"facts={facts}")
    assert "All float tensors are float32, on a GPU." in text
    assert "- NVIDIA H200\n- compute capability 9.0\n- 132 streaming multiprocessors\n" in text
    assert "Each idea chooses the language of its kernels:\n\n- Triton: " in text
    assert "- 4641 GB/s when copying" in text
    assert "# Library kernels that an idea may also use" in text
    assert "# Library kernels" not in shown(
        capsys, "problem=level1/conv2d", "facts=l40s", "library.use=false"
    )


@pytest.mark.slow
def test_the_first_question_on_this_cpu_names_its_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "problem=level1/softmax", "device=cpu", "library.use=false")
    assert "# The device\n" in text
    assert "Kernels are written in C++ (" in text


@pytest.mark.slow
def test_the_estimate_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    search = ("problem=level1/conv2d", "facts=h200", "library.use=false", "rounds=5", "ideas=4", "branch=2")
    calls, tokens, dollars = shown(capsys, *search, "estimate=true").splitlines()
    assert calls == "calls    13 for ideas, 40 for code, 4 for reflections, at most 40 for repairs"
    assert "and 146,600 out, without" in tokens
    assert "openai" in dollars
    screened = shown(capsys, *search, "estimate=true", "proposer.screening=3").splitlines()
    assert screened[0].startswith("calls    13 for ideas, 13 for screening, 40 for code, 4 for reflections")
    together = shown(
        capsys, *search, "estimate=true", "proposer.together=true", "proposer.reflection=false"
    ).splitlines()
    assert together[0].startswith("calls    13 for ideas, 20 for code, at most")


@pytest.mark.slow
def test_the_next_question_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, f"run={RUN}")
    best = TREE.best()[0]
    assert f"`{best.id}`" in text
    assert best.kernel.source.strip() in text
    assert Counter(idea.text in text for idea in TREE.ideas.values()) == {True: len(TREE.ideas)}
    assert "ideas, " not in text
    assert "ideas, " in shown(capsys, f"run={RUN}", "history=summary")
    assert "What was tried" not in shown(capsys, f"run={RUN}", "history=none")


@pytest.mark.slow
def test_the_questions_for_code_and_repair(capsys: pytest.CaptureFixture[str]) -> None:
    assert f"> {IDEA.text}" in shown(capsys, f"run={RUN}", f"idea={IDEA.id}")
    text = shown(capsys, f"run={RUN}", f"variant={FAILED.id}")
    assert FAILED.evaluation is not None
    assert FAILED.evaluation.log in text


def test_the_sections_of_a_prompt() -> None:
    answer = "# Answer\n\n<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE\n"
    seed = "# The kernel to start from: `a1`\n\n```python\n# not a heading\nx = 1\n```\n\n## Below\n"
    assert sections(seed + answer) == {"The kernel to start from": len(seed), "Answer": len(answer)}


@pytest.mark.slow
def test_the_sections_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The longest prompt of each round, which ends with what was asked last."""
    ideas, code, repair = shown(capsys, f"run={RUN}", "sections=true").strip().split("\n\n")
    calls = [json.loads(line) for line in (RUN / "model_calls.jsonl").read_text().splitlines()]
    last = max(len(call["prompt"]) for call in calls if call["about"] == f"round {TREE.rounds_closed}")
    assert ideas.startswith("ideas, characters")
    assert re.search(rf"\ntogether .* {last:,}\n", ideas)
    assert "What was tried so far" in ideas and "12,000" in ideas
    assert "The evaluator's message" in repair and "The evaluator's message" not in code


@pytest.mark.slow
def test_the_question_about_a_closed_round(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, f"run={RUN}", "reflection=1")
    assert Counter(idea.text in text for idea in TREE.ideas.values() if idea.round == 1)[False] == 0
    assert Counter(idea.text in text for idea in TREE.ideas.values() if idea.round == 2)[True] == 0
    assert "one sentence for each idea" in text


@pytest.mark.slow
def test_a_call_as_it_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    first = shown(capsys, f"run={RUN}", "call=000001")
    assert "Propose 2 optimisation ideas" in first
    assert shown(capsys, f"run={RUN}", "call=1") == first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["problem=level1/matmull"], "did you mean level1/matmul?"),
        (["run=nowhere"], "run=nowhere"),
        ([f"run={RUN}", "call=99"], "no such call"),
        ([f"run={RUN}", "idea=99"], "no such idea"),
        ([f"run={RUN}", "variant=99"], "no such variant"),
        ([f"run={RUN}", "reflection=99"], "no such closed round"),
        (["call=1"], "give run="),
        (["problem=level1/matmul", "idea=1"], "give run="),
        (["problem=level1/matmul", "device=cpu", "sections=true"], "give run="),
        ([f"run={RUN}", "estimate=true"], "for a new search"),
        (["problem=level1/matmul", "facts=h2000"], "did you mean h200?"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert prompt.main(arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.out == ""
