"""Compares the playbook's special Triton templates, for softmax and layer norm, with the general one.

    python benchmarks/playbook_templates.py [softmax] [layernorm] [rounds=100]

The general template, `rows`, is for all reductions and normalisations. The script needs PyTorch, Triton and a
CUDA GPU. For `level1/softmax` and `level1/layernorm` at the shipped sizes it renders several kernels of each
template, checks each one against PyTorch, times them all briefly, and then times the fastest of each template
and eager, interleaved. It prints medians with CUDA events around a call
and, in the second column, around a call whose launches were queued before the GPU was free, which leaves out
the time that Python takes. The ratio is special / general, so that above 1 the general template is faster.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from evaluators.records.problem import Problem
from evaluators.reference.loading import load_module, load_problem
from search.proposers.playbook.fused import fused_workload
from search.proposers.playbook.move import Knob, Template
from search.proposers.playbook.one_operator import one_operator_workload
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.workload import Workload, recognise

Call = Callable[[], Any]
Knobs = dict[str, Knob]

SPECIAL: Mapping[str, list[Knobs]] = {
    "softmax": [
        {
            "algorithm": "online",
            "reduce": "lanes",
            "block": 8192,
            "warps": 16,
            "order": "backward",
            "kept": kept,
            "exp": "exp2",
            "hints": True,
        }
        for kept in (32768, 0)
    ],
    "layernorm": [
        {
            "algorithm": "split",
            "block": 8192,
            "warps": 8,
            "order": "columns",
            "hints": True,
            "rows_each": rows,
            "apply_block": 2048,
            "reverse": True,
        }
        for rows in (4, 1)
    ],
}
"""The favourites of the special templates (`tests/search/proposers/test_triton_templates.py`)."""


def general(name: str) -> list[Knobs]:
    """Settings of the general template that could be the fastest."""
    common: Knobs = {"merged": True, "narrow": True, "joint": True, "order": "backwards", "hints": True}
    if name == "softmax":
        tiles = [(2048, 8), (4096, 8), (4096, 16), (8192, 16)]
        several = [
            {"block": b, "warps": w, "held": held} for (b, w), held in product(tiles, (0, 16384, 32768))
        ]
    else:
        tiles = [(1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 8)]
        several = [{"block": b, "warps": w, "rows": rows} for (b, w), rows in product(tiles, (1, 2, 4, 8))]
    favourite = several[3 if name == "softmax" else 12]
    found = [{**common, **each} for each in several]
    for knob, value in (("joint", False), ("hints", False), ("order", "forwards")):
        found.append({**common, **favourite, knob: value})
    return found


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns the exit status."""
    given = dict(each.split("=") for each in arguments if "=" in each)
    names = [each for each in arguments if "=" not in each] or list(SPECIAL)
    if given.keys() - {"rounds"} or set(names) - set(SPECIAL):
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name in names:
            compare(name, Path(folder), int(given.get("rounds", 100)))
    return 0


def compare(name: str, folder: Path, rounds: int) -> None:
    """Prints the comparison for a problem."""
    problem = replace(load_problem(f"level1/{name}"), device="cuda")
    module = load_module(problem.source, problem.overrides, name="reference")
    torch.manual_seed(0)
    with torch.device("cuda"):
        inputs = module.get_inputs()
        model = module.Model(*module.get_init_inputs())
    for weight in model.parameters():
        weight.normal_()
    expected = model(*inputs)
    contenders: dict[str, dict[str, Call]] = {"special": {}, "general": {}}
    readings = {"special": recognise(problem), "general": _general_reading(problem)}
    for kind, settings in (("special", SPECIAL[name]), ("general", general(name))):
        workload = readings[kind]
        assert workload is not None, f"the {kind} template is not for {name}"
        template = template_for(workload.op, "triton")
        assert template is not None, f"there is no {kind} template for {name}"
        for knobs in settings:
            label = ", ".join(f"{knob}={value}" for knob, value in knobs.items())
            call = _checked(template, workload, knobs, module, model, inputs, expected, folder)
            if isinstance(call, str):
                print(f"  {kind} {label}: {call}")
            else:
                contenders[kind][label] = call
    best = {}
    for kind, calls in contenders.items():
        times = timed(calls, 10, ahead=True)
        for label in sorted(times, key=lambda each: statistics.median(times[each])):
            print(f"  {kind} {statistics.median(times[label]):8.4f} ms  {label}", flush=True)
        best[kind] = min(times, key=lambda each: statistics.median(times[each]))
    last = {kind: contenders[kind][best[kind]] for kind in best} | {"eager": lambda: model(*inputs)}
    alone, ahead = timed(last, rounds, ahead=False), timed(last, rounds, ahead=True)
    print(f"level1/{name}")
    for kind in last:
        print(f"  {kind:8}{statistics.median(alone[kind]):9.4f} ms {statistics.median(ahead[kind]):9.4f} ms")
    for what, times in (("calls", alone), ("queued calls", ahead)):
        middle, low, high = ratio(times["special"], times["general"])
        print(f"  special / general, {what}: {middle:.3f} [{low:.3f}, {high:.3f}]")


def _general_reading(problem: Problem) -> Workload | None:
    return one_operator_workload(problem) or fused_workload(problem)


def _checked(
    template: Template,
    workload: Workload,
    knobs: Knobs,
    module: Any,
    model: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    expected: torch.Tensor,
    folder: Path,
) -> Call | str:
    """A call of the kernel with these knobs, or why there is none."""
    full = {**template.naive, **knobs}
    if not template.valid(workload, full):
        return "not valid"
    path = folder / f"kernel_{len(list(folder.iterdir()))}.py"
    path.write_text(template.render(workload, full))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(kernel)
        own = kernel.ModelNew(*module.get_init_inputs()).cuda()
        own.load_state_dict(model.state_dict())
        error = ((own(*inputs) - expected).norm() / expected.norm()).item()
    except Exception:  # a kernel that does not compile or launch is only left out
        return traceback.format_exc().strip().splitlines()[-1][:200]
    return (lambda: own(*inputs)) if error < 1e-5 else f"wrong, error {error:.1e}"


def timed(calls: Mapping[str, Call], rounds: int, *, ahead: bool) -> dict[str, list[float]]:
    """Milliseconds of each call, in rounds of all calls in random order; `ahead`: launched before the GPU is
    free."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    rng = random.Random(0)
    for number in range(rounds + 3):
        for name in rng.sample(list(calls), len(calls)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            if ahead:
                torch.cuda._sleep(2_000_000)  # about a millisecond
            start.record()
            out = calls[name]()
            end.record()
            torch.cuda.synchronize()
            del out
            if number >= 3:
                times[name].append(start.elapsed_time(end))
    return times


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios, and its 95 % bootstrap interval."""
    pairs = [a / b for a, b in zip(one, other, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(pairs, k=len(pairs))) for _ in range(2000))
    return statistics.median(pairs), medians[50], medians[1949]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
