"""Kernels used from code: the fastest one that fits, or a line that says why there is none."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluators.records.evaluation import Evaluation, Roofline, Status
from evaluators.records.problem import Problem
from evaluators.reference.cost.machine_peaks import device_name
from evaluators.system.user_cache import cache_folder
from kernel_library import best
from kernel_library.catalogue.best import candidates, fitting_entries
from kernel_library.catalogue.entry import AtShape, Entry, RepeatedMeasurement
from kernel_library.catalogue.fastest import EAGER
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.shape_table import at_shape
from kernel_library.overrides.choice import ranked
from tests.kernel_library.entries import CPU, entry, evaluation, reference

ROWS = reference("a[0].sum(-1)", "torch.randn(64, 64)", device="cpu")


def summing(number: int, problem: Problem = ROWS, speedup: float = 2.0, **fields: object) -> Entry:
    """A kernel whose result says which one it is."""
    source = f"import torch\n\ndef total(x):\n    return x.sum(-1) * 0 + {number}\n"
    known = {"op": "sum", "function": "total", "shapes": ("...x1..64",), "dtypes": ("float32", "float16")}
    return entry(problem, source, speedup, **{**known, **fields})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "library"


def chosen(root: Path, *entries: Entry, like: torch.Tensor) -> int:
    """The number of the kernel that is chosen."""
    library = FolderLibrary(root)
    for each in entries:
        library.add(each)
    return int(best("sum", like=like, root=root, measure=False)(like).flatten()[0])


@pytest.mark.slow
def test_the_fastest_that_fits(root: Path) -> None:
    wide = summing(3, shapes=("...x1..",), speedup=1.5)
    exact = summing(4, shapes=("2x8",), speedup=5.0)
    half = summing(5, dtypes=("float16",), speedup=9.0)
    other = summing(6, op="mean", speedup=9.0)
    gpu = summing(7, problem=reference("a[0].sum(-1)", "torch.randn(64, 64)"), speedup=9.0)
    nothing = summing(8, function="", problem=reference("self.l(a[0])", "torch.randn(4, 4)", device="cpu"))
    entries = [summing(1), summing(2, speedup=3.0), wide, exact, half, other, gpu, nothing]
    assert chosen(root, *entries, like=torch.ones(3, 8)) == 2
    assert chosen(root, like=torch.ones(2, 8)) == 4
    assert chosen(root, like=torch.ones(2, 65)) == 3
    assert chosen(root, like=torch.ones(3, 8, dtype=torch.float16)) == 5


@pytest.mark.slow
def test_a_call_that_needs_gradients_gets_a_kernel_with_a_backward_pass(root: Path) -> None:
    trains = summing(2, problem=replace(ROWS, backward=True), speedup=1.5)
    library, x = FolderLibrary(root), torch.ones(3, 8, requires_grad=True)
    library.add(summing(1))
    original = best("sum", like=x, root=root, backward=True, measure=False)
    assert original.original and original.differentiable and "no kernel with a backward" in original.why
    library.add(trains)
    found = best("sum", like=x, root=root, backward=True, measure=False)
    assert found.name == trains.id and found.differentiable
    found(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.zeros(3, 8))  # as this kernel says
    assert chosen(root, like=torch.ones(3, 8)) == 1


TRAINED = """import time, torch

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.columns = x.shape[-1]
        return x.sum(-1)

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.is_contiguous()
        time.sleep({pause})
        return gradient[..., None].expand(*gradient.shape, ctx.columns)

def total(x):
    return Sum.apply(x)
"""


def training(pause: float, speedup: float = 2.0) -> Entry:
    """A kernel whose backward pass takes that many seconds."""
    problem = replace(ROWS, backward=True)
    known = {"op": "sum", "function": "total", "shapes": ("...x*",), "dtypes": ("float32",)}
    return entry(problem, TRAINED.format(pause=pause), speedup, **known)


@pytest.mark.slow
def test_both_passes_are_timed_where_no_measurement_of_them_is_near(root: Path, timed: list[str]) -> None:
    slow, fast = training(0.01, speedup=9.0), training(0.0)
    for each in (slow, fast):
        FolderLibrary(root).add(here(each, "8x8"))
    x = torch.randn(40, 50, requires_grad=True)
    found = best("sum", like=x, root=root, backward=True)
    assert found.why.startswith("timed here: eager PyTorch ") and found.name != slow.id
    assert {*timed} == {EAGER, "torch.compile", slow.id, fast.id} and len(timed) == 4
    assert repr(best("sum", like=x, root=root, backward=True)) == repr(found) and len(timed) == 4
    assert best("sum", like=x, root=root, backward=True, measure=False).name == slow.id


@pytest.mark.parametrize(("speedup", "original"), [(1.5, False), (0.9, True)])
def test_a_table_of_both_passes_decides_for_calls_that_need_gradients(
    speedup: float, original: bool, root: Path, timed: list[str]
) -> None:
    known, x = training(0.0), torch.randn(40, 48, requires_grad=True)
    library = FolderLibrary(root)
    library.add(here(known, "8x8"))
    environment = {**CPU, "device": device_name("cpu")}
    rows = [
        at_shape(replace(ROWS, backward=backward), "40x48", evaluation(factor, environment))
        for backward, factor in ((True, speedup), (False, 1 / speedup))
    ]
    library.save_shapes(known.id, rows)
    (read,) = [each for each in library.entries() if each.id == known.id]
    assert read.at_shapes == tuple(rows)
    found = best("sum", like=x, root=root, backward=True)
    assert (found.original, found.name) == (original, EAGER if original else known.id)
    assert found.why.endswith(f"40x48 float32 on {device_name('cpu')}") and not timed
    found(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(40, 48))


@pytest.mark.slow
def test_the_measurement_closest_to_the_case_counts(root: Path) -> None:
    def both(number: int, large: float, small: float) -> Entry:
        known = summing(number, speedup=large)
        (first,) = known.measurements
        problem = reference("a[0].sum(-1)", "torch.randn(2, 2)", device="cpu")
        second = summing(number, problem=problem, speedup=small).measurements[0]
        return replace(
            known, measurements=(replace(first, inputs=("64x64",)), replace(second, inputs=("2x2",)))
        )

    seeds = root / "seeds"
    for known in (both(1, 3.0, 1.0), both(2, 2.0, 5.0)):
        FolderLibrary(seeds).add(known)
    assert chosen(seeds, like=torch.ones(60, 60)) == 1
    assert chosen(seeds, like=torch.ones(2, 3)) == 2


@pytest.mark.slow
def test_a_table_of_shapes_says_where_a_kernel_is_chosen(root: Path) -> None:
    def at(inputs: str, speedup: float) -> AtShape:
        problem = replace(ROWS, device="cpu")
        return replace(at_shape(problem, inputs, evaluation(speedup, CPU)), kernel_ms=1 / speedup)

    slow, fast = summing(1, speedup=2.0), summing(2, speedup=3.0)
    seeds = root / "seeds"
    library = FolderLibrary(seeds)
    for each in (slow, fast):
        library.add(each)
    assert chosen(seeds, like=torch.ones(2, 3)) == 2
    library.save_shapes(slow.id, [at("1024x64", 4.0)])
    library.save_shapes(fast.id, [at("1024x64", 1.5)])
    library.save_shapes(fast.id, [at("2x4", 5.0), at("1024x64", 0.5)])
    library.save_shapes(slow.id, [at("2x4", 1.0)])
    assert chosen(seeds, like=torch.ones(512, 64)) == 1
    assert chosen(seeds, like=torch.ones(2, 3)) == 2
    (known,) = [each for each in library.entries() if each.id == fast.id]
    assert [(each.inputs, each.speedup) for each in known.at_shapes] == [("1024x64", 0.5), ("2x4", 5.0)]
    (place,) = root.glob(f"seeds/{fast.id}/shapes.csv")
    place.write_text("inputs,dtype\n2x4,float32\n")
    assert chosen(seeds, like=torch.ones(2, 3)) == 2, "a table that cannot be read is left out"


def test_the_share_of_the_roofline_comes_before_the_speedup(root: Path) -> None:
    near = summing(2, speedup=2.5)
    roofline = Roofline(bytes=1, operations=0, floor_ms=0.9, bound="memory")
    (measurement,) = near.measurements
    measurement = replace(measurement, evaluation=replace(measurement.evaluation, roofline=roofline))
    assert (
        chosen(
            root, summing(1, speedup=9.0), replace(near, measurements=(measurement,)), like=torch.ones(2, 2)
        )
        == 2
    )


def test_a_killed_build_does_not_block_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's `load_inline` waits for the end of a lock that its killed process has left."""
    source = (
        "import os, pathlib\n"
        "# as load_inline does\n"
        "lock = pathlib.Path(os.environ['TORCH_EXTENSIONS_DIR'], 'sum', 'lock')\n"
        "assert not lock.exists(), 'it would wait'\n"
        "from torch.utils import cpp_extension\n"
        "from evaluators.runner import thin_headers\n"
        "build = cpp_extension._write_ninja_file_and_build_library\n"
        "assert build.func is thin_headers._build_library, 'it would take three times as long'\n"
        "def total(x):\n    return x.sum(-1)\n"
    )
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "elsewhere")
    known = entry(ROWS, source, 2.0, op="sum", function="total", shapes=("...x1..64",), dtypes=("float32",))
    left = cache_folder() / "extensions" / known.kernel.id / "sum" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    FolderLibrary(root).add(known)
    total = best("sum", like=torch.ones(3, 8), root=root, measure=False)
    assert float(total(torch.ones(3, 8))[0]) == 8.0
    assert os.environ["TORCH_EXTENSIONS_DIR"] == "elsewhere"


@pytest.mark.slow
def test_what_failed_here_is_not_used(root: Path) -> None:
    fast = summing(2, speedup=3.0)
    assert chosen(root, summing(1), fast, like=torch.ones(2, 2)) == 2
    failed = Evaluation(status=Status.INCORRECT, environment=CPU)
    FolderLibrary(root).save_check(fast, RepeatedMeasurement(problem_id=ROWS.id, evaluation=failed))
    assert chosen(root, like=torch.ones(2, 2)) == 1


def test_what_does_not_load_makes_room_for_the_next(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = "raise RuntimeError('no compiler\\nhere')\n"
    fields = {"op": "sum", "function": "total", "shapes": ("...x1..64",), "dtypes": ("float32",)}
    fast = entry(ROWS, source, 3.0, **fields)
    assert chosen(root, summing(1), fast, like=torch.ones(2, 2)) == 1
    assert f"{fast.id} does not load here: no compiler" in caplog.text


def test_a_module_without_arguments_is_a_function(root: Path) -> None:
    source = "from torch import nn\nclass ModelNew(nn.Module):\n    def forward(self, x): return x.sum(-1)\n"
    FolderLibrary(root).add(entry(ROWS, source))
    x = torch.randn(64, 64)
    total = best("sum", like=[x], root=root, measure=False)
    torch.testing.assert_close(total(x), x.sum(-1))
    assert not total.original


def test_a_gradient_that_would_be_dropped_is_refused(root: Path) -> None:
    FolderLibrary(root).add(summing(1))
    x = torch.ones(2, 2, requires_grad=True)
    total = best("sum", like=x, root=root, measure=False)
    with pytest.raises(RuntimeError, match="has no backward: detach its inputs"):
        total(x)
    with torch.no_grad():
        assert total(x).tolist() == [1.0, 1.0]
    assert total(x.detach()).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("op", "like", "said"),
    [
        ("gelu", torch.ones(2, 2), "no kernel for gelu of float32 2x2 on cpu; it has .*sum"),
        ("sum", [torch.ones(2, 2), torch.ones(3)], "sum of float32 2x2, 3 on cpu"),
    ],
)
def test_no_fitting_kernel_is_an_error(op: str, like: torch.Tensor, said: str, root: Path) -> None:
    FolderLibrary(root).add(summing(1))
    with pytest.raises(LookupError, match=said) as caught:
        best(op, like=like, root=root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (torch.ones(2, 65), "no kernel for sum of float32 2x65 on cpu"),
        (torch.ones(2, 2, dtype=torch.float64), "no kernel for sum of float64 2x2 on cpu"),
    ],
)
def test_where_no_kernel_fits_pytorch_computes(like: torch.Tensor, said: str, root: Path) -> None:
    FolderLibrary(root).add(summing(1))
    total = best("sum", like=like, root=root, measure=False)
    assert total.original
    assert said in total.why
    assert torch.equal(total(like), like.sum(-1))


@pytest.mark.slow
def test_where_no_kernel_fits_the_original_is_timed_with_and_without_the_compiler(root: Path) -> None:
    total = best("swiglu", like=torch.ones(8, 64, dtype=torch.float64), root=root)
    assert total.original
    assert total.why.startswith("timed here: eager PyTorch ")
    assert "torch.compile" in total.why


SLOW = "import time, torch\n\ndef total(x):\n    time.sleep(0.01)\n    return x.sum(-1)\n"


def here(known: Entry, inputs: str) -> Entry:
    """The entry, measured at this shape on this device."""
    (first,) = known.measurements
    environment = {**first.evaluation.environment, "device": device_name("cpu")}
    evaluated = replace(first.evaluation, environment=environment)
    return replace(known, measurements=(replace(first, inputs=(inputs,), evaluation=evaluated),))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that were timed; without torch.compile, which takes ten seconds."""
    from kernel_library.catalogue import best as module

    milliseconds, names = module.milliseconds, list[str]()

    def recorded(runs: Any, arguments: Any) -> Any:
        names.extend(runs)
        return milliseconds(runs, arguments)

    monkeypatch.setattr(module, "milliseconds", recorded)
    monkeypatch.setattr(module, "compiled", lambda original: original.function)
    return names


@pytest.mark.parametrize(
    ("shape", "speedup", "original"), [("60x60", 0.9, True), ("60x60", 2.0, False), ("56x64", 1.0, True)]
)
def test_a_near_measurement_decides_without_timing(
    shape: str, speedup: float, original: bool, root: Path, timed: list[str]
) -> None:
    """The original is returned without loading the kernel."""
    source = "raise RuntimeError('not loaded')" if original else "def total(x):\n    return x * 0"
    known = entry(ROWS, source, speedup, op="sum", function="total", shapes=("...x*",), dtypes=("float32",))
    FolderLibrary(root, min_speedup=0).add(here(known, shape))
    x = torch.ones(*map(int, shape.split("x")), requires_grad=True)
    found = best("sum", like=x, root=root)
    assert (found.original, found.name) == (original, EAGER if original else known.id)
    assert found.why.endswith(f"{shape} float32 on {device_name('cpu')}") and "\n" not in repr(found)
    assert not timed
    if original:
        found(x).sum().backward()
        assert x.grad is not None, "the original has a backward"


@pytest.mark.slow
def test_kernels_are_timed_where_no_measurement_is_near(root: Path, timed: list[str]) -> None:
    """A kernel that was fast elsewhere loses here, once; the times are kept."""
    known = entry(ROWS, SLOW, 9.0, op="sum", function="total", shapes=("...x*",), dtypes=("float32",))
    FolderLibrary(root).add(here(known, "8x8"))
    x = torch.ones(2, 1000)
    found = best("sum", like=x, root=root)
    assert found.original and found.why.startswith("timed here: eager PyTorch ")
    assert timed == [EAGER, "torch.compile", known.id]
    assert torch.equal(found(x), x.sum(-1))
    assert repr(best("sum", like=x, root=root)) == repr(found)
    assert len(timed) == 3, "known by now"
    best("sum", like=torch.ones(2, 1001), root=root)
    best("sum", like=torch.ones(1000, 2).t(), root=root)
    assert len(timed) == 9, "another shape, another layout"
    assert not best("sum", like=x, root=root, measure=False).original


@pytest.mark.slow
def test_the_reference_is_the_original_of_other_operations(root: Path, timed: list[str]) -> None:
    problem = reference(
        "__import__('time').sleep(0.01) or a[0].cumsum(-1)", "torch.randn(8, 8)", device="cpu"
    )
    source = "def total(x):\n    return x.cumsum(-1)\n"
    known = entry(problem, source, 0.5, op="scan", function="total", shapes=("...x*",), dtypes=("float32",))
    FolderLibrary(root, min_speedup=0).add(here(known, "8x8"))
    assert best("scan", like=torch.ones(8, 8), root=root).original
    found = best("scan", like=torch.ones(40, 9), root=root)
    assert found.name == known.id, "timed: the reference sleeps"
    assert found(torch.ones(1, 3)).tolist() == [[1, 2, 3]]


@pytest.mark.slow
def test_a_kernel_that_fails_or_returns_something_else_is_not_chosen(
    root: Path, timed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for body in (
        "raise RuntimeError('no launch')",
        "return x.sum(-1, keepdim=True)",
        "return x.sum(-1).double()",
    ):
        known = entry(
            ROWS,
            f"def total(x):\n    {body}\n",
            9.0,
            op="sum",
            function="total",
            shapes=("...x*",),
            dtypes=("float32",),
        )
        FolderLibrary(root).add(known)
    assert best("sum", like=torch.ones(2, 1000), root=root).original
    for said in (
        "no launch",
        "returns (2, 1) of torch.float32, not (2,) of",
        "returns (2,) of torch.float64",
    ):
        assert said in caplog.text


def test_the_original_computes_what_the_kernel_does_not_support(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "if len(x) == 3:\n        raise ValueError('not three rows')\n    return x.sum(-1) * 0"
    source = f"def total(x):\n    {body}\n"
    known = entry(ROWS, source, 2.0, op="sum", function="total", shapes=("*x1..64",), dtypes=("float32",))
    FolderLibrary(root).add(known)
    total = best("sum", like=torch.ones(2, 8), root=root, measure=False)
    for x, sum_ in (
        (torch.ones(2, 8), 0),
        (torch.ones(2, 65), 65),
        (torch.ones(1, 2, 8), 8),
        (torch.ones(2, 8, dtype=torch.float64), 8),
        (torch.ones(3, 8), 8),
        (torch.ones(3, 8), 8),
        (torch.ones(4, 8), 0),
    ):
        found = total(x)
        assert found.dtype == x.dtype and found.flatten()[0] == sum_, x.shape
    assert caplog.text.count("not three rows") == 1


SHIPPED = FolderLibrary("memory://no-root").entries()
QUERIES = (2, 16, 256, 64)


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "right"),
    [
        ("attention", (QUERIES,) * 3, "float16", True),
        ("attention", (QUERIES,), "float16", True),
        ("attention", (QUERIES, (2, 8, 256, 64), (2, 8, 256, 64)), "float16", False),
        ("attention", (QUERIES, (2, 1, 256, 64), (2, 1, 256, 64)), "bfloat16", False),
        ("attention", (QUERIES, (2, 16, 512, 64), (2, 16, 512, 64)), "float16", False),
        ("attention", (QUERIES, QUERIES, (2, 16, 256, 128)), "float16", False),
        ("attention", (QUERIES[1:],) * 3, "float16", False),
        ("matmul", ((64, 32), (32, 8)), "float16", True),
        ("matmul", ((64, 32), (16, 8)), "float16", False),
        ("cross_entropy", ((64, 1000), (64,)), "float32", True),
        ("cross_entropy", ((64, 1000), (63,)), "float32", False),
        ("cross_entropy", ((64, 1000), (64, 1000)), "float32", False),
        ("rotary", ((1, 2, 64, 32), (64, 16), (64, 16)), "float32", True),
        ("rotary", ((1, 2, 64, 32), (1, 64, 32), (1, 64, 32)), "float32", False),
        ("conv2d", ((4, 128, 56, 56), (128, 128, 3, 3)), "float16", True),
        ("layernorm", ((4, 128), (128,), (128,)), "float32", True),
        ("softmax", ((4, 128), (4, 128)), "float32", False),
    ],
)
def test_sizes_that_must_agree_are_stated(
    op: str, shapes: tuple[tuple[int, ...], ...], dtype: str, right: bool
) -> None:
    """Grouped queries, for example, have fewer heads of keys."""
    assert bool(fitting_entries(SHIPPED, op, shapes, dtype, "9.0")) is right


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "near"),
    [
        ("matmul", [(6000, 8192), (8192, 128)], "float16", False),
        ("matmul", [(512, 512), (512, 512)], "float16", True),
        ("matmul", [(512, 4096), (4096, 512)], "float16", False),
        ("matmul", [(4096, 4096), (4096, 4090)], "float32", False),
        ("conv2d", [(4, 128, 56, 56)], "float16", False),
        ("conv2d", [(64, 128, 56, 56), (128, 128, 3, 3)], "float16", True),
        ("conv2d", [(64, 128, 56, 56), (128, 128, 1, 1)], "float16", False),
        ("cross_entropy", [(512, 10)], "float32", False),
        ("cross_entropy", [(4096, 32000)], "float32", True),
        ("softmax", [(65536, 1024)], "float32", True),
        ("softmax", [(65536, 1000)], "float32", False),
    ],
)
def test_which_shapes_the_shipped_tables_tell_about(
    op: str, shapes: list[tuple[int, ...]], dtype: str, near: bool
) -> None:
    """On an H200. Other shapes and devices are measured."""
    for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        fitting = {each.id for each in fitting_entries(SHIPPED, op, shapes, dtype, "9.0")}
        first = ranked([each for each in candidates(SHIPPED) if each.name in fitting], "9.0", dtype, shapes)[
            0
        ]
        closest = first.closest("9.0", dtype, shapes)
        assert closest.is_near(device, dtype, shapes) is (near and "H200" in device)
    if op == "matmul" and shapes[0] == (512, 512):
        assert closest.speedup_low < 1, "the original wins"
