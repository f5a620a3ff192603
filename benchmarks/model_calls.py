"""Checks the calls recorded by `ideatree optimize` against PyTorch's own profiler.

    python benchmarks/model_calls.py outputs/optimize/2026-01-31_12-00-00 [FOLDER …]

Loads the model of each folder again and runs it once under `torch.profiler`, which records shapes and dtypes
in C++, below the dispatch modes that recorded the runs. Calls made by an operator itself are not counted.
Prints the calls of each, and each difference. The exit status is 0 when there is none.

A run with a backward pass has some differences, because autograd behaves differently under a dispatch mode:
it adds gradients into a new tensor (`add` instead of `add_`), and detaches what a forward has saved.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from omegaconf import DictConfig, OmegaConf

from evaluators.suites.traced.call import Tensor, TracedCall
from evaluators.suites.traced.files import read_trace
from search.optimize.model_config import source_of
from search.optimize.models.source import LoadedModel

TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "int": "int32",
    "bool": "bool",
    "unsigned char": "uint8",
}
"""PyTorch's dtype names by the profiler's names."""
SAME = {"_reshape_alias": "view"}
"""What `reshape` calls without and with a dispatch mode."""
Counted = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]
"""An operator without its overload, and the shapes and types of its tensors that have dimensions."""


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler; read when torch is imported
    different = 0
    for folder in map(Path, arguments):
        recorded = counted(read_trace(folder / "calls.txt").calls)
        seen = profiled(model_of(folder), {name for name, _ in recorded})
        print(f"{folder.name}: {recorded.total()} calls recorded, {seen.total()} by PyTorch's profiler")
        for each in sorted((recorded - seen) | (seen - recorded)):
            different += 1
            print(f"  {each}: {recorded[each]} recorded, {seen[each]} by the profiler")
    return 1 if different else 0


def model_of(folder: Path) -> LoadedModel:
    """The model of a run, at its first shape."""
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    assert isinstance(config, DictConfig)
    return source_of(config.model).load(
        device=device_of(config), dtype=config.dtype, backward=bool(config.backward), seed=int(config.seed)
    )[0]


def device_of(config: DictConfig) -> str:
    """The device of the run."""
    import torch

    if config.device != "auto":
        return str(config.device)
    return "cuda" if torch.cuda.is_available() else "cpu"


def counted(calls: Sequence[TracedCall]) -> Counter[Counted]:
    """How often the run made each call."""
    found: Counter[Counted] = Counter()
    for call in calls:
        values = [*call.arguments, *call.keywords.values()]
        tensors = tuple(
            (each.shape, each.dtype) for each in values if isinstance(each, Tensor) and each.shape
        )
        found[call.operator.split(".")[1], tensors] += call.count
    return found


def profiled(model: LoadedModel, names: set[str]) -> Counter[Counted]:
    """How often the profiler saw each call of these operators."""
    from torch.profiler import ProfilerActivity, profile

    model.run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        model.run()
    return Counter(_outermost(trace.profiler.kineto_results.events(), names))


def _outermost(events: Sequence[Any], names: set[str]) -> Iterator[Counted]:
    """The calls that were not made by another one of them."""
    until = 0
    for each in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        name = each.name().removeprefix("aten::")
        name = SAME.get(name, name)
        if name not in names or each.start_ns() < until:
            continue
        until = each.start_ns() + each.duration_ns()
        pairs = zip(each.shapes(), each.dtypes(), strict=True)
        tensors = tuple((tuple(shape), TYPES[kind]) for shape, kind in pairs if shape and kind in TYPES)
        yield name, tensors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
