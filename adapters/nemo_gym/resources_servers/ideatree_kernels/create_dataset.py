"""Turns the rows of `ideatree harvest format=rl` into rows of NeMo Gym:

python create_dataset.py datasets/rl/jsonl/train.jsonl data/train.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def row_of(task: dict[str, Any]) -> dict[str, Any]:
    """The task's messages as the model's input, and the fields that `verify` and people need."""
    return {
        "responses_create_params": {"input": task["prompt"]},
        "request": task["request"],
        "problem": task.get("problem", ""),
    }


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    lines = source.read_text(encoding="utf-8").splitlines()
    target.write_text(
        "".join(json.dumps(row_of(json.loads(each))) + "\n" for each in lines), encoding="utf-8"
    )
