"""FACTO's specifications as a suite, from a small clone of ours in its layout."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from evaluators.suites import facto, operators
from evaluators.suites.facto import ROOT, calls_of, facto_calls
from evaluators.suites.operators import OperatorSuite, load_operator
from evaluators.suites.suite import SuiteMissing
from evaluators.suites.traced.call import Device, Tensor

FILES = {
    "inputgen/argtuple/gen.py": """
import torch
from facto.inputgen.utils.random_manager import random_manager

class ArgumentTupleGenerator:
    def __init__(self, spec, config):
        assert config.conditions == {"half_precision": True, "transposed": True}
        self.spec = spec

    def gen(self):
        for rows in (3, 3, 5, 1):
            width = 4 + random_manager.seeds[-1]
            yield [torch.ones(rows, width).T, *self.spec], {}, {}
        raise KeyError("the specification is wrong")
""",
    "inputgen/utils/config.py": """
class TensorConfig:
    def __init__(self, device, **conditions):
        self.conditions = conditions
""",
    "inputgen/utils/random_manager.py": """
class RandomManager:
    seeds = []
    def seed(self, seed):
        self.seeds.append(seed)

random_manager = seeded_random_manager = RandomManager()
""",
    "specdb/db.py": """
import torch
SpecDictDB = {
    "softplus.default": [],
    "sum.dim_IntList": [[0], True],
    "mm.default": [torch.ones(3, 9)],
    "detach_copy.default": [],
    "mul.Scalar": [0],
    "no_such_thing.default": [],
}
""",
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        file = tmp_path / "FACTO" / "facto" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv(ROOT, str(tmp_path / "FACTO"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    operators._facto.cache_clear()
    yield tmp_path / "FACTO"
    operators._facto.cache_clear()
    for name in [each for each in sys.modules if each.partition(".")[0] == "facto"]:
        del sys.modules[name]


def test_generated_arguments_are_the_cases_of_an_operator(clone: Path) -> None:
    names = [each.problem for each in OperatorSuite("operators/facto").entries()]
    assert names == [
        "operators/facto/aten.mm.default",
        "operators/facto/aten.softplus.default",
        "operators/facto/aten.sum.dim_IntList",
    ]
    problem = load_operator("operators/facto/aten.softplus.default")
    shapes = [each.sizes["call"] for each in problem.cases]
    assert shapes == [
        "((T([4, 5], f32, [1, 4]),), {})",
        "((T([4, 3], f32, [1, 4]),), {})",
        "((T([4, 1], f32),), {})",
    ]
    assert [each.weight for each in problem.cases] == [1.0, 0.0, 0.0]
    assert str(clone) not in sys.path
    (clone / "facto" / "inputgen" / "argtuple" / "gen.py").unlink()
    assert len(facto_calls()) == 7, "they are kept"


def test_calls_that_fail_or_tell_nothing_are_left_out() -> None:
    import torch

    def generated() -> Iterator[tuple[list[object], dict[str, object], dict[str, object]]]:
        for tensor in (torch.ones(3), torch.ones(2, 3), torch.ones(0), torch.ones(1), torch.ones(3).int()):
            yield [tensor], {}, {}

    kept = [each.arguments[0] for each in calls_of("aten.floor.default", generated())]
    assert [each.shape for each in kept if isinstance(each, Tensor)] == [(3,), (2, 3)]
    assert [*calls_of("aten.isnan.default", generated())] == []
    numbers = ([torch.ones(3), number] for number in (2.0, math.inf, -1e9, math.nan, 5e-324))
    scaled = calls_of("aten.mul.Scalar", ((each, {}, {}) for each in numbers))
    assert [each.arguments[1] for each in scaled] == [2.0]


def test_without_a_clone_the_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT, raising=False)
    with pytest.raises(
        SuiteMissing, match=r"clone github.com/meta-pytorch/FACTO and set FACTO_ROOT"
    ) as error:
        facto_calls()
    assert "\n" not in str(error.value)
    monkeypatch.setenv(ROOT, str(tmp_path))
    with pytest.raises(SuiteMissing, match="is not a clone of FACTO"):
        facto_calls()
    (tmp_path / "facto" / "specdb").mkdir(parents=True)
    (tmp_path / "facto" / "specdb" / "db.py").write_text("import torch")
    monkeypatch.setattr(facto, "cached_calls", lambda name, make: make())
    with pytest.raises(SuiteMissing, match=r"FACTO cannot be imported: No module named 'facto.inputgen'"):
        facto_calls()


def test_what_no_tensor_places_is_on_the_device_that_is_judged() -> None:
    [rand] = calls_of("aten.rand.default", iter([([[3, 5]], {"dtype": None}, {})]))
    assert rand.keywords["device"] == Device("cuda"), "which stands for that of the problem"
    [like] = calls_of("aten.rand_like.default", iter([([torch.ones(3, 5)], {}, {})]))
    assert "device" not in like.keywords
