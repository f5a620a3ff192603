"""References: sizes reach what is derived from them, bad files are refused in one line, draws repeat."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from evaluators.records.problem import Problem
from evaluators.reference.containers import tensors_of
from evaluators.reference.loading import (
    PROBLEMS,
    BadReference,
    as_task,
    assigned_names,
    check_source,
    init_inputs,
    load_module,
    load_problem,
    make_inputs,
    make_model,
)

CONFIGS = Path(__file__).parents[3] / "configs" / "problem"
SHIPPED = sorted(str(p.relative_to(CONFIGS).with_suffix("")) for p in CONFIGS.glob("level*/*.yaml"))

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return self.linear(x)

N = 4
width: int = N * 2
shape = (N, width)
rows = cols = 3
first, (second, third) = 1, (2, 3)

def get_inputs():
    return [torch.rand(shape)]

def get_init_inputs():
    return [width]
"""


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    before = sys.modules.get("reference")
    yield
    sys.modules.pop("reference", None)
    if before is not None:
        sys.modules["reference"] = before


def module_of(body: str, **overrides: Any) -> Any:
    return load_module(body, overrides)


def written(tmp_path: Path, source: str | bytes) -> str:
    path = tmp_path / "mine.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return str(path)


def test_without_overrides_the_source_is_as_it_is() -> None:
    module = module_of(SOURCE)
    assert (module.N, module.width, module.shape) == (4, 8, (4, 8))


def test_an_override_reaches_globals_that_are_computed_from_it() -> None:
    module = module_of(SOURCE, N=5)
    assert (module.N, module.width, module.shape) == (5, 10, (5, 10))
    assert make_inputs(module, seed=1, device="cpu", dtype="float32")[0].shape == (5, 10)
    assert init_inputs(module, 1) == [10]


def test_an_override_of_a_computed_global_is_kept() -> None:
    module = module_of(SOURCE, N=5, width=7)
    assert (module.N, module.width, module.shape) == (5, 7, (5, 7))


def test_an_override_changes_the_name_and_not_its_neighbours() -> None:
    module = module_of(SOURCE, rows=9, second=8)
    assert (module.rows, module.cols) == (9, 3)
    assert (module.first, module.second, module.third) == (1, 8, 3)


@pytest.mark.parametrize("value", [7, -1, 0.5, True, "same", (1, 2), ((1, 2), "x")])
def test_values_of_every_kind(value: Any) -> None:
    assert module_of("size = None", size=value).size == value


def test_a_tuple_that_came_by_way_of_json_is_a_tuple_again() -> None:
    assert module_of("size = None", size=[1, [2, 3]]).size == (1, (2, 3))


def test_a_size_that_is_assigned_again_stays_replaced() -> None:
    assert module_of("N = 1\nN = 2\nM = N", N=7).M == 7


def test_the_sources_own_names_do_not_confuse_assignments() -> None:
    source = "N = 1\nx = [N for N in range(3)]\nd = {}\nd['N'] = 5\ny = N"
    module = module_of(source, N=7)
    assert (module.x, module.d, module.y) == ([0, 1, 2], {"N": 5}, 7)


def test_assigned_names_are_the_globals_and_nothing_deeper() -> None:
    source = 'a: int = 1\nb, (c, d) = 2, (3, 4)\ne[\'x\'] = f.y = 5\ndef g():\n    h = 6\n"""\ni = 7\n"""'
    assert assigned_names(source) == {"a", "b", "c", "d"}


def test_a_reference_is_compiled_with_its_own_future_imports() -> None:
    """Not by the `from __future__` of the module that loads it."""
    assert module_of("def f(x: int): ...").f.__annotations__ == {"x": int}
    lazy = module_of("from __future__ import annotations\nN = 1\ndef f(x: int): ...", N=2)
    assert (lazy.f.__annotations__, lazy.N) == ({"x": "int"}, 2)


def test_a_user_file(tmp_path: Path) -> None:
    problem = load_problem("file", path=written(tmp_path, SOURCE), sizes={"N": 2}, tolerance="strict")
    expected = Problem(name="file/mine", source=SOURCE, overrides={"N": 2}, tolerance="strict")
    assert problem == expected


@pytest.mark.parametrize(
    ("weights", "inputs", "dtype"),
    [
        ("torch.float64", "torch.float64", "float64"),
        ("torch.bfloat16", "torch.bfloat16", "bfloat16"),
        ("torch.float16", "torch.float32", "float32"),
        ("torch.float32", "torch.int64", "float32"),
    ],
)
def test_a_reference_determines_its_dtype(tmp_path: Path, weights: str, inputs: str, dtype: str) -> None:
    source = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, dtype={weights}))
    def forward(self, x): return x * self.weight
def get_inputs(): return [torch.ones(2, dtype={inputs})]
def get_init_inputs(): return []
"""
    path = written(tmp_path, source)
    assert load_problem("file", path=path).dtype == dtype
    assert load_problem("file", path=path, dtype="float16").dtype == "float16"


def test_sizes_of_the_cpu_hold_on_the_cpu_alone_and_give_way_to_sizes(tmp_path: Path) -> None:
    path = written(tmp_path, SOURCE)
    sizes: dict[str, Any] = {"sizes": {"N": 2}, "cpu_sizes": {"N": 1, "rows": 1}}
    assert load_problem("file", path=path, device="cpu", **sizes).overrides == {"N": 2, "rows": 1}
    assert load_problem("file", path=path, device="cuda", **sizes).overrides == {"N": 2}


def refusal(source: str, **overrides: Any) -> str:
    with pytest.raises(BadReference) as caught:
        check_source(source, "mine.py", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_of_half_precision_is_rounded_to_no_lower_one() -> None:
    def precision(dtype: str, device: str) -> str:
        return load_problem("level1/conv2d", dtype=dtype, device=device, precision="float16").precision

    assert [precision(dtype, "cuda") for dtype in ("float32", "float16", "bfloat16")] == ["float16", "", ""]


def test_what_is_missing_is_named() -> None:
    assert "defines no Model;" in refusal(SOURCE.replace("class Model(", "class Net("))
    assert "no get_inputs and no get_init_inputs" in refusal("class Model: ...")
    assert "no Model and no get_inputs and no get_init_inputs" in refusal("")


def test_names_may_be_bound_in_any_way() -> None:
    check_source("from nets import Net as Model, get_inputs\nget_init_inputs = lambda: []", "mine.py", {})


def test_a_syntax_error_says_its_line() -> None:
    assert refusal("x = 1\ndef f(:\n    pass\n").startswith("mine.py is not Python: line 2:")


def test_null_bytes_are_no_python() -> None:
    assert "mine.py is not Python" in refusal(SOURCE + "\0")


def test_an_unknown_override_names_the_nearest() -> None:
    assert refusal(SOURCE, widht=3) == "mine.py has no module global widht to override; did you mean width?"
    assert refusal(SOURCE, qqqqqq=3) == "mine.py has no module global qqqqqq to override"


@pytest.mark.parametrize("name", ["Model", "get_inputs", "torch", "nn"])
def test_only_what_is_assigned_can_be_overridden(name: str) -> None:
    """An override of anything else would be accepted and do nothing."""
    assert f"no module global {name} to override" in refusal(SOURCE, **{name: 3})


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(BadReference, match="cannot be read") as caught:
            load_problem("file", path=str(path))
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unknown_shipped_problem() -> None:
    with pytest.raises(BadReference, match="cannot be read"):
        load_problem("level1/conv3d")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadReference, match="cannot be read"):
        load_problem("file", path=written(tmp_path, b"\x7fELF\xff\xfe\x00"))


def test_bad_references_are_value_errors() -> None:
    """Which is what a command turns into one line."""
    assert issubclass(BadReference, ValueError)


def parameters(seed: int, dtype: str = "float32") -> list[torch.Tensor]:
    module = module_of(SOURCE)
    model = make_model(module, "Model", init_inputs(module, seed), seed=seed, device="cpu", dtype=dtype)
    return [p.detach() for p in model.parameters()]


def test_the_same_seed_gives_the_same_weights() -> None:
    one, other = parameters(5), parameters(5)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, parameters(6), strict=True))


def test_weights_do_not_depend_on_what_was_drawn_before() -> None:
    one = parameters(5)
    torch.rand(1000)
    assert all(torch.equal(a, b) for a, b in zip(one, parameters(5), strict=True))


def test_a_candidate_that_draws_alike_has_the_references_weights() -> None:
    module = module_of(SOURCE)
    candidate = load_module(SOURCE.replace("Model", "ModelNew"), {}, "other")
    ours = make_model(module, "Model", [8], seed=3, device="cpu", dtype="float32")
    theirs = make_model(candidate, "ModelNew", [8], seed=3, device="cpu", dtype="float32")
    assert all(
        torch.equal(a, b)
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    )
    sys.modules.pop("other")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_weights_and_inputs_come_at_the_tasks_dtype(dtype: str) -> None:
    assert {p.dtype for p in parameters(1, dtype)} == {getattr(torch, dtype)}
    assert make_inputs(module_of(SOURCE), seed=1, device="cpu", dtype=dtype)[0].dtype is getattr(torch, dtype)


INPUTS = """
import random
import numpy
import torch

def get_inputs():
    return [
        torch.randn(3), torch.randint(0, 1000, (50,)), torch.rand(50) < 0.5, random.random(),
        torch.from_numpy(numpy.random.rand(4)), 7, "mean", None,
    ]

def get_init_inputs():
    return [random.random(), float(torch.rand(()))]
"""


def test_integers_booleans_and_plain_values_stay_what_they_are() -> None:
    values = make_inputs(module_of(INPUTS), seed=1, device="cpu", dtype="float16")
    kinds = [v.dtype if isinstance(v, torch.Tensor) else v for v in values]
    assert kinds[:3] == [torch.float16, torch.int64, torch.bool]
    assert kinds[4:] == [torch.float16, 7, "mean", None]
    assert isinstance(kinds[3], float)


def test_every_generator_is_seeded() -> None:
    def draw(seed: int) -> list[Any]:
        values = make_inputs(module_of(INPUTS), seed=seed, device="cpu", dtype="float32")
        return [v.tolist() if isinstance(v, torch.Tensor) else v for v in values]

    assert draw(2**61 + 1) == draw(2**61 + 1)
    assert all(a != b for a, b in zip(draw(1)[:5], draw(2)[:5], strict=True))
    assert init_inputs(module_of(INPUTS), 4) == init_inputs(module_of(INPUTS), 4)
    assert init_inputs(module_of(INPUTS), 4) != init_inputs(module_of(INPUTS), 5)


def test_inputs_are_as_the_reference_makes_them() -> None:
    assert as_task(torch.ones(2, requires_grad=True), "cpu", "float16").requires_grad
    assert not as_task(torch.ones(2), "cpu", "float16").requires_grad
    strided = as_task(torch.arange(12.0)[1::2], "cpu", "float16")
    assert (strided.stride(), strided.storage_offset(), strided.dtype) == ((2,), 1, torch.float16)
    assert strided.tolist() == [1, 3, 5, 7, 9, 11]
    expanded = as_task(torch.ones(3, 1).expand(3, 4), "cpu", "bfloat16")
    assert expanded.stride() == (1, 0)
    ones, (two, three) = as_task([torch.ones(1), ({"x": torch.ones(2)}, 3)], "cpu", "float16")
    assert ones.dtype == two["x"].dtype == torch.float16 and three == 3


def test_every_shipped_problem_has_a_config_and_every_config_its_problem() -> None:
    files = {str(p.relative_to(PROBLEMS).with_suffix("")) for p in PROBLEMS.glob("level*/*.py")}
    assert {name for name in files if not name.endswith("__init__")} == set(SHIPPED)
    assert len(SHIPPED) >= 5


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_problems_load_and_run_at_the_sizes_for_a_cpu(name: str) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config.pop("_target_")
    assert config["name"] == name
    problem = load_problem(**config, device="cpu")
    assert problem.overrides == config["cpu_sizes"]
    module = load_module(problem.source, problem.overrides)
    model = make_model(module, "Model", init_inputs(module, 1), seed=1, device="cpu", dtype=problem.dtype)
    inputs = make_inputs(module, seed=2, device="cpu", dtype=problem.dtype)
    with torch.no_grad():
        outputs = tensors_of(model(*inputs))
    for output in outputs:
        assert bool(torch.isfinite(output).all())
        assert output.std() > 0, "an output that does not vary judges nothing"
        if problem.tolerance != "strict":
            assert output.abs().median() > 0.05, "a flat tolerance is for outputs of order one"


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_problems_load_at_full_size_for_a_gpu(name: str) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    config.pop("_target_")
    assert load_problem(**config, device="cuda").overrides == {}


MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        self.given = {given}

    def forward(self, x, y=None, *, z=None):
        return x

def get_inputs():
    return {inputs}

def get_init_inputs():
    return {init}
"""


def model_of(parameters: str, given: str, init: str, inputs: str = "[]") -> Any:
    return module_of(MODEL.format(parameters=parameters, given=given, init=init, inputs=inputs))


@pytest.mark.parametrize(
    ("parameters", "init", "given"),
    [
        ("n_in", "[4]", (4,)),
        ("n_in", "[[], {'n_in': 4}]", (4,)),
        ("n_in, bias=True", "[[4], {'bias': False}]", (4, False)),
        ("n_in, n_out=8", "([], dict(n_out=2, n_in=4))", (4, 2)),
        ("*, n_in", "[[], {'n_in': 4}]", (4,)),
        ("n_in=4", "[[], {}]", (4,)),
        ("n_in, n_out=3", "[[4], {}]", ([4], {})),  # Model takes these two
        ("sizes, options", "[[4, 8], {'bias': True}]", ([4, 8], {"bias": True})),
        ("sizes, options", "[[4, 8], {}]", ([4, 8], {})),
        ("n_in", "{'n_in': 4}", (4,)),
        ("n_in, n_out", "iter([4, 8])", (4, 8)),
        ("n_in", "4", (4,)),
        ("n_in", "'relu'", ("relu",)),
        ("n_in=4", "None", (4,)),
        ("sizes", "[[4, 8]]", ([4, 8],)),
    ],
)
def test_the_forms_of_constructor_arguments(parameters: str, init: str, given: tuple[Any, ...]) -> None:
    names = ", ".join(each.partition("=")[0].strip() for each in parameters.split(",") if "*" not in each)
    module = model_of(parameters, f"({names},)", init)
    model: Any = make_model(module, "Model", init_inputs(module, 1), seed=1, device="cpu", dtype="float32")
    assert model.given == given


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ("torch.ones(65, 3)", [(65, 3)]),
        ("[torch.ones(65, 3)]", [(65, 3)]),
        ("(torch.ones(2), torch.ones(3))", [(2,), (3,)]),
        ("{'y': torch.ones(3), 'x': torch.ones(2)}", [(2,), (3,)]),
        ("iter([torch.ones(2)])", [(2,)]),
        ("{'a': torch.ones(2)}.values()", [(2,)]),
    ],
)
def test_the_forms_of_inputs(inputs: str, shapes: list[tuple[int, ...]]) -> None:
    module = model_of("n=1", "n", "[]", inputs)
    found = make_inputs(module, seed=1, device="cpu", dtype="float64")
    assert [tuple(each.shape) for each in found] == shapes
    assert {each.dtype for each in found} == {torch.float64}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("{'x': 1, 'z': 2}", "names z, which Model.forward takes by name only"),
        (
            "{'x': 1, 'nothing': 2}",
            "does not suit Model.forward: got an unexpected keyword",
        ),
        ("None", "get_inputs() returns None; it must return a list of inputs"),
        ("'x'", "get_inputs() returns 'x'; it must return a list of inputs"),
    ],
)
def test_inputs_that_are_none(inputs: str, says: str) -> None:
    with pytest.raises(BadReference) as caught:
        make_inputs(model_of("n=1", "n", "[]", inputs), seed=1, device="cpu", dtype="float32")
    assert says in str(caught.value)


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-8", "latin-1", "cp1252", "iso-8859-15"])
def test_a_reference_in_the_encoding_that_it_declares(codec: str, tmp_path: Path) -> None:
    head = "" if codec == "utf-8-sig" else f"# über -*- coding: {codec} -*-\r\n"
    data = f"{head}# Länge\n{SOURCE}".encode(codec)
    source = load_problem("file", path=written(tmp_path, data)).source
    assert "# Länge" in source and not source.startswith("\ufeff")
    assert load_module(source.encode().decode(), {}).width == 8
    assert compile(source.encode(), "x", "exec") is not None, "as a file in UTF-8 it is right, too"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            "# Länge\n".encode("latin-1"),
            "mine.py cannot be read: it is not text in utf-8 (byte 0xe4 in",
        ),
        (b"# coding: nothing\n", "mine.py cannot be read: it declares the unknown encoding: nothing"),
        ("x = 1".encode("utf-16"), "mine.py cannot be read: "),
        (b"x = 'a\0b'", "mine.py is not Python: "),
        (b"(" * 5000 + b")" * 5000, "mine.py is not Python: "),
    ],
)
def test_a_file_that_is_no_text_is_named(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadReference) as caught:
        load_problem("file", path=written(tmp_path, data))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reference_finds_its_own_source() -> None:
    """TorchScript and `inspect` read it, also after another reference was loaded."""
    scripted = SOURCE.replace(
        "class Model",
        """
@torch.jit.script
def twice(x):
    return 2 * x

def late(x):
    return x + 1

class Model""",
    )
    module = module_of(scripted, N=5)
    module_of("import inspect\n" * 40 + SOURCE)
    assert torch.equal(module.twice(torch.ones(2)), 2 * torch.ones(2))
    assert torch.equal(torch.jit.script(module.late)(torch.ones(2)), 2 * torch.ones(2))
    assert "self.linear(x)" in inspect.getsource(module.Model.forward)


@pytest.mark.parametrize("line", ["import sys; sys.exit(3)", "raise SystemExit", "1 / 0"])
def test_a_reference_that_exits_does_not_end_the_command(line: str, tmp_path: Path) -> None:
    problem = load_problem("file", path=written(tmp_path, f"{SOURCE}\n{line}\n"))
    assert problem.dtype == "float32"
    with pytest.raises(BadReference, match="get_cases"):
        load_problem("file", path=written(tmp_path, f"{SOURCE}\ndef get_cases():\n    {line}\n"))


def test_modules_of_its_folder_become_part_of_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "helper_one.py": "# coding: latin-1\n# Länge\nimport helper_two\nSIZE = helper_two.SIZE\n",
        "helper_two.py": "SIZE = 8\ndef late():\n    import helper_one\n    return helper_one.SIZE\n",
        "parts/__init__.py": "from .inner import double\nfrom . import other\n",
        "parts/inner.py": "from .other import FACTOR\ndef double(x):\n    return FACTOR * x\n",
        "parts/other.py": "FACTOR = 2\n",
        "torch.py": "raise AssertionError('not the one that is installed')\n",
        "unused.py": "raise AssertionError('nobody imports it')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    head = '"""A reference."""\nfrom __future__ import annotations\nimport helper_one, sys\n'
    head += "from parts import double\n"
    body = SOURCE.replace("self.linear(x)", "double(self.linear(x))").replace("N * 2", "helper_one.SIZE")
    path = written(tmp_path, head + body)
    monkeypatch.chdir(tmp_path)
    problem = load_problem("file", path=path)
    assert "# Länge" in problem.source and "nobody imports it" not in problem.source
    before = [*sys.meta_path]
    monkeypatch.chdir("/")
    for each in tmp_path.rglob("*.py"):
        each.unlink()
    try:
        module = load_module(problem.source, {"N": 3})
        model: Any = make_model(
            module, "Model", init_inputs(module, 1), seed=1, device="cpu", dtype="float32"
        )
        x = torch.ones(1, 8)
        assert torch.equal(model(x), 2 * model.linear(x))
        assert module.helper_one.helper_two.late() == 8
        other = load_module(problem.source.replace("SIZE = 8", "SIZE = 9"), {})
        assert other.helper_one.SIZE == 9 and module.helper_one.SIZE == 8
    finally:
        sys.meta_path[:] = before
        for name in ("helper_one", "helper_two", "parts", "parts.inner", "parts.other"):
            sys.modules.pop(name, None)


def test_a_reference_without_neighbours_is_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "nn.py").write_text("x = 1")
    assert load_problem("file", path=written(tmp_path, SOURCE)).source == SOURCE
    (tmp_path / "helper_one.py").write_bytes("# Länge".encode("latin-1"))
    with pytest.raises(BadReference, match=r"a module that .*mine\.py imports cannot be read"):
        load_problem("file", path=written(tmp_path, f"import helper_one\n{SOURCE}"))
