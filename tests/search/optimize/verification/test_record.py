"""Whether the outputs are the same, how much faster the model is, and which kernel is to blame."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search.optimize.verification.errors import allowed_error, error_of, find_guilty
from search.optimize.verification.launcher import TUNED, WAYS, ways_of
from search.optimize.verification.record import GrowthStep, ModelCheck, Verification
from search.optimize.verification.summary import report_lines, summary_lines

INF, NAN = math.inf, math.nan


def test_an_error_is_relative_and_the_largest_counts() -> None:
    ones, tens = torch.ones(4), torch.full((4,), 10.0)
    assert error_of([ones * 1.1, tens], [ones, tens]) == pytest.approx(0.1)
    assert error_of([torch.tensor([1, 2])], [torch.tensor([1, 2])]) == 0
    assert error_of([torch.zeros(2)], [torch.zeros(2)]) == 0


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([torch.ones(2)], []),
        ([torch.ones(2)], [torch.ones(3)]),
        ([torch.tensor([1, 2])], [torch.tensor([1, 3])]),
        ([torch.tensor([1.0, NAN])], [torch.tensor([1.0, 2.0])]),
        ([torch.tensor([1.0, INF])], [torch.tensor([1.0, -INF])]),
        ([torch.tensor([1e-3])], [torch.tensor([0.0])]),
    ],
)
def test_incomparable_outputs_have_an_infinite_error(
    found: list[torch.Tensor], wanted: list[torch.Tensor]
) -> None:
    assert error_of(found, wanted) == INF


def test_equal_non_finite_values_are_no_error() -> None:
    tensor = torch.tensor([1.0, INF, -INF, NAN])
    assert error_of([tensor], [tensor.clone()]) == 0


def test_the_allowed_error_follows_eagers_error() -> None:
    assert allowed_error(1e-3, 1e-7) == pytest.approx(4e-3)
    assert allowed_error(None, 1e-7) == allowed_error(0.0, 1e-7) == pytest.approx(16e-7)


@pytest.mark.parametrize("culprits", [{"b"}, {"a", "e"}, {"a", "b", "c", "d", "e"}, set()])
def test_bisection_finds_each_kernel_that_fails_alone(culprits: set[str]) -> None:
    asked: list[Sequence[str]] = []

    def fails(some: Sequence[str]) -> bool:
        asked.append(some)
        return bool(culprits & {*some})

    assert {*find_guilty("abcde", fails)} == culprits
    assert len(asked) < 8 * (1 + len(culprits))


def test_one_of_two_kernels_that_fail_together_is_removed() -> None:
    assert len(find_guilty("abcd", lambda some: {"a", "d"} <= {*some})) == 1


def made(error: float = 1e-7) -> Verification:
    session = {"eager": [2.0, 2.2, 2.4, 2.0, 2.1, 2.2], "optimized": [1.0, 1.1, 1.2, 1.0, 1.05, 1.1]}
    other = {"eager": [4.0] * 6, "max-autotune": [1.0] * 6}
    return Verification(
        checks=[ModelCheck(seed=0, error=error, eager_error=1e-7, allowed=4e-7, tokens=1.0)],
        calls={"1_mm": 3},
        left_out={"2_softmax": "the outputs differ with it"},
        growth=[GrowthStep(kernel="1_mm", site="h.0", error=0.1)],
        sessions=[{"": session}, {"": other}],
        failed={"compile": "RuntimeError: no"},
    )


def test_speedups_come_from_one_session() -> None:
    found = made()
    assert found.ways == ["eager", "optimized", "max-autotune"]
    assert found.speedup("optimized") == pytest.approx((2, 2, 2))
    assert found.speedup("max-autotune") == (4, 4, 4)
    assert found.passes and not made(1e-6).passes
    assert not Verification(checks=[], calls={}).passes, "nothing was compared"


def at_two_shapes() -> Verification:
    few, many = {"eager": [1.0] * 6, "optimized": [2.0] * 6}, {"eager": [10.0] * 6, "optimized": [2.0] * 6}
    return replace(made(), shapes={"few": 0.75, "many": 0.25}, sessions=[{"few": few, "many": many}])


def test_the_speedup_over_shapes_is_that_of_the_mean_time(tmp_path: Path) -> None:
    found = at_two_shapes()
    assert found.speedup("optimized", shape="few")[0] == 0.5
    assert found.speedup("optimized", shape="many")[0] == 5.0
    assert found.ms("eager") == 3.25 and found.speedup("optimized")[0] == pytest.approx(3.25 / 2)
    assert "NOT significantly faster than the original at few" in summary_lines(found)
    lines = report_lines(found)
    assert "at few, 75% of the calls:" in lines and "weighted average:" in lines
    found.write(tmp_path / "verification.json")
    assert Verification.read(tmp_path / "verification.json") == found


def test_the_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    made().write(tmp_path / "verification.json")
    fields = json.loads((tmp_path / "verification.json").read_text())
    fields["sessions"] = [each[""] for each in fields["sessions"]]
    del fields["shapes"]
    for each in fields["checks"]:
        del each["shape"]
    (tmp_path / "verification.json").write_text(json.dumps(fields))
    assert Verification.read(tmp_path / "verification.json") == made()


def test_a_model_that_is_not_faster_is_reported() -> None:
    slow = replace(made(), sessions=[{"": {"eager": [1.0] * 6, "optimized": [1.1] * 6}}])
    assert made().is_faster and not slow.is_faster
    assert any(line.startswith("NOT significantly faster") for line in summary_lines(slow))
    assert not any(line.startswith("NOT significantly faster") for line in summary_lines(made()))


@pytest.mark.parametrize(("ms", "as_graph", "faster"), [(0.4, True, True), (0.99, False, False)])
def test_a_cuda_graph_is_delivered_where_it_is_faster(ms: float, as_graph: bool, faster: bool) -> None:
    times = {"eager": [1.0] * 6, "optimized": [0.99, 1.02] * 3, "optimized graph": [ms] * 6}
    found = replace(made(), sessions=[{"": times}])
    assert (found.as_graph, found.is_faster) == (as_graph, faster)
    assert ("it runs as a CUDA graph, which is faster" in summary_lines(found)) == as_graph
    assert any(line.startswith("NOT significantly faster") for line in summary_lines(found)) != faster


@pytest.mark.parametrize(
    ("ms", "pays", "said"),
    [
        (
            0.7,
            True,
            "kernels in compiled code: norm 1.50x [1.40, 1.60]; 1 no faster than the compiler's code",
        ),
        (0.9, False, "in compiled code the original forward runs, because it is faster there"),
    ],
)
def test_compiled_code_runs_the_kernels_that_are_faster_there(ms: float, pays: bool, said: str) -> None:
    times = {"eager": [1.0] * 6, "optimized": [0.9] * 6, "compile": [0.8] * 6, "optimized compile": [ms] * 6}
    over = {"norm": (1.5, 1.4, 1.6), "gelu": (1.2, 0.9, 1.4)}
    found = replace(made(), sessions=[{"": times}], over_compiled=over)
    assert found.in_compiled == ["norm"] and found.compiled_pays == pays
    assert said in summary_lines(found)
    assert said in summary_lines(replace(found, over_compiled={})) or pays, "without any kernel, too"
    assert found.fastest == ("optimized compile" if pays else "compile")
    assert f"the fastest way: {WAYS[found.fastest]}" in report_lines(found)


def test_compiled_code_that_was_not_timed_keeps_all_kernels() -> None:
    assert made().in_compiled is None and not any(
        "in compiled code" in line for line in summary_lines(made())
    )


def test_cuda_graphs_are_for_gpus() -> None:
    compiled = ["rewritten compile", "compile", "optimized compile"]
    assert ways_of("default", "cpu") == ["eager", "rewritten", "optimized", *compiled]
    on_gpu = [*ways_of("none", "cuda"), *compiled]
    on_gpu += ["reduce-overhead", "optimized reduce-overhead"]
    assert ways_of("all", "cuda") == [*on_gpu, TUNED]


def test_the_record_is_read_back(tmp_path: Path) -> None:
    made().write(tmp_path / "verification.json")
    assert Verification.read(tmp_path / "verification.json") == made()


def test_the_report_has_a_line_per_finding() -> None:
    lines = report_lines(made())
    assert lines[0].startswith("same outputs on 1 sets") and "most likely tokens: 100.00%" in lines[1]
    assert any(line.startswith("with the kernels") and "2.000x" in line for line in lines)
    assert any("removed: 2_softmax" in line for line in lines)
    assert lines[-1].endswith("failed: RuntimeError: no")
    assert report_lines(made(1e-6))[0].startswith("DIFFERENT outputs")


def test_kernels_are_off_where_they_slow_the_model_down() -> None:
    in_place = {
        "optimized": {"norm": (0.8, 0.7, 0.9), "gelu": (0.5, 0.4, 0.6), "mlp": (0.99, 0.98, 0.995)},
        "optimized graph": {"norm": (1.2, 1.1, 1.3), "gelu": (0.6, 0.5, 0.7)},
    }
    calls = {"norm": 2, "gelu": 1, "mlp": 1}
    found = replace(made(), calls=calls, left_out={}, in_place=in_place).without_useless
    assert found.calls == {"norm": 2, "mlp": 1}, "mlp slows the model by less than LEAST_LOSS"
    assert found.left_out["gelu"].endswith("it replaces: 0.50x [0.40, 0.60], 0.60x [0.50, 0.70]")
    assert found.slower_in == {"eager": ["norm"], "graph": []}
    line = "without a CUDA graph the operators run instead of norm 0.80x [0.70, 0.90]"
    assert line in summary_lines(found)
    compiled = replace(
        made(), calls=calls, left_out={}, in_place=in_place, over_compiled={"gelu": (2, 1.9, 2.1)}
    )
    assert "gelu" not in compiled.without_useless.left_out, "it is faster in compiled code"


def at_a_gain(*, kernels: bool) -> Verification:
    """A model whose rewritten forward is 1.25 times as fast as eager, and its kernels 2 times as that."""
    times = {"eager": [10.0] * 6, "rewritten": [8.0] * 6, "optimized": [4.0] * 6, "compile": [6.0] * 6}
    times |= {"rewritten compile": [5.0] * 6} if kernels else {}
    times |= {"optimized compile": [4.0 if kernels else 5.0] * 6}
    over = {"1_mm": (1.5, 1.4, 1.6) if kernels else (0.9, 0.8, 0.95)}
    return replace(made(), left_out={}, failed={}, sessions=[{"": times}], over_compiled=over)


def test_only_what_is_theirs_counts_as_the_kernels_gain() -> None:
    lines = report_lines(at_a_gain(kernels=True))
    assert (
        "with the kernels: 2.50x [2.50, 2.50] over eager, of which 2.00x [2.00, 2.00] is the kernels' and "
        "1.25x [1.25, 1.25] the rewritten forward's"
    ) in lines
    assert (
        "with the kernels, torch.compile: 1.50x [1.50, 1.50] over torch.compile, of which 1.25x [1.25, 1.25] "
        "is the kernels' and 1.20x [1.20, 1.20] the rewritten forward's"
    ) in lines
    assert any(line.startswith("rewritten forward, no kernel") for line in lines)


def test_a_gain_in_compiled_code_without_kernels_is_not_theirs() -> None:
    found = at_a_gain(kernels=False)
    lines = report_lines(found)
    assert (
        "rewritten forward, torch.compile: no kernel runs; 1.20x [1.20, 1.20] over torch.compile is the "
        "rewritten forward's"
    ) in lines
    assert not any("with the kernels, torch.compile" in line for line in lines)
    assert "in compiled code no kernel runs; 1 no faster than the compiler's code" in lines
    assert found.fastest == "optimized", "the rewritten forward alone is not delivered"


def test_compiled_code_with_the_original_forward_has_no_share() -> None:
    found = at_a_gain(kernels=True)
    [session] = found.sessions
    slow = replace(found, sessions=[{"": {**session[""], "optimized compile": [9.0] * 6}}])
    assert not slow.compiled_pays
    assert not any("over torch.compile" in line for line in report_lines(slow))


def test_without_any_kernel_everything_is_the_rewritten_forwards() -> None:
    times = {"eager": [10.0] * 6, "optimized": [8.0] * 6}
    found = replace(made(), calls={}, left_out={}, failed={}, sessions=[{"": times}])
    lines = report_lines(found)
    assert (
        "rewritten forward: no kernel runs; 1.25x [1.25, 1.25] over eager is the rewritten forward's" in lines
    )
    assert not any("with the kernels" in line for line in lines)


def test_a_record_without_the_rewritten_forward_claims_nothing() -> None:
    """One of an earlier version."""
    assert not any("the rewritten forward's" in line for line in report_lines(made()))
