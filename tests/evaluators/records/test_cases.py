"""Problems with several cases: drawing held-out cases, and combining the verdicts on all."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from itertools import islice

import pytest
import torch

from evaluators.records.cases import held_out, summed_up
from evaluators.records.evaluation import (
    CLOCKS_AFTER,
    CLOCKS_BEFORE,
    CaseResult,
    Correctness,
    Evaluation,
    Status,
    Timing,
)
from evaluators.records.problem import Case, Problem
from evaluators.records.resources import FunctionResources
from evaluators.reference.loading import BadReference, load_module, make_inputs, make_problem

SOURCE = """
import torch
from torch import nn

rows, columns = 8, 16

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return []
"""
OWN = """
def get_cases():
    return [{"sizes": {"columns": columns}}, {"sizes": {"columns": 64}, "dtype": "bfloat16", "weight": 2}]
"""
TWO = (Case(sizes={"columns": 16}), Case(sizes={"columns": 64}, dtype="bfloat16", weight=2.0))
PROBLEM = Problem(name="file/rows", source=SOURCE, cases=TWO)


def correct(speedup: float, *, kernel_ms: float = 1.0, samples: int = 8) -> Evaluation:
    kernel = tuple(kernel_ms for _ in range(samples))
    eager = tuple(kernel_ms * speedup for _ in range(samples))
    timing = Timing(
        kernel_ms=kernel_ms,
        eager_ms=kernel_ms * speedup,
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
        kernel_samples_ms=kernel,
        eager_samples_ms=eager,
    )
    right = Correctness(checked_calls=2, normwise_error=1e-7, eager_error=2e-7, distributions={"small": True})
    return Evaluation(status=Status.CORRECT, timing=timing, correctness=right, device_s=1.0)


def result(
    evaluation: Evaluation, *, weight: float = 1.0, name: str = "n=1", drawn: bool = False
) -> CaseResult:
    return CaseResult(name=name, weight=weight, held_out=drawn, evaluation=evaluation)


def test_a_reference_names_its_cases() -> None:
    made = make_problem(SOURCE + OWN, where="rows.py", name="file/rows")
    assert made.cases == TWO
    assert make_problem(SOURCE + OWN, where="rows.py", name="file/rows", cases=[]).cases == ()
    given = [{"sizes": {"rows": 3}}]
    assert make_problem(SOURCE, where="rows.py", name="file/rows", cases=given).cases == (
        Case(sizes={"rows": 3}),
    )
    plain = make_problem(SOURCE, where="rows.py", name="file/rows")
    assert plain.cases == ()
    assert made.id != plain.id


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        ([{"sizes": {"colums": 3}}], "no module global colums to override; did you mean columns?"),
        ([{"size": {}}], "case 0 of rows.py is not valid: .*size"),
        ([{"dtype": "int7"}], "case.dtype is 'int7'"),
        ([{"layout": "diagonal"}], "case.layout is 'diagonal'"),
        ([{"weight": -1}], "must be finite and not negative"),
        ([{"weight": 0}], "nothing would be timed"),
        ([{}, {}], "rows.py has the case as it is twice"),
    ],
)
def test_an_invalid_case_is_refused_in_one_line(cases: list[dict[str, object]], why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        make_problem(SOURCE, where="rows.py", name="file/rows", cases=cases)
    assert "\n" not in str(raised.value)


def test_a_failing_get_cases_is_reported() -> None:
    with pytest.raises(BadReference, match=r"get_cases\(\) fails: ZeroDivisionError"):
        make_problem(f"{SOURCE}\ndef get_cases():\n    return [1 / 0]\n", where="rows.py", name="file/rows")


def test_a_case_is_a_problem_by_itself() -> None:
    made = replace(PROBLEM, overrides={"rows": 4})
    of_case = made.of_case(TWO[1])
    assert of_case.name == "file/rows [columns=64 bfloat16]"
    assert dict(of_case.overrides) == {"rows": 4, "columns": 64}
    assert (of_case.dtype, of_case.cases, of_case.case_of) == ("bfloat16", (), made.id)
    alone = replace(made, overrides=of_case.overrides, dtype="bfloat16", cases=())
    assert of_case.id == alone.id


def test_cases_of_an_untimed_problem_are_untimed() -> None:
    made = replace(PROBLEM, timed=False)
    assert not any(made.of_case(each).timed for each in made.cases)
    with pytest.raises(ValueError, match=r"set problem\.libraries=any"):
        replace(made, libraries="no_library")


def test_problems_with_cases_survive_json() -> None:
    odd = replace(PROBLEM, cases=(Case(sizes={"shape": (2, (3, 4))}, layout="strided"),))
    for each in (PROBLEM, odd):
        assert Problem.from_json(json.loads(json.dumps(asdict(each)))) == each


@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_inputs_have_the_layout_of_their_case(layout: str) -> None:
    def drawn(layout: str) -> torch.Tensor:
        inputs = make_inputs(load_module(SOURCE, {}), seed=1, device="cpu", dtype="float32", layout=layout)
        found: torch.Tensor = inputs[0]
        return found

    assert torch.equal(drawn(layout), drawn(""))
    assert drawn(layout).stride() == {"transposed": (1, 8), "strided": (32, 2)}[layout]


def test_held_out_cases_change_the_sizes_that_vary() -> None:
    cases = tuple(Case(sizes={"columns": n, "groups": 4}, dtype="float32", weight=3.0) for n in (16, 100))
    drawn = list(islice(held_out(replace(PROBLEM, cases=cases), random.Random(0)), 200))
    assert all((each.held_out, each.weight, each.dtype) == (True, 0.0, "float32") for each in drawn)
    assert {each.sizes["groups"] for each in drawn} == {4}
    columns = {int(each.sizes["columns"]) for each in drawn}  # type: ignore[arg-type]
    assert {15, 17, 99, 101} <= columns
    assert columns <= set(range(15, 104))
    assert len(columns) > 30


def test_the_speedup_is_a_weighted_geometric_mean() -> None:
    one, other = replace(correct(2.0), environment={"a": "b"}), correct(8.0, kernel_ms=4.0)
    found = summed_up([result(one, weight=1), result(other, weight=2)])
    assert found.timing is not None
    assert found.status is Status.CORRECT
    assert found.speedup == pytest.approx((2 * 8 * 8) ** (1 / 3))
    assert found.timing.kernel_ms == pytest.approx((1 * 4 * 4) ** (1 / 3))
    assert found.speedup_low < found.speedup < found.timing.speedup_high
    assert (found.environment, found.device_s) == ({"a": "b"}, 2.0)
    assert "case n=1  correct  2.00x" in found.log
    assert Evaluation.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_declined_case_counts_as_a_speedup_of_one() -> None:
    declined = Evaluation(status=Status.DECLINED, log="no")
    found = summed_up([result(correct(4.0)), result(declined, name="n=2")])
    assert found.speedup == pytest.approx(2.0)
    assert "case n=2  declined: counts as 1.00x" in found.log
    held = summed_up([result(correct(4.0)), result(declined, weight=0.0, drawn=True)])
    assert held.speedup == pytest.approx(4.0)
    assert summed_up([result(declined)]).status is Status.DECLINED


def test_a_right_kernel_of_an_untimed_problem_is_correct() -> None:
    untimed, declined = Evaluation(status=Status.CORRECT), Evaluation(status=Status.DECLINED, log="no")
    found = summed_up([result(untimed), result(declined, name="n=2")])
    assert (found.status, found.timing, found.roofline) == (Status.CORRECT, None, None)


def test_one_failure_is_the_verdict() -> None:
    wrong = Evaluation(status=Status.INCORRECT, log="wrong on fresh inputs: 3 of 4")
    crashed = Evaluation(status=Status.REJECTED, rule="library", log="a library did the work")
    drawn = result(wrong, weight=0.0, name="n=17", drawn=True)
    found = summed_up([result(correct(4.0)), drawn, result(crashed)])
    assert found.cause.startswith(f"{drawn.title} incorrect: ")
    assert (found.status, found.rule, found.timing) == (Status.INCORRECT, "", None)
    assert "case n=17 (held out):\nwrong on fresh inputs: 3 of 4" in found.log
    assert "a library did the work" in found.log
    assert found.correctness is not None
    assert math.isclose(found.correctness.normwise_error, 1e-7)


def test_the_clocks_are_those_before_the_first_case_and_after_the_last() -> None:
    first, last = ({CLOCKS_BEFORE: f"sm_mhz={n}", CLOCKS_AFTER: f"sm_mhz={n + 1}"} for n in (10, 20))
    results = [
        CaseResult(name=name, weight=1.0, held_out=False, evaluation=replace(correct(2.0), environment=facts))
        for name, facts in (("one", {"device": "x", **first}), ("two", {"device": "x", **last}))
    ]
    found = summed_up(results).environment
    assert found == {"device": "x", CLOCKS_BEFORE: "sm_mhz=10", CLOCKS_AFTER: "sm_mhz=21"}


def test_one_build_serves_all_cases_and_its_resources_are_there_once() -> None:
    functions = (FunctionResources(name="gemm", registers=168),)
    part = CaseResult(
        name="one", weight=1.0, held_out=False, evaluation=replace(correct(2.0), resources=functions)
    )
    found = summed_up([part, replace(part, name="two")])
    assert found.resources == functions
    assert [each.evaluation.resources for each in found.cases] == [(), ()]
