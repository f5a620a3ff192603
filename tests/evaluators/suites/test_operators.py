"""PyTorch's operators as problems: their references, cases, and what is left out."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem, reference_kernel
from evaluators.reference.loading import (
    BadReference,
    load_module,
    make_inputs,
    make_model,
    own_held_out,
)
from evaluators.reference.reference_model import ReferenceModel
from evaluators.reference.validation import examine
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool
from evaluators.suites import informative_calls, operators
from evaluators.suites.case_calls import STORAGE, fit
from evaluators.suites.informative_calls import accept_other_numbers, accepts_other_numbers, is_informative
from evaluators.suites.op_samples import sampled_calls
from evaluators.suites.operator_call import call_like
from evaluators.suites.operators import OperatorSuite, load_operator
from evaluators.suites.out_forms import out_forms
from evaluators.suites.traced.call import Device, Tensor, TracedCall, tensors_of
from evaluators.suites.traced.files import TRACES
from evaluators.suites.traced.grammar import parse_arguments
from tests.evaluators.device.kernels import SETTINGS

TRACE = """
Operator: aten.add_.Tensor
cnt: 3, ((T([8, 4], f32), T([8, 4], f32)), {'alpha': 2})
cnt: 1, ((T([8, 4], bf16), T([4], bf16)), {})
Operator: aten.cat.default
cnt: 2, (([T([8, 4], f32), T([8, 2], f32)], 1), {})
Operator: aten.embedding.default
cnt: 2, ((T([10, 4], f16), T([6], i64)), {})
Operator: aten.t.default
cnt: 9, ((T([8, 4], f32),), {})
Operator: aten.zeros_like.default
cnt: 9, ((T([8, 4], f32),), {})
Operator: aten.bernoulli.p
cnt: 9, ((T([8, 4], f32), 0.5), {})
Operator: aten._standard_gamma.default
cnt: 9, ((T([8, 4], f32),), {})
Operator: aten.normal_.default
cnt: 9, ((T([], f32),), {})
Operator: aten.relu.default
cnt: 9, ((T([0, 4], f32),), {})
Operator: aten.add.out
cnt: 2, ((T([4], f32), T([4], f32)), {'out': T([4], f32)})
Operator: aten.mul.Tensor
cnt: 1, ((T([4, 4], f32), T([4, 4], f16)), {})
Operator: aten.no_such_thing.default
cnt: 1, ((T([4, 4], f32),), {})
"""


@pytest.fixture(autouse=True)
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.txt"
    file.write_text(TRACE)
    monkeypatch.setenv(TRACES, str(file))
    operators._traced.cache_clear()


def problem_of(operator: str, **rules: Any) -> Problem:
    return load_operator(f"operators/traced/{operator}", **rules)


def outputs_of(problem: Problem) -> Any:
    """Of the reference, on its own inputs."""
    module = load_module(problem.source, problem.overrides)
    how: dict[str, Any] = {"seed": 0, "device": "cpu", "dtype": problem.dtype}
    model = make_model(module, "Model", module.get_init_inputs(), **how)
    return model(*make_inputs(module, **how))


def test_a_suite_has_the_operators_that_compute() -> None:
    names = [each.problem for each in OperatorSuite("operators/traced").entries()]
    assert names == [
        "operators/traced/aten.add.out",
        "operators/traced/aten.add_.Tensor",
        "operators/traced/aten.bernoulli.p",
        "operators/traced/aten.cat.default",
        "operators/traced/aten.embedding.default",
        "operators/traced/aten.mul.Tensor",
    ]
    assert operators._traced().left_out == {
        "view": 1,
        "creation": 1,
        "draws random numbers that no check is known for": 1,
        "draws fewer than 2 numbers": 1,
        "no elements": 1,
        "not in this PyTorch": 1,
    }
    with pytest.raises(ValueError, match="unknown suite operators/none"):
        OperatorSuite("operators/none")


def test_tensors_of_several_floating_types_keep_them() -> None:
    problem = problem_of("aten.mul.Tensor")
    assert problem.dtype == "float16"
    module = load_module(problem.source, problem.overrides)
    drawn = make_inputs(module, seed=0, device="cpu", dtype=problem.dtype)
    assert [each.dtype for each in drawn] == [torch.float32, torch.float16]
    assert outputs_of(problem).dtype == torch.float32


@pytest.mark.slow
def test_what_an_operator_does_not_read_in_a_mode_may_be_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training batch norm has no use for its running statistics."""
    half, mean = "T([4, 8, 5, 5], f32)", "T([8], f32)"
    call = f"(({half}, {half}, {', '.join([mean] * 5)}, True, 1e-05, [True, True, True]), {{}})"
    (tmp_path / "one.txt").write_text(f"Operator: aten.native_batch_norm_backward.default\ncnt: 1, {call}\n")
    monkeypatch.setenv(TRACES, str(tmp_path / "one.txt"))
    problem = problem_of("aten.native_batch_norm_backward.default")
    reference = ReferenceModel(problem.of_case(problem.cases[0]))
    assert examine(reference) == []
    assert {"input 3", "input 4"} <= {*reference.untried}
    alone = replace(problem.of_case(problem.cases[0]), source=problem.source.replace("LEAVES_UNREAD", "NONE"))
    assert any("depend on input 3" in each for each in examine(ReferenceModel(alone)))


def test_a_call_is_a_case_that_weighs_as_much_as_it_was_made() -> None:
    cases = problem_of("aten.add_.Tensor").cases
    assert [(each.dtype, each.weight) for each in cases] == [("float32", 3.0), ("bfloat16", 1.0)]
    assert problem_of("aten.add_.Tensor", cases=[]).cases == ()


def test_tensors_are_inputs_and_the_rest_goes_to_the_constructor() -> None:
    added = problem_of("aten.add_.Tensor")
    module = load_module(added.source, added.overrides)
    assert module.get_init_inputs() == [2]
    one, other = make_inputs(module, seed=0, device="cpu", dtype="float32")
    expected = one + 2 * other
    found = module.Model(2)(one, other)
    assert torch.equal(found, expected) and found is one
    small = added.of_case(added.cases[1])
    assert outputs_of(small).dtype == torch.bfloat16
    assert outputs_of(problem_of("aten.cat.default")).shape == (8, 6)
    assert outputs_of(problem_of("aten.embedding.default")).shape == (6, 4)


def test_unknown_operators_are_one_line() -> None:
    with pytest.raises(BadReference, match=r"has no aten.ad_.Tensor; did you mean aten.add_.Tensor\?"):
        problem_of("aten.ad_.Tensor")
    with pytest.raises(BadReference, match="unknown problem"):
        load_operator("operators/elsewhere/aten.add.Tensor")


def test_some_of_the_calls_can_be_chosen() -> None:
    name = "operators/traced/aten.add_.Tensor"
    narrow = load_operator(name, types=["bfloat16"])
    assert [each.dtype for each in narrow.cases] == ["bfloat16"]
    assert narrow.dtype == "bfloat16"
    looked_up = load_operator("operators/traced/aten.embedding.default", types=["float16"])
    assert len(looked_up.cases) == 1, "the type of the indices does not matter"
    assert len(load_operator(name, most_cases=1).cases) == 2  # one of each type
    with pytest.raises(BadReference, match="has no call whose tensors are all int64"):
        load_operator(name, types=["int64"])
    with pytest.raises(BadReference, match="must be at least 1"):
        load_operator(name, most_cases=0)


def test_a_device_among_the_arguments_is_that_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(device: str) -> Any:
        number = Tensor(shape=(), dtype="float32")
        call = TracedCall(
            operator="aten.linspace.Tensor_Tensor",
            arguments=(number, number, 5),
            keywords={"device": Device(device)},
        )
        return lambda: SimpleNamespace(calls={call.operator: [call]})

    def devices(suite: str, device: str, recorded: str) -> set[torch.device]:
        monkeypatch.setitem(operators.SOURCES, suite, made(recorded))
        problem = load_operator(f"{suite}/aten.linspace.Tensor_Tensor", device=device, dtype="float32")
        constants = load_module(problem.source, problem.cases[0].sizes).get_init_inputs()
        return {each for each in constants if isinstance(each, torch.device)}

    cpu, cuda = {torch.device("cpu")}, {torch.device("cuda")}
    assert devices("operators/opinfo", "cuda", "cpu") == cuda, "recorded on a CPU: the device under test"
    assert devices("operators/opinfo", "cpu", "cpu") == cpu
    assert devices("operators/traced", "cuda", "cpu") == cpu, "what a model does on a CPU"
    assert devices("operators/traced", "cpu", "cuda:1") == cpu
    with torch.device("meta"):
        assert devices("operators/traced", "cuda", "cuda:1") == {torch.device("meta")}


def test_calls_that_are_alike_on_a_device_are_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        TracedCall(operator="aten.randint.default", arguments=(10, (5,)), keywords={"device": Device(device)})
        for device in ("cpu", "cpu:0", "meta")
    ]
    monkeypatch.setitem(
        operators.SOURCES, "operators/opinfo", lambda: SimpleNamespace(calls={calls[0].operator: calls})
    )
    problem = load_operator("operators/opinfo/aten.randint.default", device="cuda", dtype="float32")
    assert len(problem.cases) == 1


@pytest.mark.slow
def test_integers_that_depend_on_one_another_are_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of two numbers stands in a place in the end differs from call to call on a GPU, and bags whose
    beginnings are not in order end in an assertion there."""
    bags = "T([9, 7], bf16), T([60], i64), T([5], i64), False, 0, True, T([60], bf16)"
    arguments = "T([6, 9], bf16), 1, T([6, 7], i64)"
    (tmp_path / "two.txt").write_text(
        f"Operator: aten.scatter.src\ncnt: 1, (({arguments}, T([6, 7], bf16)), {{}})\n"
        f"Operator: aten.gather.default\ncnt: 1, (({arguments}), {{}})\n"
        f"Operator: aten._embedding_bag.default\ncnt: 1, (({bags}), {{}})\n"
    )
    monkeypatch.setenv(TRACES, str(tmp_path / "two.txt"))
    indices = {"sorted indices", "repeated indices", "extreme indices"}
    tried = {"aten.scatter.src": False, "aten._embedding_bag.default": False, "aten.gather.default": True}
    for operator, are_tried in tried.items():
        problem = problem_of(operator)
        reference = ReferenceModel(problem.of_case(problem.cases[0]))
        assert examine(reference) == []
        assert indices <= ({*reference.distributions} if are_tried else {*reference.untried})


def test_of_many_calls_some_from_the_largest_to_the_smallest_are_kept() -> None:
    calls = [
        TracedCall(operator="aten.relu.default", arguments=(Tensor(shape=(n,), dtype=dtype),), count=n == 37)
        for n in range(1, 101)
        for dtype in ("float32", "float16")
    ]
    found = fit(calls)
    kept = [call.arguments[0] for call in found.calls["aten.relu.default"]]
    sizes = [each.shape[0] for each in kept if isinstance(each, Tensor) and each.dtype == "float16"]
    assert len(kept) == 12 and len(sizes) == 6 and {100, 37, 1} <= {*sizes}
    assert found.left_out == {"more than 6 cases of an operator at a type": 188}


def test_a_held_out_call_replaces_a_size_everywhere() -> None:
    text = "((T([8, 4], f32), T([4, 16], f32, [1, 4]),), {})"
    generator = random.Random(0)
    for _ in range(20):
        changed, _ = parse_arguments(call_like("aten.mm.default", text, generator))
        one, other = changed
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        assert one.shape[1] == other.shape[0] and (one.shape, other.shape) != ((8, 4), (4, 16))
    for _ in range(20):  # a size of 1 would grow in three places
        ((x,), _) = parse_arguments(
            call_like("aten.rsqrt.default", "((T([1, 2048, 1, 1], f16),), {})", generator)
        )
        assert isinstance(x, Tensor) and math.prod(x.shape) <= 2**20
    scalar = "((T([], f32),), {})"
    assert call_like("aten.relu.default", scalar, generator) == scalar
    problem = problem_of("aten.cat.default")
    own = own_held_out(problem, generator)
    assert own is not None
    assert own(problem.cases[0])["call"] != problem.cases[0].sizes["call"]


@pytest.mark.slow
def test_pytorchs_own_samples_are_calls_of_one_operator() -> None:
    pytest.importorskip("expecttest")
    calls = fit(sampled_calls(["float32", "int64"], only="add"))
    assert {*calls.calls} == {"aten.add.Tensor"}
    types = {each.dtype for call in calls.calls["aten.add.Tensor"] for each in tensors_of(call.arguments)}
    assert types == {"float32", "int64"}


def test_calls_that_tell_nothing_of_a_kernel_are_left_out() -> None:
    three, square = Tensor(shape=(3,), dtype="float32"), Tensor(shape=(5, 5), dtype="float32")
    mask = Tensor(shape=(3,), dtype="bool")
    assert is_informative(TracedCall(operator="aten.add.Tensor", arguments=(three, three)))
    assert is_informative(TracedCall(operator="aten.dropout.default", arguments=(three, 0.5, True)))
    constant = TracedCall(operator="aten.isnan.default", arguments=(three,))
    its_input = TracedCall(operator="aten.hardshrink.default", arguments=(three, -0.5))
    of_some_matrices = TracedCall(operator="aten.cholesky.default", arguments=(square,))
    as_many_as_chosen = TracedCall(operator="aten.masked_select.default", arguments=(three, mask))
    assert not any(
        map(is_informative, (constant, its_input, of_some_matrices, as_many_as_chosen, impossible()))
    )
    assert all(map(accepts_other_numbers, (constant, its_input)))
    assert not any(map(accepts_other_numbers, (of_some_matrices, as_many_as_chosen, impossible())))
    unsqueezed = TracedCall(operator="aten.unsqueeze_.default", arguments=(three, 0))
    assert fit([unsqueezed]).left_out == {"view": 1}
    strided = TracedCall(operator="aten.as_strided_copy.default", arguments=(three, [2], [1], 0))
    counted = TracedCall(operator="aten.bincount.default", arguments=(Tensor(shape=(9,), dtype="int64"),))
    gamma = TracedCall(operator="aten.polygamma.default", arguments=(2, three))
    zeta = TracedCall(operator="aten.special_zeta.self_scalar", arguments=(2, three))
    legendre = TracedCall(operator="aten.special_legendre_polynomial_p.default", arguments=(three, three))
    power = TracedCall(operator="aten.linalg_matrix_exp.default", arguments=(square,))
    assert fit([gamma, zeta, power, legendre]).left_out == {"does not end on large numbers": 4}
    masked = TracedCall(operator="aten.index.Tensor", arguments=(three, (mask,)))
    number = TracedCall(operator="aten.equal.default", arguments=(three, three))
    pixels, classes = (
        Tensor(shape=(2, 3, 4, 4), dtype="float32"),
        Tensor(shape=(2, 4, 4), dtype="int64"),
    )
    losses = [
        TracedCall(
            operator="aten.nll_loss2d_forward.default", arguments=(pixels, classes, None, reduction, -100)
        )
        for reduction in (0, 1)
    ]
    assert fit(losses).left_out == {"leaves a result uninitialised": 1}
    left_out = {STORAGE: 1, "the size of its result depends on values": 2, "returns a number": 1}
    assert fit([strided, counted, masked, number]).left_out == left_out
    indexed = TracedCall(
        operator="aten.index.Tensor", arguments=(three, (None, Tensor(shape=(3,), dtype="int64")))
    )
    assert not fit([indexed]).left_out
    halves = Tensor(shape=(3,), dtype="float16")
    sparse = TracedCall(operator="aten._to_sparse.default", arguments=(square,))
    half_complex = TracedCall(operator="aten.complex.default", arguments=(halves, halves))
    of_no_steps = TracedCall(
        operator="aten.linspace.Tensor_Scalar", arguments=(Tensor(shape=(), dtype="float32"), 1, 0)
    )
    assert not any(map(is_informative, (sparse, half_complex, of_no_steps)))
    assert not any(map(accepts_other_numbers, (sparse, half_complex, of_no_steps)))


@pytest.mark.slow
def test_a_call_that_ends_the_process_takes_no_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    three = Tensor(shape=(3,), dtype="float32")
    names = ("relu", "sigmoid", "abs", "sigmoid")
    calls = [TracedCall(operator=f"aten.{name}.default", arguments=(three,)) for name in names]
    assert accept_other_numbers([calls[0], impossible()]) == [True, False]

    def ends_at_sigmoid(command: list[str], stdout: BinaryIO, **_: object) -> None:
        for line in Path(command[-2]).read_text().splitlines()[int(command[-1]) :]:
            if "sigmoid" in line:
                return
            stdout.write(b"1")

    monkeypatch.setattr(informative_calls.subprocess, "run", ends_at_sigmoid)
    for fewest in (
        informative_calls.FEWEST_CALLS,
        2,
        1,
    ):  # of a process: one, two or as many as there are cores
        monkeypatch.setattr(informative_calls, "FEWEST_CALLS", fewest)
        assert accept_other_numbers(calls) == [True, False, True, False]
    assert accept_other_numbers([]) == []


def impossible() -> TracedCall:
    three, square = Tensor(shape=(3,), dtype="float32"), Tensor(shape=(5, 5), dtype="float32")
    return TracedCall(operator="aten.add.Tensor", arguments=(three, square))


NO_OP = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, alpha):
        super().__init__()

    def forward(self, input, other):
        return input
"""
COPIES = NO_OP.replace("return input", "return input + 2 * other")


def test_calls_with_out_are_made_of_those_without() -> None:
    calls = [
        TracedCall(operator="aten.add.Tensor", arguments=(Tensor(shape=(4, 1), dtype="float16"),) * 2),
        TracedCall(operator="aten.sort.default", arguments=(Tensor(shape=(3,), dtype="float32"),)),
        TracedCall(operator="aten.gt.Scalar", arguments=(Tensor(shape=(3,), dtype="float32"), 0)),
        TracedCall(operator="aten.mse_loss.default", arguments=(Tensor(shape=(3,), dtype="float32"),) * 2),
        TracedCall(operator="aten.nonzero.default", arguments=(Tensor(shape=(3,), dtype="float32"),)),
        TracedCall(operator="aten.equal.default", arguments=(Tensor(shape=(3,), dtype="float32"),) * 2),
        TracedCall(operator="aten.mm.default", arguments=(Tensor(shape=(3,), dtype="float32"),) * 2),
    ]
    found = {each.operator: each.keywords for each in out_forms(calls)}
    three = Tensor(shape=(3,), dtype="float32")
    assert found == {
        "aten.add.out": {"out": Tensor(shape=(4, 1), dtype="float16")},
        "aten.sort.values": {"values": three, "indices": Tensor(shape=(3,), dtype="int64")},
        "aten.gt.Scalar_out": {"out": Tensor(shape=(3,), dtype="bool")},
    }


def test_a_drawn_call_with_out_has_one_that_fits() -> None:
    text = "((T([8, 1], f32), T([4], f32)), {'out': T([8, 4], f32)})"
    for seed in range(40):
        arguments, keywords = parse_arguments(call_like("aten.add.out", text, random.Random(seed)))
        shapes = [each.shape for value in (*arguments, keywords["out"]) for each in tensors_of(value)]
        assert shapes[-1] == torch.broadcast_shapes(*shapes[:-1])


WITH_OUT = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, alpha):
        super().__init__()

    def forward(self, input, other, out):
        torch.add(input, other, out=out)
        return out
"""
ANOTHER = WITH_OUT.replace("return out", "return out.clone()")
UNWRITTEN = WITH_OUT.replace("torch.add(input, other, out=out)", "out = input + other")
SPOILS = WITH_OUT.replace("return out", "other.zero_()\n        return out")
MOVES = WITH_OUT.replace("torch.add(input, other, out=out)", "out.set_(input + other)")


@pytest.mark.slow
def test_forms_with_out_are_judged_by_what_they_leave_and_return() -> None:
    problem = problem_of("aten.add.out", libraries="any", floor=False)
    sources = (reference_kernel(problem).source, WITH_OUT, ANOTHER, UNWRITTEN, SPOILS, MOVES)

    async def verdicts() -> list[Evaluation]:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            kernels = [Kernel(source=each, language="cpp") for each in sources]
            return await asyncio.gather(*(pool.evaluate(problem, each) for each in kernels))

    own, right, another, unwritten, spoils, moves = asyncio.run(verdicts())
    assert (own.status, right.status) == (Status.CORRECT, Status.CORRECT), (own.log, right.log)
    assert right.correctness is not None
    assert right.correctness.untried["input 2"] == "it is overwritten without being read"
    assert another.status is Status.INCORRECT
    assert "output 0 is not input 2" in another.log
    assert unwritten.status is Status.INCORRECT
    assert spoils.status is Status.INCORRECT and "it writes to its input 1" in spoils.log
    assert moves.status is Status.INCORRECT


@pytest.mark.slow
def test_in_place_forms_are_judged_by_what_they_leave() -> None:
    problem = problem_of("aten.add_.Tensor", libraries="any", floor=False)
    sources = (reference_kernel(problem).source, NO_OP, COPIES)

    async def verdicts() -> list[Evaluation]:
        with Pool(LocalHost(settings=SETTINGS, on_gpu=False)) as pool:
            kernels = [Kernel(source=each, language="cpp") for each in sources]
            return await asyncio.gather(*(pool.evaluate(problem, each) for each in kernels))

    right, nothing, elsewhere = asyncio.run(verdicts())
    assert right.status is Status.CORRECT, right.log
    timed = {each.held_out: each.evaluation.timing is not None for each in right.cases}
    assert timed == {False: True, True: False}
    assert nothing.status is Status.INCORRECT, nothing.log
    assert elsewhere.status is Status.INCORRECT, elsewhere.log
