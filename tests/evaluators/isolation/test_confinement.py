"""The sandbox's isolation levels, resource limits and environment variables."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from evaluators.isolation import confinement, namespaces
from tests.evaluators.conftest import LEVELS
from tests.evaluators.isolation.confined import SECRET, attempt, confined, mechanisms


@pytest.mark.slow
def test_some_level_is_reached_and_named() -> None:
    assert mechanisms()[0] == "limits"
    assert set(mechanisms()) <= {"limits", "landlock", "seccomp", "namespaces"}
    assert ("namespaces" in mechanisms()) == namespaces.has_namespaces()


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_limits_on_core_dumps_and_files(scratch: Path, isolate: bool) -> None:
    def body() -> list[Any]:
        with open(scratch / "large", "wb") as file:
            grown = attempt(lambda: os.ftruncate(file.fileno(), confinement.MAX_FILE_BYTES + 1))
            allowed = attempt(lambda: os.ftruncate(file.fileno(), confinement.MAX_FILE_BYTES))
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))
        except ValueError as error:
            refused = str(error)
        return [grown, allowed, resource.getrlimit(resource.RLIMIT_CORE), refused]

    found, _ = confined(body, scratch, isolate=isolate)
    assert found == ["EFBIG", "done", [0, 0], "not allowed to raise maximum limit"]


@pytest.mark.slow
def test_a_process_restricted_to_some_cores_cannot_use_others(scratch: Path) -> None:
    every = sorted(os.sched_getaffinity(0))

    def body() -> list[object]:
        mine = sorted(os.sched_getaffinity(0))
        try:
            os.sched_setaffinity(0, every)
        except PermissionError:
            return [mine, "refused"]
        return [mine, sorted(os.sched_getaffinity(0))]

    (mine, then), reached = confined(body, scratch, cores=(every[-1],))
    assert mine == [every[-1]]
    assert then == ("refused" if "seccomp" in reached else every)
    assert confined(body, scratch)[0] == [every, every]


@pytest.mark.slow
@pytest.mark.parametrize("isolate", LEVELS)
def test_a_busy_loop_ends_at_its_limit_of_cpu_seconds(scratch: Path, isolate: bool) -> None:
    def child(level: str) -> None:
        confinement.confine(scratch, cpu_s=1, max_processes=4096)
        while True:
            pass

    pid = namespaces.spawn(child, isolate=isolate)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL)


@pytest.mark.parametrize(
    ("reached", "demanded", "lacking"),
    [
        ("limits", "limits", []),
        ("limits", "seccomp", ["landlock", "seccomp"]),
        ("limits+landlock+seccomp+namespaces", "namespaces", []),
        ("limits+namespaces", "namespaces", ["landlock", "seccomp"]),
    ],
)
def test_a_level_demands_all_mechanisms_up_to_it(reached: str, demanded: str, lacking: list[str]) -> None:
    assert confinement.missing(reached, demanded) == lacking


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of limits, landlock"):
        confinement.missing("limits", "everything")


def test_a_clean_environment_has_only_listed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "LD_PRELOAD",
        "X",
    ):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")  # the baseline obeys the user's settings for PyTorch
    clean = confinement.clean_environment()
    assert SECRET not in clean.values()
    assert clean["PATH"] == "/bin"
    assert clean["ATEN_CPU_CAPABILITY"] == "avx2"
    assert set(clean) <= {*confinement.SAFE_VARIABLES, "PYTHONDONTWRITEBYTECODE"}


def test_caches_and_homes_lie_in_the_scratch_folder(scratch: Path) -> None:
    clean = confinement.clean_environment(scratch)
    assert set(confinement.scratch_variables(scratch)) <= set(clean)
    assert clean["HOME"] == clean["TMPDIR"] == str(scratch)
    assert all(Path(v).is_relative_to(scratch) for v in confinement.scratch_variables(scratch).values())


def test_a_mechanism_that_is_missing_has_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "+".join(confinement.LEVELS)
    assert confinement.why_missing(full) == ""
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    (tmp_path / "landlockpy.py").write_text("raise ImportError('No module named landlockpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    why = confinement.why_missing.__wrapped__("limits+namespaces")
    assert why == "no landlock: No module named landlockpy; no seccomp: Unable to find libseccomp"
