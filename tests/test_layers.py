"""Imports point down: reads every import of the packages, inside functions too; knows who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("evaluators", "kernel_library", "search", "ideatree")

# The layer of a module is that of its longest prefix here. Modules of `search` stand here one by one, so
# that a new one has to be given its place.
LAYERS = {
    "evaluators": "evaluators",
    "evaluators.problem": "records",
    "evaluators.kept_lines": "records",
    "evaluators.suite_config": "commands",
    "evaluators.device_config": "commands",
    "evaluators.reference_audit": "records",
    "evaluators.opening": "records",
    "evaluators.audit": "commands",
    "evaluators.baseline": "commands",
    "evaluators.score": "commands",
    "evaluators.operator_score": "commands",
    "evaluators.trace": "commands",
    "evaluators.scores": "evaluators",
    "evaluators.five_stages": "records",
    "evaluators.overhead": "records",
    "evaluators.cause": "records",
    "evaluators.evaluation": "records",
    "evaluators.timing": "records",
    "evaluators.nearest": "records",
    "evaluators.atomic_write": "records",
    "evaluators.option": "records",
    "evaluators.cli": "commands",
    "evaluators.config": "commands",
    "evaluators.config_errors": "commands",
    "evaluators.config_help": "commands",
    "evaluators.config_completion": "commands",
    "evaluators.evaluate": "commands",
    "kernel_library": "library",
    "kernel_library.entry": "records",
    "kernel_library.shapes": "records",
    "kernel_library.choice": "records",
    "kernel_library.shape_table": "library",
    "kernel_library.cli": "commands",
    "kernel_library.list": "commands",
    "kernel_library.show": "commands",
    "kernel_library.add": "commands",
    "kernel_library.verify": "commands",
    "kernel_library.export": "commands",
    "search.ranking": "core",
    "search.tree": "core",
    "search.events": "core",
    "search.protocols": "core",
    "search.journal": "core",
    "search.journal_codec": "core",
    "search.run_state": "core",
    "search.budget": "core",
    "search.in_flight": "core",
    "search.llm": "core",
    "search.model_client": "core",
    "search.session": "core",
    "search.library_seeds": "core",
    "search.library_winner": "core",
    "search.strategies": "strategies",
    "search.proposers": "proposers",
    "search.llms": "llms",
    "search.observers": "observers",
    "search.run_folder": "observers",
    "search.reports": "reports",
    "search.report": "commands",
    "search.engine": "engine",
    "search.pipeline": "engine",
    "search.steady_state": "engine",
    "search.recorded": "core",
    "search.cli": "commands",
    "ideatree": "interface",
    "search.run": "commands",
    "search.prompt": "commands",
    "search.mcp": "commands",
    "search.agent": "engine",
    "search.mcp_tools": "commands",
    "search.mcp_reports": "commands",
    "search.compare": "commands",
    "search.campaign": "commands",
    "search.campaigns": "commands",
    "search.optimize": "commands",
    "search.optimizations": "commands",
    "search.harvests": "harvests",
    "search.comparisons": "commands",
    "search.harvest": "commands",
}
# Beside its own layer.
MAY_IMPORT = {
    "records": set[str](),
    "evaluators": {"records"},
    "library": {"records", "evaluators"},
    "core": {"records"},
    "strategies": {"records", "core"},
    "proposers": {"records", "core", "evaluators"},
    "llms": {"records", "core"},
    "observers": {"records", "core"},
    "reports": {"records", "core", "observers"},
    "engine": {"records", "core"},
    "harvests": {"records", "core", "library", "evaluators", "proposers"},
    "commands": set(LAYERS.values()) - {"interface"},
    "interface": set(LAYERS.values()),
}
FOR_COMMANDS_ONLY = {"hydra", "omegaconf"}
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
# They import torch, as kernels and references do: source for other processes, not modules of the product; and
# what is copied into exported packages, which its users import when they use it.
SOURCES = (
    "evaluators.problems.",
    "kernel_library.seeds.",
    "kernel_library.overrides.",
    "kernel_library.exports.",
    "search.optimizations.installation.runtime",
)


@dataclass(frozen=True, kw_only=True)
class Import:
    line: int
    target: str


def modules() -> dict[str, Path]:
    """All modules of the packages by their dotted names."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(module: str, source: str, known: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """What the source imports, anywhere in it; `from package import module` names the module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(line=node.lineno, target=alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package else -1]
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(line=node.lineno, target=inner if inner in known else base)


def layer(module: str) -> str | None:
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        if (found := LAYERS.get(".".join(parts[:n]))) is not None:
            return found
    return None


def violations(module: str, source: str, known: set[str], *, is_package: bool = False) -> list[str]:
    """Every import of the module that points up or aside, in words."""
    own = layer(module)
    if own is None:
        return [] if module == "search" else [f"{module} has no layer: give it one in tests/test_layers.py"]
    found = []
    for it in imports(module, source, known, is_package=is_package):
        package = it.target.split(".")[0]
        if package in FOR_COMMANDS_ONLY and own not in ("commands", "interface"):
            found.append(f"{module}:{it.line} imports {it.target}, which only commands may")
        if own == "records" and package not in {*sys.stdlib_module_names, *PACKAGES}:
            found.append(f"{module}:{it.line} imports {it.target}: records need the standard library only")
        if package not in PACKAGES or (it.target == "search" and module.startswith("search.")):
            continue
        other = layer(it.target)
        if other not in {own, *MAY_IMPORT[own]}:
            found.append(f"{module}:{it.line} ({own}) imports {it.target} ({other})")
    return found


def test_imports_point_down() -> None:
    known = modules()
    found = [
        violation
        for module, path in known.items()
        for violation in violations(
            module, path.read_text(), set(known), is_package=path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("evaluators.device.worker", "import search.tree"),
        ("evaluators.device.worker", "def f():\n    from search import tree"),
        ("evaluators.device.worker", "from kernel_library import library"),
        ("evaluators.problem", "from evaluators.device import worker"),
        ("evaluators.problem", "import torch"),
        ("evaluators.evaluation", "def f():\n    import numpy as np"),
        ("kernel_library.library", "from search.tree import Seed"),
        ("kernel_library.library", "import search"),
        ("search.tree", "from evaluators.device.worker import Worker"),
        ("search.tree", "from search.engine import Engine"),
        ("search.journal", "from search.strategies.idea_branching import IdeaBranching"),
        ("search.journal", "from .strategies import idea_branching"),
        ("search.strategies.greedy", "from search.proposers import playbook"),
        ("search.strategies.greedy", "from ..proposers.playbook import Playbook"),
        ("search.proposers.llm", "from search.llms.openai import OpenAI"),
        ("search.observers.console", "import search.engine"),
        ("search.engine", "from search.strategies.idea_branching import IdeaBranching"),
        ("search.engine", "if TYPE_CHECKING:\n    from search.observers.console import Console"),
        ("search.engine", "from search import run"),
        ("search.engine", "from omegaconf import DictConfig"),
        ("search.engine", "import hydra.utils"),
        ("search.novelty", ""),
    ],
)
def test_a_planted_violation_is_found(module: str, source: str) -> None:
    assert len(violations(module, source, {*modules(), "search.run", "kernel_library.library"})) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "evaluators.device.worker",
            "from evaluators import problem\nfrom evaluators.judge import judge_process\nimport torch",
        ),
        ("evaluators.evaluate", "import hydra"),
        ("kernel_library.library", "from evaluators.evaluation import Evaluation"),
        ("search.strategies.greedy", "from search.tree import Tree\nfrom . import idea_branching"),
        ("search.engine", "from search import budget"),
        ("search.run", "import hydra\nfrom search.engine import Engine\nfrom kernel_library import library"),
    ],
)
def test_what_points_down_is_let_through(module: str, source: str) -> None:
    assert violations(module, source, set(modules())) == []


IMPORT_ALL = """
import importlib, sys
heavy = sys.argv[1].split(",")
for module in sys.argv[2:]:
    importlib.import_module(module)
    found = [name for name in heavy if name in sys.modules]
    if found:
        sys.exit(f"importing {module} imports {', '.join(found)}")
"""


def test_importing_brings_in_nothing_heavy() -> None:
    """Neither a device's libraries nor a command's: they are imported where they are used."""
    chosen = [m for m in modules() if not m.startswith(SOURCES) and layer(m) not in ("commands", "interface")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, ",".join(IMPORTED_ON_USE), *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "importing a module prints"


def test_the_map_of_the_evaluators_has_every_module() -> None:
    """It stands at the top of the package, for who looks for the place of a change."""
    package = ROOT / "evaluators"
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    rooms: dict[str, set[str]] = {}
    room = ""
    for line in text.partition("Imports point down:")[2].splitlines():
        room = line[: len("    the command ")].strip() or room  # a room's second line has no name
        rooms.setdefault(room, set()).update(re.findall(r"\w+(?![\w/])", line[len("    the command ") :]))
    for path in package.rglob("*.py"):
        folder, name = path.relative_to(package).parts[:-1], path.stem
        if folder[:1] == ("problems",) or name == "__init__":
            continue
        listed = rooms[f"{folder[0]}/"] if folder else rooms["the command"] | rooms["words"]
        assert name in listed, f"{path.relative_to(package)} has no place in the map"


# From the highest to the lowest; what does not stand here stands above all rooms.
ROOMS = {
    "scheduler": {"device", "reference", "build", "runner", "isolation", "system"},
    "device": {"build", "runner", "isolation", "system"},
    "judge": {"runner", "reference", "isolation", "system"},
    "build": {"runner", "isolation", "system"},
    "runner": {"reference", "isolation", "system"},
    "suites": {"reference", "system"},
    "reference": set[str](),
    "isolation": {"system"},
    "system": set[str](),
}


def test_rooms_of_the_evaluators_import_downwards() -> None:
    known = modules()
    for module, path in known.items():
        package, _, rest = module.partition(".")
        room = rest.split(".")[0]
        if package != "evaluators" or room not in ROOMS:
            continue
        found = imports(module, path.read_text(), set(known), is_package=path.name == "__init__.py")
        for target in (each.target.split(".") for each in found):
            if target[0] == "evaluators" and len(target) > 1 and target[1] in ROOMS:
                assert target[1] in {room, *ROOMS[room]}, f"{module} imports {'.'.join(target)}"
