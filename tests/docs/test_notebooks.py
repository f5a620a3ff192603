"""The notebooks run from top to bottom on recorded runs, and only call the public interface."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
IDS = [path.stem for path in NOTEBOOKS]
MAY_IMPORT = {"ideatree", "pandas", "plotly", "datasets", "pathlib", "tempfile"}
"""The public interface, and packages that display or open its results; no internal module."""
LOGIC = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.For, ast.While, ast.If, ast.Try, ast.With),
)
EXPECTED = {
    "look_into_a_run": ["level1/conv2d", "import torch", "plotly"],
    "compare_strategies": ["best_of_n", "in 8 pairs", "plotly"],
    "lessons": ["conv2d_relu_maxpool", "memory access", "plotly", "predicted_gain"],
    "harvest_to_trl": ["rows ", "# Task", "```python", "['user', 'assistant', 'assistant']"],
}


def test_every_notebook_is_tested() -> None:
    assert set(IDS) == set(EXPECTED)


def code(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_notebook_contains_no_logic(path: Path) -> None:
    for source in code(path):
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, LOGIC), f"{type(node).__name__} in {source!r}"
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {module.partition(".")[0] for module in modules} <= MAY_IMPORT
            assert all(not module.startswith("ideatree.") for module in modules)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("path", NOTEBOOKS, ids=IDS)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    printed = "".join(shown(output) for cell in notebook.cells for output in cell.get("outputs", ()))
    assert [each for each in EXPECTED[path.stem] if each not in printed] == []


def shown(output: Any) -> str:
    """What a cell printed or displayed; a chart appears as its type."""
    if output.output_type == "stream":
        return str(output.text)
    return str(output.data.get("text/plain", "")) + " ".join(output.data)
