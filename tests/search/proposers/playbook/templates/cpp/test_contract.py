"""Every C++ template, naive and with random valid knobs, against PyTorch in float64 at odd sizes."""

import importlib.util
import itertools
import random
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from evaluators.records.problem import Problem
from evaluators.reference.loading import load_module, load_problem
from search.proposers.playbook.move import Knob, Knobs, Template
from search.proposers.playbook.playbook import Playbook
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.templates.cpp import machine
from search.proposers.playbook.templates.scaffold import read_stamp
from search.proposers.playbook.workload import Workload, recognise

CONV = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()
        self.layers = nn.Sequential({layers})

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.randn{shape}]

def get_init_inputs():
    return []
"""


def conv(shape: tuple[int, ...], layers: str, tolerance: str = "kernelbench") -> Problem:
    return Problem(name="conv", source=CONV.format(shape=shape, layers=layers), tolerance=tolerance)


SQUARE = "nn.Conv2d(3, 35, 5, stride=2, padding=1)"
PROBLEMS = {
    "plain": conv((2, 3, 21, 40), SQUARE),
    "oblong": conv((1, 2, 17, 45), "nn.Conv2d(2, 20, (3, 4), (1, 2), (2, 1), (2, 1), bias=False)"),
    "unpadded": conv((3, 4, 12, 23), "nn.Conv2d(4, 16, 3)"),
    "dilated": conv((1, 3, 19, 30), "nn.Conv2d(3, 9, 3, padding=(3, 2), dilation=(3, 2))"),
    "relu": conv((2, 3, 14, 26), "nn.Conv2d(3, 33, 3, padding=1), nn.ReLU()"),
    "pool": conv((2, 3, 21, 40), f"{SQUARE}, nn.MaxPool2d(2)"),
    "overlapping": conv((2, 3, 25, 44), f"{SQUARE}, nn.ReLU(), nn.MaxPool2d(3, 2, 1)"),
    "sparse": conv((1, 3, 25, 44), f"{SQUARE}, nn.ReLU(), nn.MaxPool2d(2, 3)"),
    "matmul": load_problem("level1/matmul", sizes={"size": 96}),
    "oblong matmul": Problem(
        name="oblong",
        source=load_problem("level1/matmul").source.replace(
            "[torch.randn(size, size), torch.randn(size, size)]", "[torch.randn(37, 53), torch.randn(53, 71)]"
        ),
    ),
    "softmax": load_problem("level1/softmax", sizes={"batch": 5, "features": 1040}, tolerance="strict"),
    "odd softmax": load_problem("level1/softmax", sizes={"batch": 3, "features": 70003}, tolerance="strict"),
    "short softmax": load_problem("level1/softmax", sizes={"batch": 7, "features": 5}, tolerance="strict"),
    "layernorm": load_problem(
        "level1/layernorm", sizes={"batch": 3, "features": 4, "height": 40, "width": 64}
    ),
    "odd layernorm": load_problem(
        "level1/layernorm", sizes={"batch": 5, "features": 3, "height": 7, "width": 129}
    ),
    "plain layernorm": conv((3, 5, 97), "nn.LayerNorm(97, elementwise_affine=False)"),
    "unshifted layernorm": conv((3, 5, 97), "nn.LayerNorm((5, 97), bias=False, eps=0.1)"),
}
SAMPLES = [0, *(pytest.param(sample, marks=pytest.mark.exhaustive) for sample in (1, 2, 3))]
"""Random kernels of each problem."""


pytestmark = pytest.mark.usefixtures("shared_builds")


def known(problem: Problem) -> tuple[Workload, Template]:
    workload = Playbook().workload(problem)
    assert workload is not None
    template = template_for(workload.op, "cpp")
    assert template is not None
    return workload, template


def imported(source: str, folder: Path) -> types.ModuleType:
    path = folder / "kernel.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(workload: Workload, template: Template, rng: random.Random) -> Iterator[Knobs]:
    """Valid knobs at random, out of all values that any move knows."""
    values: dict[str, list[Knob]] = {knob: [value] for knob, value in template.naive.items()}
    for move in template.moves:
        for knob, value in itertools.chain(
            move.sets.items(), ((k, v) for k, vs in move.varies.items() for v in vs)
        ):
            if value not in values[knob]:
                values[knob].append(value)
    while True:
        knobs = {knob: rng.choice(choices) for knob, choices in values.items()}
        if template.valid(workload, knobs) and (knobs.get("dtype") != "bf16" or machine.has("avx512_bf16")):
            yield knobs


def check(problem: Problem, source: str, folder: Path, *, bf16: bool) -> None:
    """The kernel's error against float64 is of the order of eager's, for several input distributions."""
    reference = load_module(problem.source, problem.overrides)
    torch.manual_seed(3)
    model = reference.Model(*reference.get_init_inputs())
    torch.manual_seed(3)
    kernel = imported(source, folder).ModelNew(*reference.get_init_inputs())
    inputs = reference.get_inputs()
    families = {"own": inputs, "shifted": [x + 10 for x in inputs], "large": [x * 100 for x in inputs]}
    families["strided"] = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in inputs]
    for family, given in families.items():
        with torch.no_grad():
            out, eager = kernel(*given), model.float()(*given)
            exact = model.double()(*(x.double() for x in given))
            model.float()
        assert (out.shape, out.dtype) == (eager.shape, eager.dtype)
        error = ((out - exact).norm() / exact.norm()).item()
        allowed = 1e-2 if bf16 else 4 * ((eager - exact).norm() / exact.norm()).item() + 4e-7
        assert error <= allowed, f"{family}: {error} > {allowed}"
    if bf16:
        return  # rows are padded with zeros there, which make more of a NaN
    lost = [x.clone() for x in inputs]
    lost[0].view(-1)[lost[0].numel() // 2] = torch.nan
    with torch.no_grad():
        assert torch.equal(kernel(*lost).isnan(), model(*lost).isnan())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_naive_kernel_agrees_with_torch(name: str, tmp_path: Path) -> None:
    workload, template = known(PROBLEMS[name])
    assert template.valid(workload, template.naive)
    source = template.render(workload, template.naive)
    check(PROBLEMS[name], source, tmp_path, bf16=False)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_random_kernels_agree_with_torch(name: str, sample: int, tmp_path: Path) -> None:
    workload, template = known(PROBLEMS[name])
    knobs = next(settings(workload, template, random.Random(f"{name} {sample}")))
    source = template.render(workload, knobs)
    assert read_stamp(source) == (template.op, "cpp", knobs)
    check(PROBLEMS[name], source, tmp_path, bf16=knobs.get("dtype") == "bf16")


@pytest.mark.slow
def test_a_narrow_image_keeps_its_border(tmp_path: Path) -> None:
    """GCC 12 made a loop wrong there that copies seven elements at -O3 for AVX-512."""
    narrow = conv((1, 7, 8, 7), "nn.Conv2d(7, 4, 3, padding=1)")
    workload, template = known(narrow)
    tiles = {"tile_q": 4, "tile_k": 2, "constants": True, "flags": "-O3 -march=native"}
    knobs = {**template.naive, **tiles, "algorithm": "im2col", "border": "zeros"}
    check(narrow, template.render(workload, knobs), tmp_path, bf16=False)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [{"joint": True}, {"scratch": True}, {"threads": True, "split": "parts"}])
def test_a_softmax_whose_beginning_is_masked(knobs: Knobs, tmp_path: Path) -> None:
    """A block that has nothing but minus infinity must not turn the rest of its row into NaN."""
    workload, template = known(PROBLEMS["softmax"])
    full = {**template.naive, "lanes": 16, "sums": "float", "block": 256, **knobs}
    assert template.valid(workload, full)
    x = torch.randn(3, 1040)
    x[0, :700], x[1] = -torch.inf, -torch.inf
    made = imported(template.render(workload, full), tmp_path).ModelNew()(x)
    torch.testing.assert_close(made, torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("op", ["conv2d", "pointwise", "product", "rows"])
def test_moves_turn_known_knobs_and_cover_every_category(op: str) -> None:
    template = template_for(op, "cpp")
    assert template is not None
    names = [move.name for move in template.moves]
    assert len(set(names)) == len(names)
    for move in template.moves:
        assert {*move.needs, *move.sets, *move.varies} <= set(template.naive)
        assert move.gain >= 1
    assert len({move.category for move in template.moves}) >= 4


def test_fast_settings_are_not_offered_where_they_are_not_allowed() -> None:
    workload, template = known(conv((2, 3, 21, 40), SQUARE, tolerance="strict"))
    fast = {**template.naive, "algorithm": "direct", "flags": "-O3 -march=native"}
    assert not any("bf16" in move.name for move in template.moves if move.fits(workload, fast))
    half = Problem(name="half", source=PROBLEMS["plain"].source, dtype="float16")
    recognised = recognise(half)
    assert recognised is not None and not template.valid(recognised, template.naive)


@pytest.mark.slow
def test_a_compiler_error_is_raised_with_its_words(tmp_path: Path) -> None:
    workload, template = known(PROBLEMS["matmul"])
    source = template.render(workload, template.naive).replace("const C beta", "cosnt C beta")
    with pytest.raises(RuntimeError, match="cosnt"):
        imported(source, tmp_path)


@pytest.mark.slow
def test_a_built_kernel_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, template = known(PROBLEMS["matmul"])
    source = template.render(workload, {**template.naive, "loop": "columns"})
    imported(source, tmp_path)
    monkeypatch.setenv("CXX", "false")
    imported(source, tmp_path)
    with pytest.raises(RuntimeError):
        imported(template.render(workload, {**template.naive, "loop": "columns", "threads": True}), tmp_path)


@pytest.mark.slow
def test_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    workload, template = known(PROBLEMS["unpadded"])
    kernel = imported(template.render(workload, template.naive), tmp_path).ModelNew()
    with pytest.raises(ValueError, match="12, 23"):
        kernel(torch.rand(3, 4, 12, 22))


def test_no_template_for_an_unknown_operation() -> None:
    assert template_for("fft", "cpp") is None
