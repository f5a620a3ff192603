"""Finds the inputs on which each mutant is wrong, by a comparison without the evaluator.

    python benchmarks/witness.py [device=cpu] [only=softmax,matmul] [timeout_s=120] [out=witness.json]
    TRITON_INTERPRET=1 python benchmarks/witness.py only=/triton

Each mutant runs in a separate process, on a CPU at small sizes, and is compared with the reference in float64
on each of `INPUTS`, first with the weights as they are made, then with others. Triton kernels of the library
need Triton's interpreter there. The exit status is 1 when a mutant is wrong nowhere, and so is not a mutant,
or when one took too long.
"""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.mutations import Mutant, mutants, problem_of, source_of
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem, Size
from evaluators.reference.loading import constructor_arguments, load_module, make_inputs, make_model
from evaluators.runner import thin_headers

if TYPE_CHECKING:
    import torch

LATE = "it took too long"
ENOUGH = 3
"""Kinds of wrong inputs to find per mutant before stopping."""
SMALL: dict[str, Mapping[str, Size]] = {
    "level1/softmax": {"batch": 4},
    "level1/layernorm": {"batch": 3, "features": 4, "height": 256, "width": 256},
    "level1/matmul": {"size": 256},
    "level1/conv2d": {"batch": 2, "height": 64, "width": 64},
    "level2/conv2d_relu_maxpool": {"batch": 2},
    "library/attention": {"heads": 2, "length": 256},
    "library/cross_entropy": {"rows": 16},
    "library/layernorm": {"rows": 16},
    "library/rmsnorm": {"rows": 16},
    "library/rotary": {"heads": 4, "length": 1040},
    "library/sum_rows": {"rows": 64},
    "library/swiglu": {"tokens": 128, "features": 256, "hidden": 704},
}
"""Sizes on a CPU; the kernels take the same paths as at full size."""
WRONG = {"float32": 2e-6, "float16": 6e-4}
"""The least normwise error of a wrong answer, by dtype; for a single element, 20 times that share of the
largest element."""
FLOAT16_FACTORS = 1e-3
"""The same for problems whose factors may be rounded to float16."""
CONVOLUTIONS = ("level1/conv2d", "level2/conv2d_relu_maxpool")


def _outliers(x: torch.Tensor) -> torch.Tensor:
    """300 at one position of every row, in some rows at the end."""
    import torch

    y = x.clone()
    rows = y.view(-1, y.shape[-1])
    place = torch.randint(rows.shape[1], (rows.shape[0], 1), device=x.device)
    place[::4], place[1::4] = 0, rows.shape[1] - 1
    rows.scatter_(1, place, 300.0)
    return y


def _masked(x: torch.Tensor) -> torch.Tensor:
    """-inf in the first half of each row, and in all of the last row."""
    y = x.clone()
    rows = y.view(-1, y.shape[-1])
    rows[:, : rows.shape[1] // 2] = -math.inf
    rows[-1] = -math.inf
    return y


def _rising(x: torch.Tensor) -> torch.Tensor:
    """Rises by 4 from the start of a row to its end."""
    import torch

    return x + torch.linspace(0, 4, x.shape[-1], dtype=x.dtype, device=x.device)


INPUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "own": lambda x: x,
    "small, 1e-2": lambda x: x * 1e-2,
    "small, 1e-4": lambda x: x * 1e-4,
    "large, 1e2": lambda x: x * 1e2,
    "large, 1e4": lambda x: x * 1e4,
    "shifted by 10": lambda x: x + 10,
    "shifted by -10": lambda x: x - 10,
    "constant rows": lambda x: x[..., :1].expand_as(x).contiguous(),
    "rising": _rising,
    "first small, 1e-2": lambda x: x * 1e-2,
    "outliers": _outliers,
    "masked": _masked,
}


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := given.keys() - {"device", "only", "timeout_s", "out"}:
        raise UsageError(f"unknown key {min(unknown)}; known are device, only, timeout_s, out")
    device = given.get("device", "cpu")
    words = given.get("only", "").split(",")
    chosen = [m for m in mutants() if runs_on(m, device) and any(word in m.name for word in words)]
    if not chosen:
        raise UsageError(f"only={given.get('only', '')} is in no mutant's name for device={device}")
    import torch  # import it once, for all processes

    torch.set_num_threads(1)
    found = {}
    for mutant in chosen:
        found[mutant.name] = where = witnessed(mutant, device, float(given.get("timeout_s", "120")))
        print(f"{mutant.name}: {', '.join(where) or 'NOWHERE'}", flush=True)
        if "out" in given:
            Path(given["out"]).write_text(json.dumps(found, indent=1) + "\n")
    late = sum(where[:1] == [LATE] for where in found.values())
    nowhere = sum(not where for where in found.values())
    print(f"of {len(found)} mutants, {nowhere} are wrong nowhere and {late} did not finish")
    return 1 if nowhere or late else 0


def runs_on(mutant: Mutant, device: str) -> bool:
    """Whether it can be tried there: kernels in Triton on a CPU with the interpreter, but not what needs
    streams of a GPU, nor Gluon."""
    if device == mutant.case.device:
        return True
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and "/triton" in mutant.base
    return interpreted and "torch.cuda" not in changed_lines(mutant)


def changed_lines(mutant: Mutant) -> str:
    """The lines that the mutant adds to its base."""
    before = set(source_of(mutant.base).splitlines())
    return "\n".join(line for line in mutant.kernel.source.splitlines() if line not in before)


def witnessed(mutant: Mutant, device: str, timeout_s: float) -> list[str]:
    """The inputs on which the mutant is wrong, `own` for the problem's; what it raised, if it did."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send, args=(theirs, mutant, device))
    child.start()
    theirs.close()
    try:
        answer: list[str] = ours.recv() if ours.poll(timeout_s) else [LATE]
    except EOFError:
        answer = ["it died"]
    child.kill()
    child.join()
    return answer


def _send(pipe: Any, mutant: Mutant, device: str) -> None:
    try:
        pipe.send(list(wrong_on(mutant, device)))
    except Exception as error:  # ends this process; the error is the mutant's result
        pipe.send([f"{type(error).__name__}: {str(error)[:200]}"])


def wrong_on(mutant: Mutant, device: str) -> Iterator[str]:
    """The names of the inputs on which it is wrong, each once."""
    import torch

    problem = small_problem(mutant, device)
    module = load_module(problem.source, problem.overrides)
    arguments = constructor_arguments(module)
    with tempfile.TemporaryDirectory() as folder:
        made = _imported(mutant.kernel.source, Path(folder))
        exact, eager, kernel = (
            make_model(each, cls, arguments, seed=1, device=device, dtype=problem.dtype)
            for each, cls in ((module, "Model"), (module, "Model"), (made, "ModelNew"))
        )
    exact.double()
    weights = {name: value.clone() for name, value in eager.state_dict().items()}
    bound = FLOAT16_FACTORS if mutant.case.problem in CONVOLUTIONS else WRONG[problem.dtype]
    found: set[str] = set()
    for number, name in enumerate([*INPUTS, *INPUTS]):
        if number == len(INPUTS):
            weights = {key: torch.randn_like(value) * 0.1 + value for key, value in weights.items()}
        for each in (exact, eager, kernel):
            each.load_state_dict(weights)
        drawn = make_inputs(module, seed=number, device=device, dtype=problem.dtype)
        floats = [place for place, value in enumerate(drawn) if value.is_floating_point()]
        for place in floats[:1] if name.startswith("first") else floats:
            drawn[place] = INPUTS[name](drawn[place])
        with torch.no_grad():
            answer = exact(*(v.double() if v.is_floating_point() else v for v in drawn))
            own = eager(*drawn)
            if is_wrong(kernel(*(v.clone() for v in drawn)), answer, own, bound):
                found.add(name)
        if len(found) == ENOUGH:
            break
    yield from (name for name in INPUTS if name in found)


def small_problem(mutant: Mutant, device: str) -> Problem:
    """The mutant's problem: small on a CPU, at full size on a GPU."""
    case = replace(mutant.case, device=device)
    problem = problem_of(case)
    if device == "cuda":
        return problem
    width = {"features": problem.overrides["features"]} if "features" in problem.overrides else {}
    return replace(problem, overrides={**problem.overrides, **SMALL[case.problem], **width})


def is_wrong(out: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, bound: float) -> bool:
    """Whether `out` is further from `exact` than `bound` and twice eager's own error, in the norm or,
    twenty times as far, in an element; or another NaN or infinity than both agree upon."""
    if out.shape != exact.shape or out.dtype != eager.dtype:
        return True
    out, eager = out.double(), eager.double()
    both = exact.isfinite() & eager.isfinite()
    agreed = (exact == eager) | (exact.isnan() & eager.isnan())
    other = agreed & ~both & ~((out == exact) | (out.isnan() & exact.isnan()))
    if bool(other.any()) or bool((both & ~out.isfinite()).any()):
        return True
    answer = exact.where(both, 0.0)
    error, own = (each.where(both, 0.0) - answer for each in (out, eager))
    norm, most = answer.norm(), answer.abs().amax()
    return bool(error.norm() > bound * norm + 2 * own.norm()) or bool(
        error.abs().amax() > 20 * (bound * most + 2 * own.abs().amax())
    )


def _imported(source: str, folder: Path) -> ModuleType:
    """The kernel as a module; Triton reads its source from a file, and C++ is built beside it."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    thin_headers.install()
    file = folder / "kernel.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"witness.py: {error}")
