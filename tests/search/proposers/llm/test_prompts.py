"""What prompts tell, and the switches that keep it from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import CaseResult, Correctness, Evaluation, Roofline, Status
from evaluators.records.problem import Case, Kernel, Problem
from search.proposers.llm.prompts import Prompts
from search.records.tree import Category, Idea, Outcome, Seed
from tests.search.fakes import correct, failed, outcome, timing

PROBLEM = Problem(
    name="level1/softmax",
    source="class Model:  # the reference\n    pass\n\n\nn = 4096\n",
    overrides={"n": 64},
    tolerance="strict",
    libraries="no_library",
    device="cuda",
)
FACTS = {
    "device": "NVIDIA H200",
    "multi_processor_count": "132",
    "copy_gb_per_s": "4300",
    "isolation": "limits",
}
SOURCE = "class ModelNew:  # the seed\n    x = 1\n\n\n\n    y = 2\n"
EVALUATION = Evaluation(
    status=Status.CORRECT,
    timing=timing(3.0),
    correctness=Correctness(
        checked_calls=3, normwise_error=2e-7, eager_error=1e-7, distributions={"large": False, "small": True}
    ),
    roofline=Roofline(bytes=2_147_483_648, operations=5 * 10**9, floor_ms=0.25, bound="memory"),
)
SEED = Seed(id="seed1", kernel=Kernel(source=SOURCE, language="cpp"), evaluation=EVALUATION)
ENTRY = Seed(id="entry1", kernel=Kernel(source="class ModelNew:  # of the library\n", language="cpp"))


IDEA = Idea(
    text="vectorise it",
    category=Category.MEMORY,
    parent="seed1",
    round=1,
    proposer="llm",
    expected="half the time",
)


HISTORY = [
    outcome("vectorise the loads", correct(6.0), failed(), parent="seed1"),
    outcome(
        "use more threads",
        failed(Status.COMPILE_ERROR),
        failed(),
        failed(),
        parent="seed1",
        category=Category.PARALLELISM,
    ),
    outcome("start naively", correct(0.5)),
    outcome("of this round", parent="seed1"),
]


def ideas(
    told: list[Outcome] | None = None, seed: Seed | None = SEED, summary: bool = False, **switches: Any
) -> str:
    entries = [SEED, ENTRY]
    return Prompts(**switches).ideas(PROBLEM, FACTS, seed, told or [], entries, 3, summary=summary)


def test_the_question_for_ideas_tells_what_is_known() -> None:
    text = ideas(HISTORY)
    for part in (
        "Propose 3 optimisation ideas",
        "class Model:  # the reference",
        "n = 64",
        "NVIDIA H200",
        "132 streaming multiprocessors",
        "4300 GB/s",
        "another order of summation and",
        "rejected",
        "class ModelNew:  # the seed\n    x = 1\n\n\n\n    y = 2",
        "It takes 0.5 ms, 3 times as fast as PyTorch eager (1.5 ms); torch.compile takes 1.2 ms.",
        "50% of the roofline",
        "memory-bound",
        "2147 MB must be moved",
        "float64 is 2e-07; that of eager is 1e-07",
        "kinds: large",
        "`entry1`",
        "# of the library",
        "It has not been measured",
        "memory access: vectorise the loads → 6x eager at best, 0.5 ms, from 3x (1 of 2 variants correct)",
        "use more threads → failed: 2 incorrect, 1 compile_error",
        "start naively → 0.5x eager at best, 0.5 ms, from the reference",
        "of this round → not evaluated yet",
        '"data type and precision"',
        '"seed1"',
    ):
        assert part in text, part
    assert "isolation" not in text
    assert text.count("the seed\n") == 1, "an entry that is the seed is shown once"


def test_a_kernel_for_something_else_says_so() -> None:
    related = replace(ENTRY, why="matmul for conv2d: implicit GEMM", drop_in=False)
    text = Prompts().ideas(PROBLEM, FACTS, SEED, [], [related], 3)
    assert "## `entry1`: matmul for conv2d: implicit GEMM\n\nIt solves a different problem." in text
    assert "not been measured" not in text


def test_cases_show_their_weights_and_a_seeds_verdicts() -> None:
    cases = (Case(sizes={"n": 64}, weight=2.0), Case(sizes={"n": 1}, dtype="bfloat16", weight=0.0))
    part = CaseResult(name="n=64", weight=2.0, held_out=False, evaluation=EVALUATION)
    seed = replace(SEED, evaluation=replace(EVALUATION, cases=(part,)))
    asked = Prompts().ideas(replace(PROBLEM, cases=cases), FACTS, seed, [], [], 2)
    assert "- n=64, weight 2\n- n=1 bfloat16: checked, not timed\n" in asked
    assert "`supports(*inputs) -> bool`" in asked
    assert "Over all cases, as weighted geometric means" in asked
    assert "- case n=64  correct  3.00x" in asked
    assert "kernel is judged on all" not in ideas()


def test_without_a_history_nothing_is_said_of_one() -> None:
    assert "tried" not in ideas()
    assert "\n\n\n" not in ideas(seed=None).partition("```")[0]
    assert "start from the reference itself" in ideas(seed=None)


def test_a_summary_is_by_category() -> None:
    fillers = [outcome(f"filler {i}", failed(), parent="seed1") for i in range(9)]
    text = ideas([*HISTORY, *fillers], summary=True)
    assert (
        "memory access: 12 ideas, 2 with a correct kernel, 1 helped; the best made its seed 2 times" in text
    )
    assert "parallelism and occupancy: 1 ideas, 0 with a correct kernel, 0 helped" in text
    best = text.partition("Best ideas:")[2].partition("Latest ideas:")
    assert best[0].index("vectorise") < best[0].index("start naively")
    assert "filler 8" in best[2]
    assert "filler 3" not in text


def test_switches() -> None:
    assert "132" not in ideas(hardware=False)
    question = Prompts(examples=True).code(PROBLEM, FACTS, IDEA, SEED, None, [], 1, 1)
    without = Prompts(examples=False).code(PROBLEM, FACTS, IDEA, SEED, None, [], 1, 1)
    assert "scale_kernel" in question
    assert "scale_kernel" not in without
    assert "@triton.jit" in without, "the rules stay"


def test_the_question_for_code() -> None:
    bad = HISTORY[1].variants[0]
    text = Prompts().code(PROBLEM, FACTS, IDEA, SEED, ENTRY, [bad], 2, 8)
    for part in (
        "> vectorise it",
        "half the time",
        "variant 2 of 8",
        "# the seed",
        "# of the library",
        "compile_error: it is compile_error",
        "class ModelNew(nn.Module)",
        "## Triton",
        "## CUDA C++",
    ):
        assert part in text, part
    alone = Prompts(languages=["triton"]).code(PROBLEM, FACTS, IDEA, None, None, [], 1, 1)
    assert "## CUDA" not in alone
    assert "variant 1" not in alone
    on_cpu = Prompts().code(replace(PROBLEM, device="cpu"), {}, IDEA, None, None, [], 1, 1)
    assert "## C++" in on_cpu
    assert "## Triton" not in on_cpu


def test_the_question_for_a_repair_shows_both_ends_of_a_long_log() -> None:
    log = "the first error\n" + "noise\n" * 5000 + "the last word"
    bad = replace(HISTORY[1].variants[0], evaluation=Evaluation(status=Status.RUNTIME_ERROR, log=log))
    text = Prompts().repair(PROBLEM, FACTS, IDEA, bad)
    assert "runtime_error" in text
    assert "the first error" in text
    assert "the last word" in text
    assert len(text) < 15_000


def test_templates_of_ones_own_come_first(tmp_path: Path) -> None:
    (tmp_path / "ideas.md").write_text("Say {{ count }}.")
    prompts = Prompts(folder=tmp_path)
    assert prompts.ideas(PROBLEM, FACTS, None, [], [], 3) == "Say 3.\n"
    assert "expert" in prompts.system()
    with pytest.raises(ValueError, match="does not exist"):
        Prompts(folder=tmp_path / "none")


def test_a_language_that_has_no_rules_is_refused() -> None:
    with pytest.raises(ValueError, match="rust"):
        Prompts(languages=["rust"])
