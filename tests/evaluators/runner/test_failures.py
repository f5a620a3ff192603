"""What a runner reports about a candidate that failed."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from evaluators.base.cause import cause_of
from evaluators.records.problem import Problem
from evaluators.runner import failures
from evaluators.runner.messages import Import, Load, Order, Phase, RunCalls
from evaluators.runner.shared_buffers import Layout

PROBLEM = Problem(name="file/double", source="class Model: ...")
NOTHING = Layout(slots=(), call_bytes=512, calls=1)
IMPORT = Import(problem=PROBLEM, architecture="")
LOAD = Load(problem=PROBLEM, seed=1, buffers={}, arguments=[], inputs=NOTHING, outputs=NOTHING)
RUN = RunCalls(calls=[0])


class AcceleratorError(Exception):
    """Looks like torch's by its name."""


class TritonError(Exception):
    """Looks like Triton's by its module."""

    __module__ = "triton.compiler.errors"


@pytest.mark.parametrize(
    ("order", "error", "phase"),
    [
        (IMPORT, ValueError("seven"), Phase.IMPORT),
        (LOAD, ValueError("seven"), Phase.RUN),
        (RUN, ValueError("seven"), Phase.RUN),
        (RUN, failures.WrongOutput("two outputs"), Phase.OUTPUT),
        (RUN, TritonError("no such name"), Phase.IMPORT),
        (LOAD, TritonError("no such name"), Phase.RUN),
        (RUN, AcceleratorError("an illegal access"), Phase.DEVICE),
        (RUN, RuntimeError("CUDA error: an illegal access"), Phase.DEVICE),
        (RUN, KeyboardInterrupt(), Phase.RUN),
    ],
)
def test_the_phase_of_a_failure(order: Order, error: BaseException, phase: Phase) -> None:
    found = failures.failure(order, error)
    assert (found.phase, found.compiler) == (phase, False)
    assert str(error) in found.error


def test_a_build_that_fails_is_reported_in_the_compilers_words() -> None:
    said = "/tmp/s/main.cpp:6:5: error: ‘foo’ was not declared\n    6 |     foo(x);"
    output = f"Error building extension 's': [1/2] c++ -c /tmp/s/main.cpp\n{said}\nninja: build stopped."
    try:
        raise RuntimeError(output) from ValueError("ninja returned 1")
    except RuntimeError as error:
        found = failures.failure(IMPORT, error)
    assert found.error == f"Error building extension 's':\n{said.replace('/tmp/s/', '')}"
    assert cause_of(found.error) == "main.cpp:6:5: error: ‘foo’ was not declared"


def test_a_long_log_has_its_ends() -> None:
    found = failures.failure(RUN, ValueError("a" * 20000 + "z"))
    assert len(found.error) < 1.1 * failures.ERROR_CHARACTERS
    assert "[…]" in found.error
    assert found.error.rstrip().endswith("z")


def from_none(inner: Exception) -> Exception:
    """As torch's compiler hides the errors of its parts."""
    try:
        try:
            raise inner
        except Exception:
            raise RuntimeError("the backend has failed") from None
    except RuntimeError as error:
        return error


class LoweringError(Exception):
    """Looks like the compiler's by its module."""

    __module__ = "torch._inductor.exc"


def missing() -> Exception:
    try:
        import torch._inductor.nothing_of_this_name  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        return error
    raise AssertionError


def attribute(module: Any) -> Exception:
    try:
        module.nothing_of_this_name  # noqa: B018
    except AttributeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (ImportError("no", name="torch._inductor.config"), True),
        (from_none(ImportError("no", name="torch._inductor")), True),
        (attribute(ModuleType("torch._inductor")), True),
        (LoweringError("no"), True),
        (ImportError("no", name="numpy"), False),
        (ImportError("torch._inductor is only spoken of"), False),
        (attribute(ModuleType("torch")), False),
        (ValueError("torch._inductor"), False),
    ],
)
def test_failures_for_lack_of_torchs_compiler(error: Exception, lacks: bool) -> None:
    assert failures.failure(RUN, error).compiler is lacks


@pytest.mark.slow
def test_a_missing_part_of_torchs_compiler_is_its_lack() -> None:
    assert failures.failure(RUN, missing()).compiler


def test_a_cycle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert not failures._lacks_compiler(first)
