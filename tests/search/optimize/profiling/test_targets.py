"""Operators and chains with their floors and library kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.evaluation import Timing as EvaluationTiming
from evaluators.records.problem import Kernel, Problem
from evaluators.suites.traced.grammar import write_arguments
from kernel_library.catalogue.entry import Entry, Measurement
from search.optimize.profiling.profile import calls_of
from search.optimize.profiling.record import Bound, Profile
from search.optimize.profiling.recording import RecordedRun, record
from search.optimize.profiling.targets import (
    Machine,
    chains_of,
    common_site,
    family_name,
    floor_of,
    merge_shapes,
    of_both_passes,
    operators_of,
)
from search.optimize.profiling.timing import ProfileTiming
from tests.search.optimize.example_models import PEAKS, Function, Mlp, loaded, rand

MACHINE = Machine(peaks=PEAKS, architecture="cpu")


class Two(nn.Module):
    """The same MLP at two places, once with half of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.h[0](x), self.h[1](x), self.h[1](x[:2])


def test_a_profile_has_the_calls_of_the_run() -> None:
    run = record(loaded(Two(), rand(4, 8)))
    operators = tuple(operators_of(run, timed(run), MACHINE))
    profile = Profile(
        model="two",
        device="cpu",
        device_name="a CPU",
        dtype="float32",
        backward=False,
        torch="2",
        iterations=1,
        wall_ms=1.0,
        kernels=0,
        operators=operators,
    )
    made = Counter(f"{call.operator} {call.arguments}" for call in run.calls)
    written = {f"{each.operator} {write_arguments(each)}": each.count for each in calls_of(profile)}
    assert written == made and sum(made.values()) == len(run.calls)


def test_targets_of_several_shapes_are_averaged() -> None:
    runs = [record(loaded(Mlp(), rand(rows, 8))) for rows in (4, 6)]
    found = [
        operators_of(run, timed(run, call_ms=ms), MACHINE) for run, ms in zip(runs, (1.0, 5.0), strict=True)
    ]
    addmm, gelu = (
        next(each for each in merge_shapes(found, [0.75, 0.25]) if each.name == name)
        for name in ("addmm", "gelu")
    )
    assert addmm.time_ms == 2 * (0.75 * 1.0 + 0.25 * 5.0) and addmm.calls == 4
    assert [(each.shape, each.time_ms) for each in gelu.cases] == [(1, 1.25), (0, 0.75)]
    assert gelu.floor_ms == pytest.approx(
        sum(
            w * t.floor_ms
            for w, own in zip((0.75, 0.25), found, strict=True)
            for t in own
            if t.name == "gelu"
        )
    )
    assert sum(each.time_ms for each in gelu.sites.values()) == gelu.time_ms
    assert merge_shapes(found[:1], [1.0]) == found[0], "one shape is a list of one"


def timed(run: RecordedRun, *, call_ms: float = 1.0, quickest_ms: float = 0.0) -> ProfileTiming:
    return ProfileTiming(
        wall_ms=100.0,
        call_ms=[call_ms for _ in run.calls],
        kernels=0,
        quickest_ms=quickest_ms,
        other_ms=0.0,
        alike=1.0,
    )


def test_an_operator_has_a_case_for_each_set_of_arguments() -> None:
    run = record(loaded(Two(), rand(4, 8)))
    found = {each.name: each for each in operators_of(run, timed(run), MACHINE)}
    assert (found["addmm"].calls, found["addmm"].time_ms) == (6, 6.0)
    calls = {each.arguments[0].split(", T(")[1]: each.calls for each in found["addmm"].cases}
    assert calls == {"[4, 8], f32)": 2, "[4, 32], f32)": 2, "[2, 8], f32)": 1, "[2, 32], f32)": 1}
    sites = {site: each.calls for site, each in found["addmm"].sites.items()}
    assert sites == {"h.0.fc": 1, "h.0.proj": 1, "h.1.fc": 2, "h.1.proj": 2}
    assert found["gelu"].kind == "light" and found["addmm"].kind == "contraction"


def test_a_chain_is_one_target_with_its_occurrences() -> None:
    run = record(loaded(Two(), rand(4, 8)))
    found = {each.name: each for each in chains_of(run, timed(run), MACHINE)}
    assert set(found) == {"addmm + gelu", "addmm + gelu + addmm"}
    whole = found["addmm + gelu + addmm"]
    assert (whole.calls, whole.time_ms, whole.kind) == (3, 9.0, "chain")
    assert [(each.calls, len(each.arguments)) for each in whole.cases] == [(2, 3), (1, 3)]
    assert {site: each.calls for site, each in whole.sites.items()} == {"h.0": 1, "h.1": 2}


def test_the_floor_is_the_largest_limit() -> None:
    # 1 GB/s, 10 billion operations per second
    def floor(moved: int, operations: int, reached_ms: float = 99.0) -> tuple[float, Bound]:
        return floor_of(moved, operations, "float32", PEAKS, quickest_ms=0.1, reached_ms=reached_ms)

    assert floor(10**6, 0) == (pytest.approx(1.0), Bound.MEMORY)
    assert floor(10**6, 10**8) == (pytest.approx(10.0), Bound.COMPUTE)
    assert floor(10**3, 10**4) == (0.1, Bound.LAUNCH)
    assert floor(10**6, 10**8, reached_ms=4.0) == (4.0, Bound.COMPUTE)  # faster than the peak
    run = record(loaded(Mlp(), rand(4, 8)))
    by_name = {each.name: each for each in operators_of(run, timed(run, quickest_ms=1e-6), MACHINE)}
    assert by_name["gelu"].floor_ms == pytest.approx(2 * 4 * 4 * 32 / 1e9 * 1e3)
    assert by_name["gelu"].roofline_factor == pytest.approx(1 / by_name["gelu"].floor_ms)


def test_a_chain_at_the_peak_can_gain_its_elementwise_part() -> None:
    run = record(loaded(Mlp(), rand(4, 8)))
    found = {each.name: each for each in chains_of(run, timed(run, call_ms=1e-6), MACHINE)}
    assert found["addmm + gelu"].cases[0].bound is Bound.MEMORY
    slow = replace(PEAKS, bytes_per_s=1e12, operations_per_s={"float32": 1e6})
    found = {each.name: each for each in chains_of(run, timed(run), replace(MACHINE, peaks=slow))}
    assert found["addmm + gelu"].roofline_factor == pytest.approx(2)  # gelu is free
    assert found["addmm + gelu + addmm"].roofline_factor == pytest.approx(1.5)


def entry(op: str, speedup: float, rows: int, *, device: str = "cpu", dtype: str = "float32") -> Entry:
    source = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"
    timing = EvaluationTiming(
        kernel_ms=1.0,
        eager_ms=speedup,
        speedup=speedup,
        speedup_low=speedup,
        speedup_high=speedup,
    )
    return Entry(
        kernel=Kernel(source=f"# {op} {speedup}", language="cpp"),
        measurements=(
            Measurement(
                problem=Problem(name=f"level1/{op}", source=source, device=device, dtype=dtype),
                evaluation=Evaluation(
                    status=Status.CORRECT, timing=timing, environment={"architecture": "9.0"}
                ),
                inputs=(f"{rows}x8",),
            ),
        ),
        name=f"{op}/{speedup}",
        op=op,
        dtypes=(dtype,),
    )


def test_the_library_is_asked_for_the_family_on_this_machine() -> None:
    entries = [
        *(entry("softmax", 1.5, 4), entry("softmax", 2.5, 4), entry("softmax", 9.0, 4, device="cuda")),
        *(entry("softmax", 8.0, 4, dtype="bfloat16"), entry("matmul", 7.0, 4)),
    ]
    machine = replace(MACHINE, entries=entries)
    run = record(loaded(Function(lambda x: torch.softmax(x, -1) * x), rand(4, 8)))
    found = {each.name: each.library for each in operators_of(run, timed(run), machine)}
    softmax = found["_softmax"]
    assert softmax is not None
    assert (softmax.entry, softmax.speedup, softmax.measured_at) == ("softmax/2.5", 2.5, "level1/softmax 4x8")
    assert found["mul.Tensor"] is None
    [chain] = chains_of(run, timed(run), machine)
    assert chain.name == "_softmax + mul.Tensor" and chain.library is None  # the kernel would leave mul out


def test_a_chain_that_is_a_family_has_the_librarys_kernel() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    run = record(loaded(Function(norm), rand(4, 8)))
    [chain] = chains_of(run, timed(run), replace(MACHINE, entries=[entry("rmsnorm", 3.0, 4)]))
    assert chain.library is not None and chain.library.entry == "rmsnorm/3.0"


def test_names_of_families() -> None:
    def called(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
        return [family_name(call) for call in record(loaded(module, *inputs)).calls]

    assert called(nn.Conv2d(3, 4, 3), rand(1, 3, 8, 8)) == ["conv2d"]
    assert called(nn.ConvTranspose1d(3, 4, 3), rand(1, 3, 8)) == ["conv_transpose1d"]
    attend = Function(nn.functional.scaled_dot_product_attention)
    assert called(attend, *[rand(1, 2, 16, 8)] * 3) == ["attention"]


def test_the_site_of_several_calls_is_the_module_that_they_share() -> None:
    assert common_site(["h.0.mlp.fc", "h.0.mlp", "h.0.mlp.proj"]) == "h.0.mlp"
    assert common_site(["a.b", "c"]) == common_site(["", "a"]) == ""


def test_a_target_for_training_has_the_time_of_both_passes() -> None:
    run = record(loaded(Mlp().train(), rand(4, 8), backward=True))
    found = {each.name: each for each in of_both_passes(run, timed(run, quickest_ms=1e-6), MACHINE)}
    forward = {each.name: each for each in operators_of(run, timed(run, quickest_ms=1e-6), MACHINE)}
    assert {"gelu", "addmm", "addmm + gelu"} <= {*found} and "gelu_backward" not in found
    assert (found["gelu"].calls, found["gelu"].time_ms) == (1, 2.0), "forward and gelu_backward"
    assert found["gelu"].floor_ms == pytest.approx(2 * forward["gelu"].floor_ms)
    assert found["addmm"].calls == 2 and found["addmm"].time_ms > 2 * 2
    own, both = (
        sum(case.operations * case.calls for case in each["addmm"].cases) for each in (forward, found)
    )
    assert both == own + sum(call.operations for call in run.calls if call.name == "mm")
    chain = found["addmm + gelu"]
    assert chain.time_ms == pytest.approx(found["gelu"].time_ms + found["addmm"].cases[0].time_ms, abs=3.0)
