"""Which references count as the same problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluators.records.problem import Problem
from evaluators.reference.loading import PROBLEMS, load_module, load_problem
from search.harvest.dataset import split_of
from search.harvest.identity import canonical, fingerprint, operators, sized
from tests.search.harvest.story import reference

LAYER = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """Words."""
    def __init__(self, features: int, bias=True):
        super(Model, self).__init__()
        self.layer = nn.Linear(features, 10)   # a comment
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.act(self.layer(x)) * 2.0

N = 16
def get_inputs():
    return [torch.rand(N, 5)]
def get_init_inputs():
    return [5]
'''
SAME = {
    "sizes": LAYER.replace("16", "32").replace(", 5)", ", 7)").replace("10)", "20)"),
    "numbers below zero": LAYER.replace("2.0", "-2"),
    "names": LAYER.replace("layer", "dense")
    .replace("(self, x)", "(self, inputs)")
    .replace("(x)", "(inputs)"),
    "imports": LAYER.replace("import torch.nn as nn", "from torch import nn"),
    "super": LAYER.replace("super(Model, self)", "super()"),
    "annotations": LAYER.replace("features: int", "features").replace("self, x)", "self, x: torch.Tensor)"),
    "comments": LAYER.replace("# a comment", "# another").replace('"""Words."""', '"""More words."""'),
    "inputs": LAYER.replace("torch.rand(N, 5)", "torch.randn(N, 5).half()"),
}
OTHER = {
    "operation": LAYER.replace("GELU", "ReLU"),
    "option": LAYER.replace('"tanh"', '"none"'),
    "operator": LAYER.replace("* 2.0", "+ 2.0"),
    "built-in": LAYER.replace("self.act(", "max("),
    "order": LAYER.replace("self.act(self.layer(x))", "self.layer(self.act(x))"),
}


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_equivalent_references_have_one_fingerprint(source: str) -> None:
    assert source != LAYER
    assert fingerprint(source) == fingerprint(LAYER)


@pytest.mark.parametrize("source", OTHER.values(), ids=OTHER)
def test_different_references_have_different_fingerprints(source: str) -> None:
    assert fingerprint(source) != fingerprint(LAYER)


def test_a_model_that_is_only_set_up_by_its_parent_needs_no_init() -> None:
    init = "    def __init__(self):\n        super().__init__()\n\n    def forward"
    assert fingerprint(reference("relu").replace("    def forward", init)) == fingerprint(reference("relu"))


def test_text_that_is_not_python_stays_as_it_is() -> None:
    assert canonical("class (") == "class ("
    assert operators("class (") == ()


@pytest.mark.slow
@given(
    operation=st.sampled_from(["relu", "softmax", "tanh"]),
    features=st.integers(1, 10**9),
    name=st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name.isidentifier()),
)
def test_no_size_or_name_changes_the_split(operation: str, features: int, name: str) -> None:
    source = reference(operation, features=features).replace("features", f"size_{name}")
    keys = fingerprint(source), fingerprint(reference(operation))
    assert split_of(keys[0], 0.3, 0.3) == split_of(keys[1], 0.3, 0.3)


@pytest.mark.slow
@given(st.text("0123456789abcdef", min_size=12, max_size=12), st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_larger_split_keeps_its_problems(key: str, validation: float, test: float) -> None:
    if split_of(key, validation, test) == "test":
        assert split_of(key, validation, test + 0.1) == "test"
    assert split_of(key, 0, 0) == "train"


def test_splits_get_about_their_shares() -> None:
    found = [split_of(f"{n:012x}", 0.1, 0.2) for n in range(2000)]
    assert abs(found.count("test") - 400) < 80
    assert abs(found.count("validation") - 200) < 60


def test_operators_are_recognised_in_every_spelling() -> None:
    ways = ["self.act(x)", "F.relu(x)", "torch.relu(x)", "x.relu_()"]
    source = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nclass Model(nn.Module):\n"
    init = "    def __init__(self):\n        super().__init__()\n"
    for way in ways:
        act = "        self.act = nn.ReLU()\n" if "self" in way else ""
        model = f"{source}{init}{act}    def forward(self, x, y):\n        return {way} @ y.view(3)\n"
        assert operators(model) == ("matmul", "relu")


def test_sizes_are_written_into_the_reference() -> None:
    source = (
        "# é\nN = 1  # é rows\nshape = (\n    2,\n    3,\n)  # both\na, b = 4, 5\nM: int = 6; L = N * 2\n"
    )
    overrides = {"N": 10, "shape": (20, 30), "b": 50, "M": 60}
    problem = Problem(name="p", source=source, overrides=overrides)
    assert sized(problem) == (
        "# é\nN = 10  # é rows\nshape = (20, 30)  # both\na, b = 4, 5; b = 50\nM = 60; L = N * 2\n"
    )
    ours, theirs = load_module(sized(problem), {}), load_module(source, overrides)
    assert all(getattr(ours, name) == getattr(theirs, name) for name in ("N", "shape", "a", "b", "M", "L"))


@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("level*/*[!_].py")), ids=lambda path: path.stem)
def test_a_shipped_reference_without_sizes_is_unchanged(path: object) -> None:
    name = str(path).removeprefix(str(PROBLEMS) + "/").removesuffix(".py")
    problem = load_problem(name)
    assert sized(problem) == problem.source
