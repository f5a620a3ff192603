"""Problems, measurements and entries for the tests of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluators.records.evaluation import Correctness, Evaluation, Roofline, Status, Timing
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import load_problem
from kernel_library.catalogue.entry import Entry, Measurement

GPU = {"device": "NVIDIA H200", "architecture": "9.0", "torch": "2.11"}
CPU = {"device": "EPYC", "torch": "2.11"}
HEADER = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"


def shipped(name: str, **changes: Any) -> Problem:
    """A reference of the package."""
    return load_problem(name, **{"device": "cuda", **changes})


def reference(forward: str, inputs: str, *, layers: str = "pass", device: str = "cuda") -> Problem:
    """A reference whose `forward` is an expression of its inputs `a`."""
    source = (
        f"{HEADER}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {layers}\n\n    def forward(self, *a):\n        return {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )
    return Problem(name="file/mine", source=source, device=device)


def evaluation(speedup: float = 2.0, environment: Mapping[str, str] = GPU, **changes: Any) -> Evaluation:
    timing = Timing(
        kernel_ms=1.0,
        eager_ms=speedup,
        compile_ms=speedup / 2,
        speedup=speedup,
        speedup_low=speedup * 0.99,
        speedup_high=speedup * 1.01,
    )
    known = {
        "timing": timing,
        "correctness": Correctness(checked_calls=3, normwise_error=1e-7, eager_error=2e-7),
        "roofline": Roofline(bytes=1000, operations=0, floor_ms=0.5, bound="memory"),
    }
    return Evaluation(status=Status.CORRECT, environment=environment, **{**known, **changes})


def entry(
    problem: Problem, source: str = "class ModelNew: ...", speedup: float = 2.0, **fields: Any
) -> Entry:
    """An entry as a search offers it: measured on the problem, not described."""
    environment = fields.pop("environment", GPU if problem.device == "cuda" else CPU)
    language = fields.pop("language", "triton" if problem.device == "cuda" else "cpp")
    measurement = Measurement(problem=problem, evaluation=evaluation(speedup, environment))
    return Entry(kernel=Kernel(source=source, language=language), measurements=(measurement,), **fields)
