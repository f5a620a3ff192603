"""A verdict in words states everything in the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.app import verdict_report as report
from evaluators.records.evaluation import (
    ConfigurationResult,
    Correctness,
    Evaluation,
    Roofline,
    Status,
    Timing,
)
from evaluators.records.resources import FunctionResources

TIMING = Timing(
    kernel_ms=0.525, eager_ms=1.05, compile_ms=0.661, speedup=2.0, speedup_low=1.99, speedup_high=2.01
)
CORRECT = Evaluation(
    status=Status.CORRECT,
    timing=TIMING,
    correctness=Correctness(
        checked_calls=24,
        normwise_error=3.2e-8,
        eager_error=3.1e-8,
        distributions={"shifted": True, "large": False},
        untried={"NaN": "eager PyTorch is not right there"},
        benchmark_rules={"kernelbench": True, "kernelbench_v02": False},
        spread=2.5e-9,
    ),
    roofline=Roofline(bytes=2**31, operations=2**30, floor_ms=0.499, bound="memory"),
    own_share=0.98,
    environment={"device": "NVIDIA H200", "torch": "2.11", "isolation": "limits+landlock"},
    device_s=4.5,
    build_s=3.2,
    stages_s={"loading": 0.3, "timing": 4.2},
)


def test_everything_about_a_correct_kernel() -> None:
    assert report.verdict(CORRECT) == [
        "status:     correct",
        "time:       0.525 ms; eager 1.05 ms, torch.compile 0.661 ms",
        "speedup:    2.00x [1.99, 2.01] against eager; 1.26x against torch.compile",
        "roofline:   95% of it; floor 0.499 ms, bound by memory",
        "error:      3.2e-08; eager's own 3.1e-08 (normwise, against float64, the worst of 24 calls)",
        "inputs:     wrong on large, of 2 further input distributions",
        "repeats:    two answers to the same inputs differ by 2.5e-09 (normwise)",
        "not tried:  NaN: eager PyTorch is not right there",
        "allclose:   with eager on the problem's own inputs: kernelbench passes, kernelbench_v02 fails",
        "stages:     smoke passes; shapes and types passes; stability fails; determinism differs by 2.5e-09; "
        "edges not tried",
        "own share:  98% of the computing was the kernel's own",
        "isolation:  limits+landlock",
        "device:     NVIDIA H200, torch 2.11",
        "took:       build 3.2 s; device 4.5 s (loading 0.3, timing 4.2)",
    ]


def test_an_unknown_own_share_is_reported_if_the_policy_needs_it() -> None:
    unknown = replace(CORRECT, own_share=None)
    unknown_share = "own share:  unknown: too few samples to attribute the computing"
    assert unknown_share in report.verdict(unknown, libraries="no_library")
    assert unknown_share not in report.verdict(unknown)
    assert unknown_share not in report.verdict(CORRECT, libraries="no_library")
    failed = Evaluation(status=Status.INCORRECT, log="wrong")
    assert unknown_share not in report.verdict(failed, libraries="no_library")


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.CORRECT, Status.REJECTED, Status.OUTPACED)]
)
def test_a_failure_shows_its_log(status: Status) -> None:
    lines = report.verdict(Evaluation(status=status, log="first\nsecond\n"))
    assert lines[0] == f"status:     {status.value}"
    assert lines[-3:] == ["log:", "  first", "  second"]
    assert report.one_line(Evaluation(status=status, log="first\nsecond\n")) == f"{status.value}  first"


def test_a_rejection_names_its_rule() -> None:
    rejected = Evaluation(status=Status.REJECTED, rule="library", log="it calls cublas")
    assert "rule:       library" in report.verdict(rejected)
    assert report.one_line(rejected) == "rejected (library)  it calls cublas"


def test_each_compiled_function_has_a_line() -> None:
    functions = (
        FunctionResources(name="gemm<float>", registers=168, stack_bytes=2000, shared_bytes=512),
        FunctionResources(name="reduce", registers=32),
    )
    lines = report.verdict(replace(CORRECT, resources=functions))
    at = lines.index("own share:  98% of the computing was the kernel's own")
    assert lines[at + 1 : at + 3] == [
        "compiled:   gemm<float>: 168 registers and 2 kB stack per thread, "
        "512 B static shared memory per block",
        "compiled:   reduce: 32 registers per thread",
    ]


def test_configurations_come_before_the_log() -> None:
    table = (ConfigurationResult(values={"B": 1}, cause="incorrect: off by one"),)
    found = Evaluation(status=Status.INCORRECT, log="off by one", configurations=table)
    expected = ["configurations:", "  B=1  incorrect: off by one", "log:", "  off by one"]
    assert report.verdict(found)[-4:] == expected


def test_a_long_log_keeps_its_ends() -> None:
    lines = report.cut("\n".join(f"line {n}" for n in range(1000)))
    assert (lines[0], lines[-1]) == ("line 0", "line 999")
    assert "[… 960 lines …]" in lines
    assert len(lines) == 41


def test_a_log_cannot_move_the_cursor() -> None:
    (line,) = report.cut("\x1b[2Jstatus: correct" + "x" * 1000)
    assert "\x1b" not in line
    assert len(line) <= report.LINE_CHARACTERS + 1


def test_repeated_measurements_have_a_median_and_a_spread() -> None:
    timings = [
        replace(TIMING, speedup=s, speedup_low=s, speedup_high=s, kernel_ms=0.661 / s) for s in (1.9, 2, 2.2)
    ]
    found = [replace(CORRECT, timing=each) for each in timings]
    assert report.summary([*found, Evaluation(status=Status.TIMEOUT)]) == [
        "correct 3 of 4",
        "median 2.00x against eager, from 1.90x to 2.20x (spread 15.0%)",
        "median 2.00x against torch.compile, from 1.90x to 2.20x (spread 15.0%)",
    ]
    assert report.summary([Evaluation(status=Status.TIMEOUT)]) == ["correct 0 of 1"]


def compile_log(errors: int, notes: int = 40) -> str:
    """A traceback of a build, whose errors are far apart."""
    lines = ["Traceback (most recent call last):", *(f"  File {n}" for n in range(15))]
    for number in range(errors):
        lines += [
            f"/tmp/x/main.cpp:{number}:5: error: no {number}",
            f"{number} |   no();",
            "  |   ^~",
        ]
        lines += [f"/usr/include/a.h:{n}: note: declared here" for n in range(notes)]
    return "\n".join([*lines, "ninja: build stopped: subcommand failed."])


@pytest.mark.parametrize("errors", [1, 3, 8])
def test_a_long_log_shows_every_compile_error_with_its_source(errors: int) -> None:
    lines = compile_log(errors).splitlines()
    shown = report.cut("\n".join(lines))
    for number in range(errors):
        place = shown.index(f"/tmp/x/main.cpp:{number}:5: error: no {number}")
        assert shown[place + 1 : place + 3] == [f"{number} |   no();", "  |   ^~"]
    assert (shown[0], shown[-1]) == (
        compile_log(1).splitlines()[0],
        "ninja: build stopped: subcommand failed.",
    )
    left_out = sum(int(line.split()[1]) for line in shown if line.startswith("[…"))
    kept = sum(not line.startswith("[…") for line in shown)
    assert left_out + kept == len(lines)


def test_a_log_with_very_many_errors_stays_short() -> None:
    shown = report.cut(compile_log(500, notes=0))
    assert len(shown) < 90
    assert "error: no 0" in "\n".join(shown)


@pytest.mark.parametrize(
    "error",
    [
        'kernel.cu(12): error: identifier "x" is undefined',
        "ptxas fatal   : Unresolved extern function 'f'",
        "nvcc fatal   : Unknown option",
        "/usr/bin/ld: main.o: undefined reference to `f'",
        "main.cpp:3:1: fatal error: cute/tensor.hpp: No such file or directory",
    ],
)
def test_the_errors_of_all_compilers_are_shown(error: str) -> None:
    lines = [*(f"before {n}" for n in range(60)), error, *(f"after {n}" for n in range(60))]
    assert error in report.cut("\n".join(lines))
