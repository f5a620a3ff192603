"""Records of problems and kernels: bad values are refused, and ids depend on the content only."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.records.problem import (
    DEVICES,
    DTYPES,
    LANGUAGES,
    TOLERANCES,
    Case,
    Kernel,
    Problem,
    as_strict,
    content_id,
)

ROOT = Path(__file__).parents[3]
PROBLEM = Problem(name="level1/a", source="class Model: ...", overrides={"N": 4})

texts = st.text(st.characters(codec="utf-8"))
sizes = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text(max_size=5),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "tpu"),
        ("device", ""),
        ("tolerance", "loose"),
        ("dtype", "int32"),
        ("dtype", "torch.float32"),
        ("name", ""),
        ("source", ""),
        ("source", " \n\t"),
    ],
)
def test_a_problem_with_a_bad_field_is_refused(field: str, value: str) -> None:
    with pytest.raises(ValueError) as caught:
        replace(PROBLEM, **{field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [("device", "tpu", DEVICES), ("tolerance", "loose", TOLERANCES), ("dtype", "int32", DTYPES)],
)
def test_a_refusal_says_the_value_and_what_is_allowed(
    field: str, value: str, allowed: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=f"problem.{field} is '{value}'") as caught:
        replace(PROBLEM, **{field: value})
    assert all(choice in str(caught.value) for choice in allowed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_listed_value_is_accepted(device: str, tolerance: str, dtype: str) -> None:
    problem = replace(PROBLEM, device=device, tolerance=tolerance, dtype=dtype)
    assert (problem.device, problem.tolerance, problem.dtype) == (device, tolerance, dtype)


@pytest.mark.parametrize("language", LANGUAGES)
def test_kernels_of_every_language(language: str) -> None:
    assert Kernel(source="x", language=language).language == language


@pytest.mark.parametrize(("source", "language"), [("", "cpp"), ("  \n", "cpp"), ("x", "rust"), ("x", "")])
def test_a_bad_kernel_is_refused(source: str, language: str) -> None:
    with pytest.raises(ValueError):
        Kernel(source=source, language=language)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        PROBLEM.name = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Kernel(source="x", language="cpp").source = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"source": "class Model: pass"},
        {"overrides": {"N": 5}},
        {"overrides": {"M": 4}},
        {"overrides": {}},
        {"overrides": {"N": 4.0}},
        {"overrides": {"N": "4"}},
        {"overrides": {"N": True}},
        {"dtype": "float16"},
        {"tolerance": "kernelbench"},
        {"precision": "float16"},
        {"device": "cuda"},
    ],
)
def test_another_computation_has_another_id(change: dict[str, object]) -> None:
    assert replace(PROBLEM, **change).id != PROBLEM.id


def test_the_name_and_the_order_of_sizes_do_not_change_the_id() -> None:
    one = replace(PROBLEM, overrides={"a": 1, "b": 2})
    other = replace(PROBLEM, name="file/b", overrides={"b": 2, "a": 1})
    assert one.id == other.id


def test_a_kernel_is_its_source() -> None:
    assert Kernel(source="x", language="cpp").id == Kernel(source="x", language="cuda").id
    assert Kernel(source="x", language="cpp").id != Kernel(source="x ", language="cpp").id


@pytest.mark.slow
@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_equal_content_equal_id_and_else_not(one: list[str], other: list[str]) -> None:
    assert (content_id(*one) == content_id(*other)) == (one == other)
    assert len(content_id(*one)) == 12
    assert set(content_id(*one)) <= set("0123456789abcdef")


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=4), sizes, max_size=4))
def test_an_equal_problem_has_an_equal_id(overrides: dict[str, object]) -> None:
    shuffled = dict(reversed(overrides.items()))
    assert replace(PROBLEM, overrides=overrides).id == replace(PROBLEM, overrides=shuffled).id


@pytest.mark.slow
def test_ids_are_the_same_in_another_process() -> None:
    """No hash that differs between runs goes into them: journals and caches outlive a process."""
    code = (
        "from evaluators.records.problem import as_strict, Kernel, Problem\n"
        "p = Problem(name='level1/a', source='class Model: ...', overrides={'N': 4})\n"
        "print(p.id, Kernel(source='x', language='cpp').id)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [PROBLEM.id, Kernel(source="x", language="cpp").id]


@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [
        (("strict", ""), ("strict", ""), True),
        (("strict", ""), ("strict", "float16"), True),
        (("strict", "float16"), ("strict", ""), False),
        (("strict", "float16"), ("strict", "bfloat16"), False),
        (("strict", "float16"), ("kernelbench", ""), True),
        (("strict", "float16"), ("kernelbench_v02", ""), False),
        (("strict", ""), ("kernelbench_v02", ""), True),
        (("kernelbench", ""), ("strict", ""), False),
        (("kernelbench_v02", ""), ("kernelbench", ""), True),
    ],
)
def test_rules_that_imply_others(known: tuple[str, str], asked: tuple[str, str], expected: bool) -> None:
    one, other = (replace(PROBLEM, tolerance=rule, precision=spent) for rule, spent in (known, asked))
    assert as_strict(one, other) is expected


def test_a_precision_needs_the_strict_tolerance() -> None:
    with pytest.raises(ValueError, match=r"problem\.precision=float16 needs"):
        replace(PROBLEM, tolerance="kernelbench", precision="float16")
    assert replace(PROBLEM, precision="float16").lower_precisions == ("float16", "tfloat32")
    assert replace(PROBLEM, dtype="float16").lower_precisions == ()


def test_no_library_needs_a_timed_problem() -> None:
    with pytest.raises(ValueError, match="without timing"):
        replace(PROBLEM, libraries="no_library", timed=False)
    problem = replace(PROBLEM, libraries="no_library", cases=(Case(), Case(dtype="float64", weight=0)))
    assert [problem.of_case(each).libraries for each in problem.cases] == ["no_library", "any"]
