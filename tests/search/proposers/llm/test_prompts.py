"""What prompts tell, and the switches that keep it from them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.base.languages import LANGUAGES
from evaluators.records.diagnosis import Diagnosis, Finding, Level
from evaluators.records.evaluation import (
    CaseResult,
    ConfigurationResult,
    Correctness,
    Evaluation,
    Passes,
    Roofline,
    Status,
)
from evaluators.records.probe import Probe, ProbeStatus, ProbeTimes, ProbeTrace, TraceMarks
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.records.race import after_quick_stage
from evaluators.records.resources import FunctionResources
from evaluators.records.timing import MIN_PAIRS
from search.proposers.llm.measured_history import (
    REFLECTIONS_CHARACTERS,
    SUMMARY_CHARACTERS,
    TRIED_CHARACTERS,
    MeasuredHistory,
)
from search.proposers.llm.probe_findings import probe_findings
from search.proposers.llm.prompts import Prompts, languages_offered
from search.records.events import Event, ProbeMeasured, ProbeRequested
from search.records.probe_request import ProbeRequest
from search.records.ranking import LeaderComparison, Ranking
from search.records.run_state import RunState
from search.records.tree import Category, Idea, Outcome, Reflection, Seed
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


RESOURCES = (
    FunctionResources(name="gemm<float, 128>", registers=168, stack_bytes=2000, shared_bytes=512),
    FunctionResources(name="reduce", registers=32),
)
CONFIGURED = (ConfigurationResult(values={"B": 1}, timing=timing(6.0), chosen=True),)
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
    evidence = MeasuredHistory(told or [], entries)
    return Prompts(**switches).ideas(PROBLEM, FACTS, seed, evidence, entries, 3, 2, summary=summary)


def test_a_kernel_for_training_is_told_what_it_is_judged_by() -> None:
    passes = Passes(forward_ms=0.1, eager_forward_ms=0.2, saved_bytes=2**20, eager_saved_bytes=2**22)
    seed = replace(SEED, evaluation=replace(EVALUATION, passes=passes))
    text = Prompts().ideas(
        replace(PROBLEM, backward=True), FACTS, seed, MeasuredHistory([], [seed]), [seed], 3, 2
    )
    assert "The kernel is for training. `ModelNew` must be differentiable" in text
    assert "gradients of all float inputs and weights" in text
    assert "The forward pass" not in text
    own, eager = EVALUATION.timing.kernel_ms - 0.1, EVALUATION.timing.eager_ms - 0.2  # type: ignore[union-attr]
    assert f"Forward 0.1 ms (eager 0.2) and backward {own:.3g} ms (eager {eager:.3g}); " in text
    assert "the forward pass saves 1 MiB (eager 4)." in text
    assert "for training" not in ideas()


def test_a_kernel_that_a_race_left_out_is_told_with_its_time_and_reason() -> None:
    text = ideas([outcome("swap the loops", after_quick_stage(correct(0.5), None))])
    told = next(line for line in text.splitlines() if "variant 1" in line)
    assert "outpaced: 0.5 ms, 0.5x eager [0.495, 0.505] in the quick stage only" in told
    assert "because others were faster" in told
    assert "Mistakes" not in text.partition("swap the loops")[2]


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
        "It takes 0.5 ms, 3x as fast as eager [2.97, 3.03]; eager takes 1.5 ms, torch.compile 1.2 ms.",
        "50% of the roofline (memory-bound)",
        "2147 MB must be moved",
        "float64 is 2e-07, eager's 1e-07",
        "`entry1`",
        "# of the library",
        "It has not been measured",
        "- Round 1, memory access, from `seed1`: vectorise the loads\n",
        "0.5 ms, 6x as fast as eager [5.94, 6.06]; faster than its seed: 2x [1.96, 2.04]\n",
        "compile_error: it is compile_error\n",
        "- Round 1, memory access, from the reference: start naively\n",
        "0.5 ms, 0.5x as fast as eager [0.495, 0.505]\n",
        "of this round\n  - not evaluated yet\n",
        "- incorrect, 3 kernels: it is incorrect\n- compile_error: it is compile_error\n",
        '"data type and precision"',
        '"seed1"',
    ):
        assert part in text, part
    assert "isolation" not in text
    assert text.count("the seed\n") == 1, "an entry that is the seed is shown once"


def test_a_kernel_for_something_else_says_so() -> None:
    related = replace(ENTRY, why="matmul for conv2d: implicit GEMM", drop_in=False)
    text = Prompts().ideas(PROBLEM, FACTS, SEED, MeasuredHistory(), [related], 3)
    assert "## `entry1`: matmul for conv2d: implicit GEMM\n\nIt solves a different problem." in text
    assert "not been measured" not in text


def test_cases_show_their_weights_and_a_seeds_verdicts() -> None:
    cases = (Case(sizes={"n": 64}, weight=2.0), Case(sizes={"n": 1}, dtype="bfloat16", weight=0.0))
    part = CaseResult(name="n=64", weight=2.0, held_out=False, evaluation=EVALUATION)
    seed = replace(SEED, evaluation=replace(EVALUATION, cases=(part,)))
    asked = Prompts().ideas(replace(PROBLEM, cases=cases), FACTS, seed, MeasuredHistory(), [], 2)
    assert "- n=64, weight 2\n- n=1 bfloat16: checked, not timed\n" in asked
    assert "`supports(*inputs) -> bool`" in asked
    assert "Over all cases, as weighted geometric means" in asked
    assert "- case n=64  correct  3.00x" in asked
    assert "kernel is judged on all" not in ideas()


def test_without_a_history_nothing_is_said_of_one() -> None:
    assert "tried" not in ideas()
    assert "\n\n\n" not in ideas(seed=None).partition("```")[0]
    assert "There is no kernel yet" in ideas(seed=None)


def test_a_summary_is_by_category() -> None:
    text = ideas(
        [*HISTORY, *(outcome(f"filler {i}", failed(), parent="seed1") for i in range(9))], summary=True
    )
    assert "- memory access: 12 ideas, 2 with a correct kernel, 1 faster than before\n" in text
    assert "- parallelism and occupancy: 1 ideas, 0 with a correct kernel, 0 faster than before\n" in text


@pytest.mark.parametrize("summary", [False, True])
def test_a_long_history_keeps_what_matters_and_states_what_is_left_out(summary: bool) -> None:
    long = [outcome(f"filler {i} " + "word " * 100, failed(), parent="seed1") for i in range(60)]
    later = outcome("the last one", correct(3.01), parent="seed1", round=2)
    text = ideas([*HISTORY, *long, later], summary=summary).partition("# Mistakes")[0]
    tried = text.partition("# What was tried")[2]
    assert len(tried) < (SUMMARY_CHARACTERS if summary else TRIED_CHARACTERS) + 1000
    assert "vectorise the loads" in tried
    assert "the last one" in tried
    assert "no difference from its seed beyond the error: 1x [0.983, 1.02]" in tried
    assert "filler 59" in tried
    assert "filler 0 " not in tried
    assert " more ideas are left out: " in tried


def test_a_kernel_has_one_figure_that_of_its_last_comparison() -> None:
    (one,) = (first := outcome("first", correct(6.0), parent="seed1")).variants
    (two,) = (following := outcome("next", correct(7.0), parent=one.id, round=2)).variants
    times = {one.kernel.id: 1.0, two.kernel.id: 1.1}
    ranking = Ranking()
    together = {
        id: replace(correct(3.0), timing=replace(timing(3.0), kernel_samples_ms=(ms,) * MIN_PAIRS))
        for id, ms in times.items()
    }
    ranking.add(LeaderComparison(evaluations=together))
    evidence = MeasuredHistory([first, following], [SEED], ranking)
    assert evidence.figures(one) == "0.5 ms, 3x as fast as eager [2.97, 3.03]"
    assert str(evidence.gain(two)).startswith("slower than its seed: 0.909x")
    assert evidence.lineage(one.seed) == [
        "the library's `seed1` → 0.5 ms, 3x as fast as eager [2.97, 3.03]",
        "first → 0.5 ms, 3x as fast as eager [2.97, 3.03]",
    ]
    assert len(evidence.lineage(two.seed)) == 3


def test_a_mistake_is_told_once() -> None:
    logs = [f"wrong on masked inputs: {i} of 100 elements" for i in range(3)] + ["out of shared memory"]
    found = [Evaluation(status=Status.INCORRECT, log=log) for log in logs]
    assert MeasuredHistory([outcome("a", *found)]).mistakes() == [
        "incorrect, 3 kernels: wrong on masked inputs: 2 of 100 elements",
        "incorrect: out of shared memory",
    ]


def test_part_of_the_ideas_must_leave_the_lineage() -> None:
    assert "At least 1 of them must have another structure" in ideas(HISTORY)
    assert "At least 2 of them" in ideas(HISTORY, diversity=0.5)
    assert "another structure" not in ideas(HISTORY, diversity=0)
    assert "another structure" not in ideas(HISTORY, seed=None), "the reference has no structure to leave"
    with pytest.raises(ValueError, match="diversity is 2"):
        Prompts(diversity=2)


def test_switches() -> None:
    assert "132" not in ideas(hardware=False)
    question = Prompts(examples=True).code(PROBLEM, FACTS, IDEA, SEED, None, MeasuredHistory(), [], [1], 1)
    without = Prompts(examples=False).code(PROBLEM, FACTS, IDEA, SEED, None, MeasuredHistory(), [], [1], 1)
    assert "softmax_kernel" in question
    assert "softmax_kernel" not in without
    assert "Mistakes made" not in ideas(HISTORY, mistakes=False)
    for parent, edits in ((SEED, False), (None, True)):
        asked = Prompts(edits=edits).code(PROBLEM, FACTS, IDEA, parent, None, MeasuredHistory(), [], [1], 1)
        assert "SEARCH" not in asked, "there is nothing to edit, or it is off"
    assert "@triton.jit" in without, "the rules stay"


def test_the_question_for_code() -> None:
    bad = HISTORY[1].variants[0]
    idea = replace(IDEA, variant_plans=("by float2", "by float4", "by bulk copies"))
    text = Prompts().code(PROBLEM, FACTS, idea, SEED, ENTRY, MeasuredHistory(HISTORY), [bad], [2], 3)
    for part in (
        "> vectorise it",
        "half the time",
        "variant 2 of 3",
        "What distinguishes yours: by float4\n\nThe rest try:\n\n- by bulk copies\n",
        "measured already:\n\n- variant 1 (by float2): compile_error: it is compile_error\n",
        "- incorrect, 3 kernels: it is incorrect",
        "<<<<<<< SEARCH",
        "# the seed",
        "# of the library",
        "class ModelNew(nn.Module)",
        "## Triton",
        "## CUDA C++",
    ):
        assert part in text, part
    alone = Prompts(languages=["triton"]).code(
        PROBLEM, FACTS, IDEA, None, None, MeasuredHistory(), [], [1], 1
    )
    assert "## CUDA" not in alone
    assert "variant 1" not in alone
    on_cpu = Prompts().code(
        replace(PROBLEM, device="cpu"), {}, IDEA, None, None, MeasuredHistory(), [], [1], 1
    )
    assert "## C++" in on_cpu
    assert "## Triton" not in on_cpu


def test_all_variants_may_be_one_question() -> None:
    idea = replace(IDEA, variant_plans=("by float2",))
    text = Prompts().code(PROBLEM, FACTS, idea, SEED, None, MeasuredHistory(), [], [1, 2], 2)
    assert "Write 2 of its 2 variants." in text
    assert "- variant 1: by float2\n- variant 2: another choice where the idea leaves one open\n" in text
    assert "2 whole files, each in a separate fenced code block" in text
    assert "SEARCH" not in text


def test_the_question_for_a_repair_shows_both_ends_of_a_long_log() -> None:
    log = "the first error\n" + "noise\n" * 5000 + "the last word"
    bad = replace(HISTORY[1].variants[0], evaluation=Evaluation(status=Status.RUNTIME_ERROR, log=log))
    text = Prompts().repair(PROBLEM, FACTS, IDEA, bad, MeasuredHistory())
    assert "runtime_error" in text
    assert "the first error" in text
    assert "the last word" in text
    assert len(text) < 22_000


def test_the_question_for_a_repair_shows_all_configurations() -> None:
    table = (ConfigurationResult(values={"B": 1}, cause="compile_error: no such type"),)
    found = Evaluation(status=Status.COMPILE_ERROR, log="no such type", configurations=table)
    bad = replace(HISTORY[1].variants[0], evaluation=found)
    text = Prompts().repair(PROBLEM, FACTS, IDEA, bad, MeasuredHistory())
    assert "# Its configurations\n\n- B=1  compile_error: no such type\n\n# Task" in text


def test_a_kernels_resources_are_told_wherever_they_are_known() -> None:
    right, wrong = (replace(each, resources=RESOURCES) for each in (correct(6.0), failed()))
    configured = replace(right, configurations=CONFIGURED)
    tried = outcome("tile it", right, wrong, configured, correct(2.0))
    evidence = MeasuredHistory([tried])
    known = "at most 168 registers, 2 kB stack"
    assert [evidence.figures(each) for each in tried.variants] == [
        f"0.5 ms, 6x as fast as eager [5.94, 6.06] ({known})",
        f"incorrect: it is incorrect ({known})",
        f"0.5 ms, 6x as fast as eager [5.94, 6.06] ({known}; B=1 is the best of 1 configurations)",
        "0.5 ms, 2x as fast as eager [1.98, 2.02]",
    ]
    repair = Prompts().repair(PROBLEM, FACTS, IDEA, tried.variants[1], evidence)
    assert "# Its compiled functions\n\n- gemm<float, 128>: 168 registers and 2 kB stack per thread" in repair
    bad = replace(tried.variants[1], evaluation=failed(Status.COMPILE_ERROR))
    assert "compiled functions" not in Prompts().repair(PROBLEM, FACTS, IDEA, bad, evidence)


def test_templates_of_ones_own_come_first(tmp_path: Path) -> None:
    (tmp_path / "ideas.md").write_text("Say {{ count }}.")
    prompts = Prompts(folder=tmp_path)
    assert prompts.ideas(PROBLEM, FACTS, None, MeasuredHistory(), [], 3) == "Say 3.\n"
    assert "expert" in prompts.system()
    with pytest.raises(ValueError, match="does not exist"):
        Prompts(folder=tmp_path / "none")


def test_a_language_that_has_no_rules_is_refused() -> None:
    with pytest.raises(ValueError, match="rust"):
        Prompts(languages=["rust"])


def test_the_bottlenecks_of_a_profiled_variant_are_in_the_history() -> None:
    spills = Finding(name="spills", evidence="9", confidence=Level.STATIC, helps="a smaller tile", share=0.3)
    variant = HISTORY[0].variants[0]
    evidence = MeasuredHistory(
        HISTORY, [SEED], diagnoses={variant.kernel.id: Diagnosis(findings=(spills, spills))}
    )
    (told,) = [line for line in evidence.tried(None).splitlines() if variant.id in line]
    assert told.endswith("[1.96, 2.04]; profile: spills")


def test_the_noise_between_measurements_is_told() -> None:
    def timed(*kernel_ms: float) -> str:
        timings = [replace(EVALUATION, timing=timing(2.0, kernel_ms=each)) for each in kernel_ms]
        return ideas([outcome("pad the rows", *timings, failed(), parent="seed1")])

    said = "In the 3 measurements so far, eager took 1 to 1.12 ms: times of different measurements differ by"
    assert said in timed(0.5, 0.56, 0.52)
    assert "measurements so far" not in timed(0.5, 0.56), "two are too few"


REFLECTIONS = [
    Reflection(round=1, text="Wider loads gained 2x as predicted. More threads did not build.", model="m"),
    Reflection(round=2, text="Nothing gained beyond the error.", model="m"),
]


def test_reflections_are_told_as_far_as_there_is_room() -> None:
    evidence = MeasuredHistory(reflections=REFLECTIONS)
    assert [line.partition(":")[0] for line in evidence.reflections()] == ["Round 1", "Round 2"]
    long = [Reflection(round=number, text="x" * 1900, model="m") for number in range(1, 6)]
    told = MeasuredHistory(reflections=long).reflections()
    assert [line.partition(":")[0] for line in told] == ["Round 3", "Round 4", "Round 5"]
    assert sum(map(len, told)) <= REFLECTIONS_CHARACTERS


GOLDEN = Path(__file__).with_name("golden")
"""Whole prompts, to be read by a person when they change: IDEATREE_GOLDEN=write renders them anew."""


PROBE = ProbeRequest(
    question="Is it limited by its stores?", what="the same kernel without stores", base="seed1", round=1
)


INSTALLED = {"helion": "1.4.0", "tilelang": "0.1.15", "cutile": "1.7.0", "cute": "4.8.1"}
"""Versions of languages that a machine may have, as facts."""


def probe_events() -> list[Event]:
    """Two probes of the first round: one with a timeline, and one that failed; and one of the second."""
    lost = replace(PROBE, question="Is it the launch?", what="an empty launch", base="")
    later = replace(PROBE, round=2)
    trace = ProbeTrace.of(TraceMarks(names=("load", "store"), unit="ns"), [[10, 410, 450]], 1)
    times = ProbeTimes.of([0.2, 0.21, 0.19, 0.2, 0.2, 0.2], [1.5] * 6)
    timed = Probe(status=ProbeStatus.TIMED, times=times, trace=trace)
    failure = Probe.failed(Status.COMPILE_ERROR, "main.cpp:3:5: error: expected ';'")
    return [
        *(ProbeRequested(at_s=1.0, request=each) for each in (PROBE, lost, later)),
        ProbeMeasured(at_s=2.0, request_id=PROBE.id, kernel=SEED.kernel, probe=timed),
        ProbeMeasured(at_s=2.0, request_id=lost.id, kernel=SEED.kernel, probe=failure),
        ProbeMeasured(at_s=2.0, request_id=later.id, kernel=SEED.kernel, probe=timed),
    ]


def rendered() -> dict[str, str]:
    """Prompts of every kind: the first of a search, later ones, for a GPU and for a CPU."""
    gpu = FACTS | {
        "triton": "3.6.0",
        "nvcc": "13.0",
        "empty_kernel_us": "1.9",
        "torch": "2.11.0",
        "cuda": "13.0",
        "architecture": "9.0",
    }
    cpu = {
        "device": "a CPU, 2 cores",
        "instructions": "fma, avx2, avx512f",
        "caches": "L1 48K, L2 2048K, L3 32768K",
        "compiler": "c++ 12.2.0",
        "torch": "2.13.0",
    }
    on_cpu, prompts = replace(PROBLEM, device="cpu"), Prompts()
    told_on_cpu = MeasuredHistory(HISTORY, [SEED, ENTRY], reflections=REFLECTIONS[:1])
    built = replace(correct(6.0), resources=RESOURCES[:1]), replace(failed(), resources=RESOURCES)
    history = [outcome("vectorise the loads", *built, parent="seed1"), *HISTORY[1:]]
    seed = replace(SEED, evaluation=replace(EVALUATION, resources=RESOURCES[1:]))
    told = MeasuredHistory(history, [seed, ENTRY], reflections=REFLECTIONS[:1])
    idea = replace(IDEA, variant_plans=("by float2", "by float4"))
    predicted = replace(
        history[0].idea, predicted_gain=1.5, refuted_by="less than 1.2x", variant_plans=("float2", "float4")
    )
    closed = MeasuredHistory(
        [replace(history[0], idea=predicted), *HISTORY[1:3]], [seed], reflections=REFLECTIONS[:1]
    )
    gluon = Prompts(languages=["gluon"])
    state = RunState()
    for event in probe_events():
        state.apply(event)
    wrong = "wrong on masked inputs: 3 of 100 elements"
    bad = outcome("a", Evaluation(status=Status.INCORRECT, log=wrong, resources=RESOURCES)).variants
    return {
        "system": prompts.system(),
        "first_ideas": prompts.ideas(PROBLEM, gpu, None, MeasuredHistory(), [], 4, 2),
        "later_ideas": prompts.ideas(PROBLEM, gpu, seed, told, [seed, ENTRY], 4, 2, ["vectorise it"]),
        "summary": prompts.ideas(PROBLEM, gpu, seed, told, [], 4, 2, summary=True),
        "first_ideas_cpu": prompts.ideas(on_cpu, cpu, None, MeasuredHistory(), [], 1),
        "first_code": prompts.code(PROBLEM, gpu, idea, None, None, MeasuredHistory(), [], [1], 1),
        "later_code": prompts.code(PROBLEM, gpu, idea, seed, ENTRY, told, (), [2], 2),
        "later_wave": prompts.code(PROBLEM, gpu, idea, seed, None, told, history[0].variants, [3], 4),
        "ideas_in_all_languages": prompts.ideas(PROBLEM, gpu | INSTALLED, None, MeasuredHistory(), [], 2),
        "code_in_a_chosen_language": prompts.code(
            PROBLEM, gpu | INSTALLED, replace(idea, language="cute"), seed, None, told, [], [1], 1
        ),
        "rules_of_languages": Prompts(languages=[*INSTALLED]).rules(PROBLEM, gpu | INSTALLED) + "\n",
        "gluon": gluon.code(PROBLEM, gpu, idea, None, None, MeasuredHistory(), [], [1], 1),
        "code_cpu": prompts.code(on_cpu, cpu, idea, SEED, None, told_on_cpu, [], [1], 2),
        "repair": prompts.repair(PROBLEM, gpu, IDEA, bad[0], told),
        "ideas_with_probes": prompts.ideas(
            on_cpu,
            cpu,
            SEED,
            told_on_cpu,
            [],
            2,
            probes=2,
            probed=probe_findings(state, [SEED], told_on_cpu, 2),
        ),
        "probe": prompts.probe(PROBLEM, gpu, PROBE, seed, told),
        "probe_cpu": prompts.probe(on_cpu, cpu, PROBE, None, told_on_cpu),
        "screening": prompts.screening(PROBLEM, gpu, seed, told, [predicted, IDEA], 1),
        "reflection": prompts.reflection(PROBLEM, gpu, 1, closed),
    }


def test_the_prompts_are_those_that_a_person_has_read() -> None:
    for name, text in rendered().items():
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("IDEATREE_GOLDEN") == "write":
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{name} has changed; read it, then write it anew"


def test_types_that_the_reference_keeps_are_not_said_to_be_others() -> None:
    kept = replace(PROBLEM, source=f"{PROBLEM.source}\nKEEPS_TYPES = True\nx = 'float8_e4m3fn'\n")
    asked, usual = (
        Prompts().ideas(problem, FACTS, SEED, MeasuredHistory(), [], 2) for problem in (kept, PROBLEM)
    )
    assert "Inputs have the types that the file gives them" in asked
    assert "All float tensors are" not in asked
    assert "every 128 products" in asked
    assert "All float tensors are float32" in usual
    assert "FP8" not in usual


@pytest.mark.parametrize(
    ("facts", "libraries", "offered"),
    [
        ({}, "any", ["triton", "cuda"]),
        ({"cute": "4.8.1"}, "any", ["triton", "cuda", "cute"]),
        (INSTALLED, "any", ["triton", "cuda", "cutile", "tilelang", "cute", "helion"]),
        (INSTALLED, "no_library", ["triton", "cuda", "cutile", "tilelang", "cute"]),
        (INSTALLED | {"architecture": "7.5"}, "any", ["triton", "cuda", "tilelang"]),
    ],
)
def test_the_languages_that_a_machine_has_are_offered(
    facts: dict[str, str], libraries: str, offered: list[str]
) -> None:
    problem = replace(PROBLEM, libraries=libraries)
    assert languages_offered(problem, facts) == offered
    assert languages_offered(replace(problem, device="cpu"), facts) == ["cpp"]
    text = Prompts().ideas(problem, facts, None, MeasuredHistory(), [], 1)
    assert all(f"- {LANGUAGES[name].title}" in text for name in offered)


def test_an_idea_gets_the_page_of_its_language() -> None:
    def code(language: str) -> str:
        idea = replace(IDEA, language=language)
        return Prompts().code(PROBLEM, FACTS | INSTALLED, idea, None, None, MeasuredHistory(), [], [1], 1)

    assert "## CuTe DSL 4.8.1" in code("cute") and "## Triton" not in code("cute")
    assert "Write it in CuTe DSL, the language that the idea chose." in code("cute")
    for unusable in ("", "cpp"):
        assert "## CuTe DSL 4.8.1" in code(unusable) and "## Triton" in code(unusable)
        assert "the idea chose" not in code(unusable)
