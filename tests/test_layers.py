"""The structure of the packages: who imports whom, what importing costs, names, and the maps.

The layers themselves are import-linter's contracts in `pyproject.toml`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("evaluators", "kernel_library", "search", "ideatree")
IMPORTED_ON_USE = (
    "torch",
    "ray",
    "wandb",
    "hydra",
    "omegaconf",
    "openai",
    "google.genai",
    "httpx2",
    "pyarrow",
    "datasketch",
    "datasets",
    "pandas",
    "plotly",
)
# They import torch, as kernels and references do: source for other processes, not modules of the product, and
# what is copied into exported packages.
SOURCES = (
    "evaluators.problems.",
    "kernel_library.seeds.",
    "kernel_library.overrides.",
    "kernel_library.export.",
    "search.optimize.installation.runtime",
)
COMMANDS = {
    "search": {
        "campaign",
        "compare",
        "harvest",
        "mcp",
        "optimize",
        "pack",
        "prompt",
        "queue",
        "report",
        "run",
        "app",
    },
    "evaluators": {
        "audit",
        "baseline",
        "diagnose",
        "evaluate",
        "probe",
        "rewards",
        "score",
        "serve",
        "trace",
        "app",
    },
    "kernel_library": {"add", "export", "list", "show", "verify", "app"},
}
"""Packages that may use what commands use."""
AT_MOST = 16
"""Entries on a floor."""


def modules() -> dict[str, Path]:
    """All modules of the packages by their dotted names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.mark.core
@pytest.mark.slow
def test_imports_point_down() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


IMPORT_ALL = """
import importlib, sys
heavy = sys.argv[1].split(",")
for module in sys.argv[2:]:
    importlib.import_module(module)
    found = [name for name in heavy if name in sys.modules]
    if found:
        sys.exit(f"importing {module} imports {', '.join(found)}")
"""


def is_command(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package == "ideatree" or rest.split(".")[0] in COMMANDS[package]


@pytest.mark.core
@pytest.mark.slow
def test_importing_brings_in_nothing_heavy() -> None:
    """Neither a device's libraries nor a command's: they are imported where they are used."""
    chosen = [m for m in modules() if not m.startswith(SOURCES) and not is_command(m)]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(IMPORTED_ON_USE), *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "importing a module prints"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_floor_has_few_entries(package: str) -> None:
    """Command packages, `__init__.py` and `py.typed` not counted; references and kernels are data."""
    commands = {ROOT / package / name for name in COMMANDS.get(package, ())}
    for floor in [ROOT / package, *(ROOT / package).rglob("*/")]:
        if {"seeds", "problems", "templates", "headers", "assets", "__pycache__"} & set(floor.parts):
            continue
        entries = [
            each.name
            for each in floor.iterdir()
            if each.name not in ("__init__.py", "__main__.py", "py.typed", "__pycache__")
            and each not in commands
        ]
        assert len(entries) <= AT_MOST, (
            f"{floor.relative_to(ROOT)} has {len(entries)} entries: {sorted(entries)}"
        )


@pytest.mark.slow
def test_class_names_are_unique() -> None:
    """But for what kernels, references and templates of both define."""
    found: Counter[str] = Counter()
    for module, path in modules().items():
        if not module.startswith(
            ("evaluators.problems.", "kernel_library.seeds.", "search.proposers.playbook.")
        ):
            found.update(
                node.name
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            )
    assert not [name for name, count in found.items() if count > 1]


@pytest.mark.parametrize("package", ["evaluators", "kernel_library", "search"])
def test_the_map_has_every_module(package: str) -> None:
    """It stands at the top of the package, for people who look for the place of a change."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    rooms: dict[str, set[str]] = {}
    room = ""
    for line in text.splitlines():
        if match := re.match(r" {4}(\w+)(/?)", line):
            room = match[1] if match[2] else ""
        rooms.setdefault(room, set()).update(re.findall(r"\w+(?![\w/])", line))
    for path in (ROOT / package).rglob("*.py"):
        folder, name = path.relative_to(ROOT / package).parts[:-1], path.stem
        if (
            folder[:1] in (("problems",), ("seeds",))
            or name in ("__init__", "__main__")
            or "templates" in folder
        ):
            continue
        if folder in (("strategies",), ("kernel_library", "seeds")):
            continue  # one policy per file
        listed = rooms.get(folder[0], set()) if folder else rooms[""]
        inner = f"{folder[1]}/" if len(folder) > 1 else name
        assert name in listed or inner in text, f"{path.relative_to(ROOT)} has no place in the map"


@pytest.mark.parametrize("path", sorted((ROOT / "adapters").rglob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_speaks_http_only(path: Path) -> None:
    """Its framework pins other versions of packages than Ideatree does."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in imported} & {*PACKAGES}
