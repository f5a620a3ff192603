"""Which operators the playbook knows, and what it reads out of their problems."""

import pytest

from evaluators.records.problem import Problem
from evaluators.suites.traced.inputs import operator_of
from search.proposers.playbook.formulas import BINARY, OTHERS, UNARY, called_in, formula_of, in_language
from search.proposers.playbook.operator_problem import family_of, operator_workload
from search.proposers.playbook.passes import NORMALISATIONS, REDUCTIONS
from tests.search.proposers.playbook.operator_calls import problem, workload


@pytest.mark.parametrize(
    ("operator", "family"),
    [
        ("aten.add.Tensor", "pointwise"),
        ("aten.add_.Tensor", "pointwise"),
        ("aten.mul.Scalar", "pointwise"),
        ("aten.div.Tensor_mode", "pointwise"),
        ("aten.sum.dim_IntList", "rows"),
        ("aten._softmax.default", "rows"),
        ("aten.add.out", None),
        ("aten.sort.default", None),
        ("other.add.Tensor", None),
    ],
)
def test_families(operator: str, family: str | None) -> None:
    assert family_of(operator) == family


@pytest.mark.parametrize(
    "name", [*(f"{each}.default" for each in UNARY), *OTHERS, *(f"{each}.Tensor" for each in BINARY)]
)
def test_scalars_are_arguments_of_the_operator(name: str) -> None:
    formula = formula_of(f"aten.{name}")
    assert formula is not None
    if name.split(".")[0] in BINARY and name.endswith(".Tensor") and name not in OTHERS:
        try:
            operator_of(f"aten.{name}")
        except ValueError:
            name = name.replace(".Tensor", ".default")
    arguments = {each.name for each in operator_of(f"aten.{name}")._schema.arguments}
    for text in formula.scalars.values():
        words = text.replace("self.", "").replace("(", " ").split()
        assert any(word.strip("_),").removesuffix("_") in arguments for word in words), text


def test_every_reduction_and_normalisation_is_an_operator() -> None:
    for name in (*REDUCTIONS, *NORMALISATIONS):
        assert operator_of(name) is not None


def test_formulas_are_written_in_both_languages() -> None:
    text = "where(a > 0, tanh(a), power(a, b))"
    assert in_language(text, 0) == "where(a > 0, std::tanh(a), power(a, b))"
    assert in_language(text, 1) == "tl.where(a > 0, libdevice.tanh(a), libdevice.pow(a, b))"
    assert called_in(text) == {"where", "tanh", "power"}


def test_types_of_results_are_pytorchs() -> None:
    found = workload("aten.exp.default", ["((T([3], i64),), {})", "((T([3], f16),), {})"])
    assert [(each.tensors, each.outputs, each.compute) for each in found.signatures] == [
        (("int64",), ("float32",), "float32"),
        (("float16",), ("float16",), "float32"),
    ]
    norm = "((T([2, 3], f16), [3], None, None, 0.5,), {})"
    on_cpu = workload("aten.native_layer_norm.default", [norm])
    on_gpu = workload("aten.native_layer_norm.default", [norm], device="cuda")
    assert on_cpu.signatures[0].outputs == ("float16", "float16", "float16")
    assert on_gpu.signatures[0].outputs == ("float16", "float32", "float32")


def test_constants_that_decide_a_type_are_in_the_signature() -> None:
    calls = ["((T([3], f32), [0],), {'dtype': torch.float64})", "((T([3], f32), [0],), {})"]
    found = workload("aten.sum.dim_IntList", calls)
    assert [each.deciding for each in found.signatures] == [("torch.float64",), ("None",)]
    assert [each.outputs for each in found.signatures] == [("float64",), ("float32",)]


def test_other_problems_are_none_of_operators() -> None:
    assert operator_workload(Problem(name="own", source="x = 1")) is None
    assert operator_workload(problem("aten.sort.default", ["((T([3], f32),), {})"])) is None
    assert operator_workload(problem("aten.abs.default", ["((T([3], c64),), {})"])) is None
