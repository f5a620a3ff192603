"""Which references the playbook recognises, and what it reads out of them."""

import textwrap

import pytest

from evaluators.records.problem import Problem
from evaluators.reference.loading import load_problem
from search.proposers.playbook.workload import Workload, recognise


def reference(model: str, inputs: str, init: str = "[]", top: str = "", **fields: object) -> Problem:
    source = "\n".join(
        [
            "import torch",
            "import torch.nn as nn",
            "import torch.nn.functional as F",
            top,
            textwrap.dedent(model),
            f"def get_inputs():\n    return [{inputs}]",
            f"def get_init_inputs():\n    return {init}",
        ]
    )
    return Problem(name="own", source=source, **fields)  # type: ignore[arg-type]


def functional(expression: str, arguments: str = "x") -> str:
    return f"""
        class Model(nn.Module):
            def forward(self, {arguments}):
                return {expression}
    """


def found(problem: Problem) -> Workload:
    workload = recognise(problem)
    assert workload is not None
    return workload


def test_shipped_conv2d() -> None:
    workload = found(load_problem("level1/conv2d", sizes={"batch": 2}))
    assert (workload.op, workload.module, workload.epilogue) == ("conv2d", "conv", ())
    assert [workload.sizes[name] for name in "NCHWKRSPQ"] == [2, 3, 224, 224, 96, 11, 11, 55, 55]
    assert workload.sizes["stride_h"] == 4
    assert workload.sizes["pad_w"] == 2
    assert workload.sizes["bias"] == 1
    assert workload.shape == (2, 3, 224, 224)


def test_shipped_fused_block() -> None:
    workload = found(load_problem("level2/conv2d_relu_maxpool"))
    assert workload.epilogue == ("relu", "maxpool")
    names = ("pool", "pool_stride", "pool_pad", "PP", "PQ")
    assert [workload.sizes[name] for name in names] == [3, 2, 0, 27, 27]


def test_other_shipped_problems() -> None:
    assert found(load_problem("level1/matmul", sizes={"size": 48})).sizes == {"M": 48, "N": 48, "K": 48}
    assert found(load_problem("level1/softmax", sizes={"batch": 3})).sizes == {"rows": 3, "cols": 65536}
    norm = found(load_problem("level1/layernorm", sizes={"height": 8, "width": 4}))
    assert norm.sizes == {"rows": 16, "cols": 2048, "affine": 1, "bias": 1}
    assert (norm.module, norm.eps) == ("norm", 1e-5)


def test_tolerance_and_dtype_come_from_the_problem() -> None:
    workload = found(load_problem("level1/softmax", sizes={"batch": 2}, dtype="float16"))
    assert (workload.lower, workload.dtype) == ((), "float16")


def test_sizes_that_follow_from_overridden_ones() -> None:
    own = reference(
        functional("torch.softmax(x, -1)"), "torch.randn(2, area)", top="side = 8\narea = side * side"
    )
    assert found(own).sizes["cols"] == 64
    larger = Problem(name="own", source=own.source, overrides={"side": 10})
    assert found(larger).sizes["cols"] == 100


@pytest.mark.parametrize(
    "expression",
    ["x.softmax(1)", "F.softmax(x, dim=-1)", "torch.softmax(x, 1)", "nn.functional.softmax(x, 1)"],
)
def test_ways_to_write_softmax(expression: str) -> None:
    assert found(reference(functional(expression), "torch.rand(3, 7)")).sizes == {"rows": 3, "cols": 7}


@pytest.mark.parametrize(
    "expression", ["a @ b", "torch.matmul(a, b)", "torch.mm(a, b)", "a.matmul(b)", "a.mm(b)"]
)
def test_ways_to_write_a_product(expression: str) -> None:
    own = reference(functional(expression, "a, b"), "torch.rand(3, 7), torch.rand(7, 5)")
    assert found(own).sizes == {"M": 3, "N": 5, "K": 7}


@pytest.mark.parametrize(
    ("expression", "epilogue"),
    [
        ("F.relu(self.net[0](x))", ("relu",)),
        ("self.net[0](x).relu()", ("relu",)),
        ("F.max_pool2d(torch.relu(self.net[0](x)), 2)", ("relu", "maxpool")),
        ("F.relu(F.max_pool2d(self.net[0](x), kernel_size=2, stride=2))", ("relu", "maxpool")),
        ("self.net(x)", ("relu",)),
    ],
)
def test_ways_to_write_an_epilogue(expression: str, epilogue: tuple[str, ...]) -> None:
    model = f"""
        class Model(nn.Module):
            def __init__(self, width):
                super(Model, self).__init__()
                self.net = nn.Sequential(nn.Conv2d(3, width, (3, 5), padding="same", bias=False), nn.ReLU())

            def forward(self, picture):
                x = picture
                return {expression}
    """
    workload = found(reference(model, "torch.rand(2, 3, 8, 12)", "[6]"))
    assert (workload.module, workload.epilogue) == ("net[0]", epilogue)
    assert [workload.sizes[name] for name in ("R", "S", "pad_h", "pad_w", "bias")] == [3, 5, 1, 2, 0]
    assert "super(ModelNew, self)" in workload.constructor
    assert "def __init__(self, width):" in workload.constructor.splitlines()[0]


def test_layer_norm_as_a_function() -> None:
    own = reference(functional("F.layer_norm(x, (4, 5), eps=1e-3)"), "torch.rand(2, 3, 4, 5)")
    workload = found(own)
    assert workload.sizes == {"rows": 6, "cols": 20, "affine": 0, "bias": 0}
    assert workload.eps == 1e-3


def test_header_holds_what_the_constructor_needs_and_no_more() -> None:
    model = """
        def doubled(n):
            return FACTOR * n

        class Model(nn.Module):
            def __init__(self, width, *, taps=TAPS):
                super().__init__()
                other = doubled(width)
                self.conv = nn.Conv2d(3, other, taps)

            def forward(self, x):
                return self.conv(x)
    """
    own = reference(model, "torch.rand(1, 3, 9, 9)", "[4]", top="FACTOR = 2\nTAPS = 3\nbatch = 9\nwidth = 7")
    own = Problem(name="own", source=own.source, overrides={"FACTOR": 5})
    workload = found(own)
    assert workload.sizes["K"] == 20
    assert "FACTOR = 5" in workload.header
    assert "def doubled(n):" in workload.header
    assert "TAPS = 3" in workload.header
    assert "batch" not in workload.header
    assert "width = 7" not in workload.header


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (functional("torch.softmax(x, 0)"), "torch.rand(3, 7)"),
        (functional("torch.softmax(x, -1) + 1"), "torch.rand(3, 7)"),
        (functional("torch.softmax(x, -1).relu()"), "torch.rand(3, 7)"),
        (functional("torch.softmax(x, -1, dtype=torch.float64)"), "torch.rand(3, 7)"),
        (functional("F.relu(x)"), "torch.rand(3, 7)"),
        (functional("b @ a", "a, b"), "torch.rand(7, 7), torch.rand(7, 7)"),
        (functional("a @ a", "a"), "torch.rand(7, 7)"),
        (functional("a @ b", "a, b"), "torch.rand(2, 3, 7), torch.rand(2, 7, 5)"),
        (functional("x if x.sum() > 0 else -x"), "torch.rand(3, 7)"),
        (functional("undefined(x)"), "torch.rand(3, 7)"),
    ],
)
def test_what_is_not_recognised(model: str, inputs: str) -> None:
    assert recognise(reference(model, inputs)) is None


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Conv2d(4, 8, 3, groups=2)",
        "nn.Conv2d(4, 8, 3, padding=1, padding_mode='reflect')",
        "nn.Conv2d(4, 8, 4, padding='same')",
        "nn.Linear(9, 3)",
        "nn.MaxPool2d(2)",
        "nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ReLU())",
        "nn.Sequential(nn.Conv2d(4, 8, 3), nn.MaxPool2d((2, 3)))",
        "nn.Sequential(nn.Conv2d(4, 8, 3), nn.MaxPool2d(2, ceil_mode=True))",
        "nn.Sequential(nn.Conv2d(4, 8, 3), nn.Dropout())",
    ],
)
def test_layers_that_are_not_recognised(layer: str) -> None:
    model = f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = {layer}

            def forward(self, x):
                return self.layer(x)
    """
    assert recognise(reference(model, "torch.rand(1, 4, 9, 9)")) is None


def test_a_constructor_that_leans_on_its_class_is_not_recognised() -> None:
    model = """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = self.make()

            def make(self):
                return nn.Conv2d(3, 4, 3)

            def forward(self, x):
                return self.conv(x)
    """
    assert recognise(reference(model, "torch.rand(1, 3, 9, 9)")) is None
