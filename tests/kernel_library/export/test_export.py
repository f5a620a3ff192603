"""Kernels that leave: as a package that torch finds, and as a folder in BackendBench's layout."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_library import override
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.export import __main__ as export
from kernel_library.export.package import RUNTIME
from tests.kernel_library.entries import entry, reference
from tests.kernel_library.overrides.test_kernels import write
from tests.kernel_library.overrides.test_override import calls

SOURCE = "def total(x):\n    assert x.dim() == 2\n    return x.sum(-1) * 0 + 7\n"
INSTALLED = """
import sys
sys.modules.update(kernel_library=None, evaluators=None)
import torch
assert torch.relu(torch.ones(2)).tolist() == [10, 10]
x = torch.ones(2, requires_grad=True)
torch.relu_(x * 2).sum().backward()
assert x.grad.tolist() == [2, 2], x.grad
import mine
print(mine.kernels().report())
mine.kernels().disable()
assert torch.relu(torch.ones(2)).tolist() == [1, 1]
"""

READ = """
import sys
sys.modules.update(kernel_library=None, evaluators=None)
from pathlib import Path
import torch
from kernels import get_loaded_kernels, get_local_kernel
mine = get_local_kernel(Path("made/build/torch-cuda"))
assert mine.total(torch.ones(2, 3)).tolist() == [7, 7]
torch.version.cuda = torch.version.cuda or "12.8"
assert get_local_kernel(Path("made")) is mine
digest = get_loaded_kernels()[0].metadata.digest
digest.validate(type(digest).hash_variant(digest.algorithm, Path("made/build/torch-cuda")))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_seeds: None) -> Path:
    """A library of a sum for a CPU, and of a kernel for no operator."""
    monkeypatch.chdir(tmp_path)
    problem = reference("a[0].sum(-1)", "torch.randn(64, 64)", device="cpu")
    known = {"op": "sum", "function": "total", "shapes": ("...x1..64",), "dtypes": ("float32",)}
    library = FolderLibrary(tmp_path / "library")
    library.add(entry(problem, SOURCE, 2.0, **known))
    library.add(entry(problem, SOURCE + "\n", 2.0, **{**known, "op": "rotary"}))
    return tmp_path / "library"


def installed(folder: Path) -> dict[str, str]:
    """An environment in which the project in the folder is installed."""
    target = folder.parent / "site"
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(folder)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(target)}


@pytest.mark.slow
def test_an_installed_package_needs_only_the_import_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kernels", "relu__default", "_v2", "x * 2")
    write(tmp_path / "kernels", "relu__default", "_v10", "x * 10")
    arguments = ["format=package", "to=project", "kernels=kernels", "package=mine"]
    assert export.main(arguments) == 0
    assert "aten.relu.default: relu__default_implementation_v10" in capsys.readouterr().out
    environment = installed(tmp_path / "project")
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert export.main(arguments) == 2, "project is there"


@pytest.mark.slow
def test_a_package_of_library_kernels(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = ["format=package", "to=project", f"library.root={root}", "package=exported_for_a_test"]
    assert export.main(call) == 0
    monkeypatch.syspath_prepend(root.parent / "project")
    importlib.invalidate_caches()
    package = importlib.import_module("exported_for_a_test")
    on = package.kernels()
    try:
        assert on is package.kernels()
        assert torch.ones(2000, 64).sum(-1)[0] == 7
        assert torch.ones(2000, 65).sum(-1)[0] == 65
        assert calls(on) == 1
        with override({"aten.sum.dim_IntList": lambda x, *args: x[:, 0] + 2}):
            assert torch.ones(2000, 64).sum(-1)[0] == 3
        assert torch.ones(2000, 64).sum(-1)[0] == 7
        mine = override({"aten.sum.dim_IntList": lambda x, *args: 1 / 0}).enable()
        assert torch.ones(2000, 64).sum(-1)[0] == 7
        on.disable()
        assert torch.ones(2000, 64).sum(-1)[0] == 64, "whichever goes first"
        mine.disable()
    finally:
        on.disable()
    assert torch.ones(2000, 64).sum(-1)[0] == 64
    (Path(package.__file__).parent / "kernels.json").unlink()
    autoload = importlib.import_module("exported_for_a_test.overrides.packaged").autoload
    assert autoload(Path(package.__file__).parent) is None
    assert "its kernels are not used" in caplog.text


@pytest.mark.slow
def test_a_directory_of_library_kernels(root: Path) -> None:
    assert export.main(["format=directory", "to=made", f"library.root={root}"]) == 0
    with override(root.parent / "made") as on:
        assert torch.ones(3, 4).sum(-1, keepdim=True).tolist() == [[7]] * 3
        assert torch.ones(3, 4).sum(0).tolist() == [3] * 4
        assert calls(on, "aten.sum.dim_IntList") == 1


@pytest.mark.slow
def test_a_directory_of_the_kernels_of_a_model(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = [each for each in FolderLibrary(root, seeds=None).entries() if each.op == "sum"]
    package = tmp_path / "run" / "optimized"
    package.mkdir(parents=True)
    names = ["1_sum", "2_mul_sum"]
    manifest = {"device": "cpu", "kernels": [{"name": each} for each in names]}
    (package / "manifest.json").write_text(json.dumps(manifest))
    call = ["format=directory", "to=made", f"kernels={package}", f"library.root={root}"]
    assert export.main(call) == 2
    assert "the export failed" in capsys.readouterr().err
    origins = {"1_sum": {"origin": f"library {entry.id}"}, "2_mul_sum": {"origin": "search"}}
    (package.parent / "kernels.json").write_text(json.dumps(origins))
    assert export.main(call) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"aten.sum.dim_IntList: {entry.id}",
        "2_mul_sum: left out: it was searched for the model's own operators and shapes",
    ]
    with override(Path("made")) as on:
        assert torch.ones(3, 4).sum(-1, keepdim=True).tolist() == [[7]] * 3
        assert calls(on, "aten.sum.dim_IntList") == 1
    (package.parent / "kernels.json").write_text(json.dumps({name: {"origin": "search"} for name in names}))
    assert export.main([*call[:1], "to=other", *call[2:]]) == 1
    assert not Path("other").exists()


@pytest.mark.slow
def test_a_project_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export.main(["format=hub", "to=made", "package=My_Kernels", "version=2", "library.root=none"]) == 0
    written = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert {"softmax", "rmsnorm", "rotary"} <= {*written} and not any(
        "cpp" in each for each in written.values()
    )
    build = tomllib.loads(Path("made/build.toml").read_text())
    assert (build["general"]["name"], build["general"]["version"]) == ("my-kernels", 2)
    assert build["general"]["backends"] == ["cuda"] and build["torch-noarch"].keys() <= {"cuda_capabilities"}
    package = Path("made/torch-ext/my_kernels")
    exported = ast.parse((package / "__init__.py").read_text())
    taken = {
        name.name: each.module
        for each in exported.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
    }
    assert taken.keys() == written.keys(), "each function is imported from its module"
    for function, module in taken.items():
        tree = ast.parse((package / f"{module}.py").read_text())
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
        outside = {name.split(".")[0] for name in _imported(tree)}
        assert outside <= {*sys.stdlib_module_names, "torch", "triton"}
    assert written["softmax"] in Path("made/CARD.md").read_text()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_seeds: None) -> Path:
    """What `format=hub` writes of two kernels, which are confined to architectures: only one is common."""
    monkeypatch.chdir(tmp_path)
    problem = reference("a[0].sum(-1)", "torch.randn(64, 64)")
    known = {"shapes": ("...x1..64",), "dtypes": ("float32",)}
    library = FolderLibrary(tmp_path / "library")
    library.add(entry(problem, SOURCE, 2.0, op="sum", function="total", licence="MIT", **known))
    other = SOURCE.replace("total", "other")
    confined = ("9.0", "10.0")
    library.add(entry(problem, other, 2.0, op="rotary", function="other", architectures=confined, **known))
    call = ["format=hub", "to=made", "package=My_Kernels", "version=2", "library.root=library"]
    assert export.main(call) == 0
    return tmp_path / "made"


@pytest.mark.slow
def test_what_is_built_for_the_hub_is_the_package_with_its_metadata(hub: Path) -> None:
    package, built = hub / "torch-ext" / "my_kernels", hub / "build" / "torch-cuda"
    assert [each.name for each in (hub / "build").iterdir()] == ["torch-cuda"]
    files = {each.name: each.read_bytes() for each in package.iterdir()}
    assert {each.name: each.read_bytes() for each in built.iterdir() if each.suffix == ".py"} == files
    metadata = json.loads((built / "metadata.json").read_text())
    hashes = {name: base64.b64encode(hashlib.sha256(text).digest()).decode() for name, text in files.items()}
    assert metadata.pop("digest") == {"algorithm": "sha256", "files": hashes}
    assert re.fullmatch("_my_kernels_cuda_[0-9a-f]{7}", metadata.pop("id"))
    assert metadata == {
        "name": "my-kernels",
        "version": 2,
        "license": "Apache-2.0 AND MIT",
        "python-depends": [],
        "kernel-depends": [],
        "backend": {"type": "cuda", "archs": ["9.0"]},
    }
    general, noarch = tomllib.loads((hub / "build.toml").read_text()).values()
    assert noarch == {"cuda_capabilities": metadata["backend"]["archs"]}
    assert general["license"] == metadata["license"]
    assert "\nlicense: [apache-2.0, mit]\n" in (hub / "CARD.md").read_text()


@pytest.mark.slow
def test_what_is_built_for_the_hub_is_read_by_its_package(hub: Path) -> None:
    """In a process without this project: the variant's folder with any PyTorch, the folder that was written
    with PyTorch for CUDA."""
    kernels = pytest.importorskip("kernels", minversion="0.17.2")
    environment = {**os.environ, "PYTHONPATH": str(Path(kernels.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_model_for_the_hub(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "optimized"
    (package / "kernels" / "__pycache__").mkdir(parents=True)
    manifest = {"device": device, "kernels": [{"name": "1_tanh"}]}
    texts = {
        "__init__.py": "from .runtime import load",
        "runtime.py": "load = 7",
        "kernels/1_tanh.py": "",
        "kernels/__pycache__/1_tanh.pyc": "",
        "manifest.json": json.dumps(manifest),
    }
    for name, text in texts.items():
        (package / name).write_text(text, encoding="utf-8")
    call = ["format=hub", "to=made", "package=my_model", "licence=MIT"]
    assert export.main([*call, f"kernels={package}"]) == 0
    assert [each.name for each in (tmp_path / "made" / "build").iterdir()] == [f"torch-{device}"]
    assert "\nlicense: mit\n" in (tmp_path / "made" / "CARD.md").read_text()
    built = tmp_path / "made" / "build" / f"torch-{device}"
    metadata = json.loads((built / "metadata.json").read_text(encoding="utf-8"))
    assert (metadata["name"], metadata["backend"]) == ("my-model", {"type": device})
    files = ["__init__.py", "kernels/1_tanh.py", "manifest.json", "runtime.py"]
    assert sorted(metadata["digest"]["files"]) == files
    digest = hashlib.sha256((built / "runtime.py").read_bytes()).digest()
    assert metadata["digest"]["files"]["runtime.py"] == base64.b64encode(digest).decode()
    assert f'backends = ["{device}"]' in (tmp_path / "made" / "build.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_hash_is_a_modules_name_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_seeds: None
) -> None:
    monkeypatch.chdir(tmp_path)
    library = FolderLibrary(tmp_path / "library")
    problem, source = reference("a[0].sum(-1)", "torch.randn(64, 64)"), SOURCE.replace("total", "other")
    other = entry(problem, source, op="sum", function="other")
    library.add(other)
    assert other.id[0].isdigit()
    assert export.main(["format=hub", "to=made", "package=my_kernels", "library.root=library"]) == 0
    package = Path("made/torch-ext/my_kernels")
    assert ast.parse((package / "__init__.py").read_text())
    assert (package / f"_{other.id}.py").exists()


def _imported(tree: ast.Module) -> Iterator[str]:
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom) and not each.level:
            yield str(each.module)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["to=made"], 2, "add format=package or format=directory or format=hub"),
        (["format=hub", "to=made", "kernels=theirs"], 2, "give the folder optimized/ of"),
        (["format=hub", "to=made", "version=x"], 2, "version=x; it must begin with a whole number"),
        (["format=hub", "to=made", "package=_mine"], 2, "package=_mine is not a valid name on the hub"),
        (["format=zip", "to=made"], 2, "format=zip; it must be one of package, directory"),
        (["format=package", "to=library"], 2, "to=library already exists"),
        (["format=package", "to=made", "package=a-b"], 2, "package=a-b is not a valid package name"),
        (["format=directory", "to=made", "kernels=library"], 2, "already has this layout"),
        (["format=package", "to=made", "kernels=nowhere"], 2, "the export failed"),
        (["format=package", "to=made", "op=softmax"], 1, "nothing to write"),
    ],
)
def test_what_is_not_written(
    arguments: list[str], status: int, said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([*arguments, f"library.root={root}"]) == status
    assert not Path("made").exists()
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


def test_what_is_copied_needs_nothing_else_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "torch"}
    for file in RUNTIME.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in named:
                own = name.startswith("kernel_library.overrides")
                assert own or name.split(".")[0] in allowed, f"{file.name}: {name}"
