"""The command that records a model's operators: its file, its table, and its errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from evaluators.suites.traced.call import Tensor
from evaluators.suites.traced.files import read_trace
from evaluators.suites.traced.inputs import make_arguments, operator_of
from evaluators.trace.__main__ import main, table

SOURCE = """
import torch

rows = 6


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Embedding(50, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, ids, x):
        for _ in range(3):
            x = self.second(x.t().contiguous().t()) + torch.zeros_like(x)
        return x.sum() + self.first(ids).sum()


def get_inputs():
    return [torch.randint(0, 50, (4,)), torch.rand(rows, 8)]


def get_init_inputs():
    return []
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    path = tmp_path / "my_model.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.slow
def test_calls_are_counted_with_shapes_types_and_strides(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model=my_model.py", "device=cpu", "dtype=bfloat16"]) == 0
    calls = {each.operator: each for each in read_trace(model.with_name("traces.txt")).calls}
    addmm = calls["aten.addmm.default"]
    weight = Tensor(shape=(8, 8), dtype="bfloat16", stride=(1, 8))
    given = Tensor(shape=(6, 8), dtype="bfloat16", stride=(1, 6))
    assert addmm.arguments == (Tensor(shape=(8,), dtype="bfloat16"), given, weight)
    assert addmm.count == 3
    assert calls["aten.embedding.default"].arguments[1] == Tensor(shape=(4,), dtype="int64")
    assert list(calls) == sorted(calls)
    rows = {words[0]: words[1:] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert rows["aten.addmm.default"] == ["3", "1"]
    assert rows["aten.t.default"] == ["9", "3", "view"]
    assert rows["aten.zeros_like.default"] == ["3", "1", "creation"]
    assert rows["aten.sum.default"] == ["2", "2"]


@pytest.mark.slow
def test_recorded_calls_can_be_repeated(model: Path) -> None:
    """The calls of a whole training step, on arguments that are made for them."""
    assert main(["model=my_model.py", "device=cpu", "backward=true", "out=new/of/mine.txt"]) == 0
    found = read_trace(model.with_name("new") / "of" / "mine.txt")
    assert not found.refused
    assert "aten.embedding_dense_backward.default" in {each.operator for each in found.calls}
    for call in found.calls:
        arguments, keywords = make_arguments(call, "cpu", 0)
        operator_of(call.operator)(*arguments, **keywords)


@pytest.mark.slow
def test_a_problem_without_weights_has_the_gradient_of_its_inputs(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model=level1/softmax", "device=cpu", "backward=true"]) == 0
    assert "aten._softmax_backward_data.default" in capsys.readouterr().out
    assert main(["model=level1/softmax", "device=cpu"]) == 0
    assert "backward" not in capsys.readouterr().out


@pytest.mark.slow
def test_unwritable_calls_are_named_and_counted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.write_text(SOURCE.replace("return x.sum()", "return torch.mul(x, 1j).sum() + x.sum()"))
    assert main(["model=my_model.py", "device=cpu"]) == 1
    assert "cannot express their arguments: aten.mul.Tensor (1)" in capsys.readouterr().out
    assert "aten.mul.Tensor" not in model.with_name("traces.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "arguments", "why"),
    [
        (("return x.sum()", "return 1 / 0"), [], "cannot be traced: ZeroDivisionError: division by zero"),
        (
            ("return x.sum()", "return x.detach().sum() * 0 + 1; 1"),
            ["backward=true"],
            "no output has a gradient",
        ),
        (("class Model", "class Modle"), [], "defines no Model; a reference needs"),
        (("", ""), ["model=other.py"], "the reference other.py cannot be read"),
        (("", ""), ["model=level1/softmx"], "level1/softmax"),
        (("", ""), ["dtype=float61"], "it must be one of float64, float32"),
        (("", ""), ["device=gpu"], "device is gpu; it must be one of auto, cpu, cuda"),
        (("", ""), ["out=my_model.py/x.txt"], "out=my_model.py/x.txt cannot be written"),
    ],
)
def test_a_wrong_call_is_one_line(
    model: Path,
    changed: tuple[str, str],
    arguments: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model.write_text(SOURCE.replace(*changed))
    given = {"model": "my_model.py", "device": "cpu"} | dict(each.split("=", 1) for each in arguments)
    assert main([f"{key}={value}" for key, value in given.items()]) == 2
    said = capsys.readouterr().err.strip()
    assert why in said and "\n" not in said
    assert not model.with_name("traces.txt").exists()


def test_an_empty_table_has_only_its_head() -> None:
    assert [line.split() for line in table([])] == [["operator", "calls", "shapes"]]
