"""Each mutant can be made and is wrong somewhere; and how their verdicts are counted."""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from benchmarks import mutants, mutations, witness
from benchmarks.mutants import (
    HONEST,
    Asked,
    Verdict,
    choose,
    honest,
    main,
    merged,
    of_mutants,
    options_of,
    part_of,
    summary,
)
from benchmarks.mutations import KINDS, TORCH, BadEdit, Edit, Mutant
from benchmarks.seeds import CASES
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from tests.search.fakes import timing

DEVICES = ("cuda", "cpu")


@pytest.fixture(scope="module")
def all_mutants() -> list[Mutant]:
    """All of them, made once: to compose their problems takes five seconds, so the tests with it are slow."""
    return mutations.mutants()


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_there_are_many_of_each_kind(all_mutants: list[Mutant], device: str) -> None:
    found = [each for each in all_mutants if each.case.device == device]
    assert len(found) >= {"cuda": 300, "cpu": 200}[device]
    kinds = Counter(each.kind for each in found)
    assert kinds.keys() == KINDS.keys()
    assert min(kinds.values()) >= 9
    assert max(kinds.values()) <= len(found) // 5


@pytest.mark.slow
def test_every_kernel_and_every_problem_has_mutants_of_several_kinds(all_mutants: list[Mutant]) -> None:
    kinds = defaultdict(list)
    for each in all_mutants:
        kinds[each.base].append(each.kind)
    assert kinds.keys() == {case.seed for case in CASES} | {TORCH + name for name in mutations.problems()}
    for base, found in kinds.items():
        assert len(found) >= 10, base
        assert len(set(found)) >= 6, base


@pytest.mark.slow
def test_every_mutant_is_another_source_that_parses(all_mutants: list[Mutant]) -> None:
    for source in {each.kernel.source for each in all_mutants}:
        ast.parse(source)
    for each in all_mutants:
        assert each.kernel.source != mutations.source_of(each.base), each.name
        assert each.why.endswith("."), each.name
    assert max(Counter((each.name, each.case.device) for each in all_mutants).values()) == 1
    assert max(Counter((each.kernel.id, each.case) for each in all_mutants).values()) == 1


@pytest.mark.parametrize("old", ["x", "this is nowhere"])
def test_an_edit_that_no_longer_fits_is_refused(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = Edit("term", "Wrong.", old, "y")
    monkeypatch.setattr(mutations, "edits", lambda: {"softmax/triton": [edit]})
    with pytest.raises(BadEdit, match=r"softmax/triton, term 1: .* occurs \d+ times, not once"):
        mutations.mutants()


@pytest.mark.slow
def test_what_a_problem_allows_is_no_mistake(all_mutants: list[Mutant]) -> None:
    rounded = [each for each in all_mutants if each.name == "torch:level1/conv2d precision w5"]
    assert [each.case.device for each in rounded] == ["cuda"]  # on a CPU factors may be rounded to bfloat16


def test_an_unknown_kind_or_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = "total = tl.zeros([EACH, BLOCK], tl.float32)"
    monkeypatch.setattr(mutations, "edits", lambda: {"sum_rows/triton": [Edit("odd", "Wrong.", fits, "")]})
    with pytest.raises(BadEdit, match="the kind must be one of"):
        mutations.mutants()
    monkeypatch.setattr(mutations, "edits", lambda: {"sum_rows/triton": [Edit("term", "Wrong.", fits, "")]})
    monkeypatch.setattr(mutations, "CASES", ())
    with pytest.raises(BadEdit, match="sum_rows/triton is no kernel"):
        mutations.mutants()


@pytest.mark.slow
def test_mutants_of_a_sum_are_wrong_on_their_inputs(
    all_mutants: list[Mutant], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reference for all: `benchmarks/witness.py` is the command for the others."""
    monkeypatch.setitem(witness.SMALL, "library/sum_rows", {"rows": 16, "features": 512})
    sums = [each for each in all_mutants if each.base == "torch:library/sum_rows"]
    for each in (each for each in sums if each.case.device == "cpu"):
        assert list(witness.wrong_on(each, "cpu")), each.name


def test_a_witness_distinguishes_rounding_from_mistakes() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64)
    eager = exact.float()
    assert not witness.is_wrong(eager * (1 + 1e-7), exact, eager, 2e-6)
    assert witness.is_wrong(eager * (1 + 1e-5), exact, eager, 2e-6)
    single = eager.clone()
    single[3, 4] += 1e-3
    assert witness.is_wrong(single, exact, eager, 2e-6)
    assert witness.is_wrong(eager[:1], exact, eager, 2e-6)
    assert witness.is_wrong(eager.half(), exact, eager, 2e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_witness_compares_non_finite_values(value: float) -> None:
    exact = torch.ones(4, dtype=torch.float64)
    exact[1] = value
    eager = exact.float()
    assert not witness.is_wrong(eager.clone(), exact, eager, 2e-6)
    assert witness.is_wrong(eager.nan_to_num(0, 0, 0), exact, eager, 2e-6)
    infinite = eager.clone()
    infinite[0] = float("inf")
    assert witness.is_wrong(infinite, exact, eager, 2e-6)
    overflow = torch.ones(4)  # where only eager is not finite, no kernel is wrong
    overflow[2] = float("inf")
    assert not witness.is_wrong(torch.ones(4), torch.ones(4, dtype=torch.float64), overflow, 2e-6)


@pytest.mark.slow
def test_small_sizes_keep_the_options_of_a_case(all_mutants: list[Mutant]) -> None:
    wide = next(each for each in all_mutants if "50257" in each.case.name)
    sizes = witness.small_problem(wide, "cpu").overrides
    assert sizes["features"] == 50257
    assert sizes["batch"] == witness.SMALL["level1/softmax"]["batch"]
    assert witness.SMALL.keys() == set(mutations.problems())


@pytest.mark.slow
def test_honest_kernels_are_the_library_and_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only two problems, because composing their configs takes time."""
    names = ["level1/softmax", "library/rotary"]
    monkeypatch.setattr(mutations, "problems", lambda: names)
    monkeypatch.setattr(mutants, "CASES", [case for case in CASES if case.problem in names])
    found = honest("cuda")
    references = [each for each in found if each.name.startswith(TORCH)]
    assert [each.problem.name for each in references] == names
    assert {each.problem.libraries for each in references} == {"any"}
    library = [each for each in found if each not in references]
    assert len(library) == 4
    assert {each.problem.libraries for each in library} == {"no_library"}
    assert {each.problem.device for each in found} == {"cuda"}


@pytest.mark.slow
def test_mutants_are_for_problems_that_any_code_may_solve(all_mutants: list[Mutant]) -> None:
    chosen = [each for each in all_mutants if each.base in ("sum_rows/triton", "torch:library/sum_rows")]
    found = of_mutants(chosen, "cuda")
    assert {each.problem.libraries for each in found} == {"any"}
    assert len({each.problem.id for each in found}) == 1
    assert not {each.name for each in of_mutants(chosen, "cpu")} & {
        each.name for each in chosen if each.base == "sum_rows/triton"
    }


def asked(name: str, kind: str = "tail", problem: str = "p") -> Asked:
    return Asked(
        name=name,
        kind=kind,
        why="The tail is left out.",
        problem=Problem(name=problem, source=f"# {problem}"),
        kernel=Kernel(source=f"# {name}", language="cpp"),
    )


MANY = [asked(f"{TORCH if n % 2 else ''}{n}", "tail" if n % 3 else "mask", f"p{n % 5}") for n in range(30)]


def test_options_select_mutants() -> None:
    def names(*arguments: str) -> set[str]:
        return {each.name for each in choose(MANY, options_of(arguments))}

    assert names() == {each.name for each in MANY}
    assert names("kinds=mask") == {each.name for each in MANY if each.kind == "mask"}
    assert names("kernels=torch") | names("kernels=library") == names()
    assert not names("kernels=torch") & names("kernels=library")
    assert names("only=12,14") == {"12", "14"}
    assert len(names("count=7")) == 7
    assert names("count=7") == names("count=7") != names("count=7", "seed=1")
    assert len(choose(MANY, options_of(["honest=true", "repeat=3"]))) == 90


def test_parts_cover_everything_and_share_no_problem() -> None:
    parts = [part_of(MANY, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(each.name for part in parts for each in part) == sorted(each.name for each in MANY)
    problems = [{each.problem.id for each in part} for part in parts]
    assert sum(map(len, problems)) == len(set.union(*problems))


@pytest.mark.parametrize(
    "call", ["speed=1", "count", "kinds=odd", "kernels=x", "part=3/2", "part=1", "count=few", "only=nobody"]
)
def test_a_wrong_call_is_refused(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "mutants", list)
    with pytest.raises(UsageError):
        main([call, "device=cpu"])


class Played:
    """Stub of Pool and LocalHost: a kernel's name is its verdict."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def evaluate(self, _: Problem, kernel: Kernel) -> Evaluation:
        status = Status(kernel.source.removeprefix("# ").partition(" ")[0])
        return Evaluation(status=status, timing=timing() if status is Status.CORRECT else None, log="A\nlog.")

    def close(self) -> None:
        pass


def play(monkeypatch: pytest.MonkeyPatch, statuses: list[str]) -> None:
    names = [f"{status} {number}" for number, status in enumerate(statuses)]
    monkeypatch.setattr(mutants, "mutants", list)
    monkeypatch.setattr(mutants, "Pool", Played)
    monkeypatch.setattr(mutants, "LocalHost", Played)
    monkeypatch.setattr(mutants, "of_mutants", lambda *_: [asked(name) for name in names])


def test_survivors_are_listed_and_the_goal_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    play(monkeypatch, ["incorrect"] * 98 + ["crashed", "correct"])
    assert main(["device=cpu", f"out={out}"]) == 0
    text = capsys.readouterr().out
    assert "| tail | off by one at the tail | 99 | 100 | incorrect 98, crashed 1, correct 1 |" in text
    assert "| all | | 99 | 100 | 99.0% |" in text
    assert "correct 99: correct. The tail is left out." in text
    written = json.loads(out.read_text())
    assert [each["status"] for each in written if each["name"] == "correct 99"] == ["correct"]
    assert [each["speedup_low"] > 0 for each in written].count(True) == 1
    play(monkeypatch, ["incorrect"] * 98 + ["correct"] * 2)
    assert main(["device=cpu"]) == 1
    assert main([f"merge={out},{out}"]) == 0


def test_our_own_failure_does_not_count_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ["infrastructure_error"] * 2 + ["incorrect"] * 8)
    assert main(["device=cpu"]) == 1


def test_a_missing_verdict_is_not_a_success() -> None:
    late = Verdict(name="late", kind="tail", why="Wrong.", status="", log="no verdict in time")
    found = Verdict(name="found", kind="tail", why="Wrong.", status="incorrect")
    lines = summary([late, found])
    assert "| all | | 1 | 1 | 100.0% |" in lines
    assert any(line.startswith("late: no verdict") for line in lines)


def test_honest_kernels_must_be_correct() -> None:
    def verdict(status: str) -> Verdict:
        return Verdict(name="n", kind=HONEST, why="", status=status)

    assert verdict("correct").right
    assert not verdict("incorrect").right


def test_an_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="merge: "):
        merged([str(tmp_path / "nothing.json")])
    (tmp_path / "other.json").write_text('[{"odd": 1}]')
    with pytest.raises(UsageError, match="merge: "):
        merged([str(tmp_path / "other.json")])
