"""Whose a device's kernels are, and what samples of threads say about who does the work."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path

import pytest

from evaluators.judge.attribution.stack_samples import (
    ENOUGH_SAMPLES,
    FEWEST_SAMPLES,
    GAP_MS,
    MOST_SAMPLES,
    PLAIN_SAMPLES,
    StackSamples,
)
from evaluators.judge.attribution.vendor_kernels import VendorKernels, _mark
from evaluators.judge.attribution.work_share import OWN_SHARE, not_its_own, share_of_kernels
from evaluators.system import process_inspection, process_tree

TANH = "_ZN2at6native11tanh_kernelIfEEvPT_"
COPY = "_ZN2at6native18direct_copy_kernelIfEEvPT_"
LIBRARIES = VendorKernels(frozenset(map(_mark, (TANH, COPY))))
BY = "of the computing was done by a library: at::native::tanh_kernel"
SCRATCH = "/scratch/kernel"
OWN, TORCH, NEUTRAL = f"{SCRATCH}/own.so", "/site-packages/torch/lib/libtorch_cpu.so", "/usr/lib/libc.so.6"


@pytest.mark.parametrize(
    ("kernels", "share", "words"),
    [
        ([("own", 95), (TANH, 5)], 0.95, None),
        ([("own", 10), (COPY, 90)], 1.0, None),
        ([("direct_copy_kernel", 10)], 1.0, None),
        ([("own", 5), (TANH, 95)], 0.05, f"95% {BY}"),
        ([(TANH, 5)], 0.0, "it ran no kernel of its own but a library's: at::native::tanh_kernel"),
        ([(COPY, 5)], None, "it ran no kernel of its own"),
        ([], None, "it ran no kernel of its own"),
    ],
)  # fmt: skip
def test_a_gpus_kernels(kernels: list[tuple[str, int]], share: float | None, words: str | None) -> None:
    seen = share_of_kernels(kernels, LIBRARIES, "def own(x): ...")
    assert seen.own_share == share
    assert not_its_own(seen) == words


def test_an_own_share_at_the_limit_suffices() -> None:
    seen = share_of_kernels([("own", 90), (TANH, 10)], LIBRARIES, "")
    assert seen.own_share == OWN_SHARE
    assert not_its_own(seen) is None


def looked(*found: tuple[int, set[str]]) -> StackSamples:
    """Stack samples after these samples, which found threads in these files."""
    stack_samples = StackSamples(1, SCRATCH)
    for count, paths in found:
        for _ in range(count):
            stack_samples._count(paths)
    return stack_samples


@pytest.mark.parametrize(
    ("paths", "share"),
    [
        ({OWN}, 1.0),
        ({OWN, NEUTRAL}, 1.0),
        ({TORCH}, 0.0),
        ({OWN, TORCH}, 0.0),
        ({""}, 0.0),
        ({"/memfd:code (deleted)"}, 0.0),
        ({f"{SCRATCH}/inductor/own.so"}, 0.0),
        ({f"{SCRATCH}s/own.so"}, 0.0),
        ({NEUTRAL, "[vdso]"}, None),
        ({"/opt/python/bin/python3.12", "/x/lib-dynload/_json.so", "/x/libgomp-a34b3233.so.1"}, None),
        (set(), None),
    ],
)
def test_a_sample_finds_whose_code_runs(paths: set[str], share: float | None) -> None:
    assert looked((FEWEST_SAMPLES, paths)).own_share == share


def test_too_few_samples_give_no_share() -> None:
    assert looked((FEWEST_SAMPLES - 1, {OWN}), (100, {NEUTRAL})).own_share is None


@pytest.mark.parametrize(
    ("found", "decided", "rejected"),
    [
        ([(PLAIN_SAMPLES, {TORCH})], True, True),
        ([(PLAIN_SAMPLES - 1, {TORCH})], False, False),
        ([(PLAIN_SAMPLES - 1, {TORCH}), (1, {OWN})], True, False),
        ([(PLAIN_SAMPLES, {TORCH}), (MOST_SAMPLES, {NEUTRAL})], True, True),
        ([(ENOUGH_SAMPLES, {OWN})], True, False),
        ([(ENOUGH_SAMPLES - 1, {OWN})], False, False),
        ([(MOST_SAMPLES, {NEUTRAL})], True, False),
        ([(MOST_SAMPLES - 1, {NEUTRAL})], False, False),
        ([], False, False),
    ],
)
def test_only_a_kernel_that_plainly_does_nothing_itself_is_rejected(
    found: list[tuple[int, set[str]]], decided: bool, rejected: bool
) -> None:
    stack_samples = looked(*found)
    assert stack_samples.decided is decided
    assert (stack_samples.reason() is not None) is rejected


def test_the_reason_names_the_library() -> None:
    reason = looked((PLAIN_SAMPLES, {TORCH}), (3, {""})).reason()
    assert reason is not None
    assert "never its own code: libtorch_cpu.so, generated code" in reason


def test_samples_are_some_time_apart() -> None:
    delays = {StackSamples(1, SCRATCH).delay_s() for _ in range(100)}
    assert len(delays) > 90
    assert min(delays) >= GAP_MS / 1e3


def test_a_kernel_that_has_not_run_since_the_last_sample_is_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine it waits for a core and is found where it was before."""
    for name in ("stop_all", "stop_tree", "signal_all"):
        monkeypatch.setattr(process_tree, name, lambda *_: {1})
    stack_samples, counts = looked(), []
    monkeypatch.setattr(stack_samples, "_paths", lambda pid: [TORCH])
    for ran_ms in (1.1, 1.1, 1.5, 2.0, 2.2, 3.0, 9.0):
        monkeypatch.setattr(
            process_inspection, "run_ns", lambda family, ran_ms=ran_ms: {1: int(ran_ms * 1e6)}
        )
        stack_samples.take([1])
        counts.append(stack_samples.count)
    assert counts == [1, 1, 1, 1, 2, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(not process_inspection.can_peek(), reason="this machine lets nobody look into a child")
def test_a_child_is_seen_in_its_own_code(tmp_path: Path) -> None:
    code = "int write(int, char *, long);\n"
    code += 'void spin(int begun) { write(begun, "!", 1); for (volatile long n = 0;; n++) {} }'
    (tmp_path / "own.c").write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "own.c", "-o", tmp_path / "own.so"], check=True)
    spin = ctypes.CDLL(str(tmp_path / "own.so")).spin
    begins, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        spin(begun)
    os.read(begins, 1)
    stack_samples = StackSamples(pid, str(tmp_path))
    try:
        deadline = time.monotonic() + 30
        while stack_samples.count < FEWEST_SAMPLES and time.monotonic() < deadline:
            time.sleep(stack_samples.delay_s())
            stack_samples.take([pid])
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    share = stack_samples.own_share
    assert share is not None
    assert share > 0.5
