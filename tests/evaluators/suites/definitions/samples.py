"""Two definitions with their workloads, and a solution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCALE: dict[str, Any] = {
    "name": "scale_rows_h32",
    "axes": {
        "rows": {"type": "var"},
        "columns": {"type": "const", "value": 32},
        "half": {"type": "expr", "expression": "columns // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "columns"], "dtype": "float32"},
        "weight": {"shape": ["half"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "half"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x, weight, factor):\n"
    "    return torch.tanh(x[:, ::2]) * weight * factor",
}
GATHER: dict[str, Any] = {
    "name": "gather_e8",
    "custom_inputs_entrypoint": "make",
    "axes": {"tokens": {"type": "var"}, "experts": {"type": "const", "value": 8}},
    "inputs": {
        "table": {"shape": ["experts", "experts"], "dtype": "bfloat16"},
        "index": {"shape": ["tokens"], "dtype": "int64"},
    },
    "outputs": {"rows": {"shape": ["tokens", "experts"], "dtype": "bfloat16"}},
    "reference": "import torch\n\ndef make(values, device):\n"
    "    return {'index': torch.randint(values['experts'], (values['tokens'],), device=device)}\n\n"
    "def run(table, index):\n    return table[index]",
}
SOLUTION: dict[str, Any] = {
    "name": "by hand",
    "definition": "scale_rows_h32",
    "author": "a test",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::scale"},
    "sources": [
        {
            "path": "main.py",
            "content": "import torch\n\n\ndef scale(x, weight, factor, y):\n"
            "    y.copy_(torch.tanh(x[:, ::2]) * (weight * factor))\n",
        }
    ],
}


def workloads(name: str, count: int) -> list[dict[str, Any]]:
    """With the sizes 8, 16, …, and in FlashInfer's form, as the workload of a trace without a solution."""
    kinds = {"weight": {"type": "random"}, "factor": {"type": "scalar", "value": 0.5}}
    inputs = kinds if name == "scale_rows_h32" else {"index": {"type": "custom"}}
    axis = "rows" if name == "scale_rows_h32" else "tokens"
    return [{"uuid": str(n), "axes": {axis: 8 * n}, "inputs": inputs} for n in range(1, count + 1)]


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))
