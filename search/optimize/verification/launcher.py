"""The verification of a model with kernels in a process of its own: kernels are code that may do anything to
theirs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import TRACEBACK
from evaluators.records.problem import content_id
from search.optimize.installation.package import PACKAGE
from search.optimize.models.source import LoadedModel, ModelSource
from search.optimize.verification.record import (
    COMPILE,
    COMPILED_PAIRS,
    EAGER,
    FILE,
    GRAPH,
    OPTIMIZED,
    OPTIMIZED_GRAPH,
    REDUCED,
    Verification,
    guilty,
)

TASK, FOUND = "verification_task.json", "verification_found.json"
"""What a process is to do, and what it has found, which may be a part of all."""
KEPT = "verification_untuned_"
"""How the file's name begins that has what was found before the compiler tunes."""
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
"""How the line of a traceback begins that names what was raised."""
TUNED = "max-autotune"
WAYS = {
    EAGER: "eager",
    OPTIMIZED: "with the kernels",
    GRAPH: "CUDA graph",
    OPTIMIZED_GRAPH: "with the kernels, CUDA graph",
    COMPILE: "torch.compile",
    f"{OPTIMIZED} {COMPILE}": "with the kernels, torch.compile",
    REDUCED: "torch.compile, reduce-overhead",
    f"{OPTIMIZED} {REDUCED}": "with the kernels, reduce-overhead",
    TUNED: "torch.compile, max-autotune",
}
"""Ways of running a model, in words."""
COMPILED = {
    "none": (),
    "default": tuple(itertools.chain(*COMPILED_PAIRS)),
    "all": (*itertools.chain(*COMPILED_PAIRS), TUNED),
}
"""Those of the compiler that are timed, by what `compile=` says."""


def ways_of(compile: str, device: str) -> list[str]:
    """Ways of running a model that are timed there: CUDA graphs, which two of the compiler's are as well, are
    for GPUs."""
    ways = [EAGER, OPTIMIZED, GRAPH, OPTIMIZED_GRAPH, *COMPILED[compile]]
    return [way for way in ways if device == "cuda" or not (GRAPH in way or REDUCED in way)]


class VerificationError(Exception):
    """There is no verdict on the model; the message says why, in one line."""


@dataclass(frozen=True, kw_only=True)
class VerificationTask:
    """`model`: the fields of a `ModelConfig`; `seeds`: sets of weights and inputs that are compared; `turns`:
    readings of each way; `ways`: of running it, none: it is not timed; `without`: kernels that stay off, with
    the reason; `in_place`: what is known of kernels in their places, as `Verification.in_place` has it."""

    model: Mapping[str, Any]
    device: str
    dtype: str | None
    seed: int = 0
    seeds: int = 5
    turns: int = 15
    ways: Sequence[str] = tuple(WAYS)
    without: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    source: ModelSource | None = None

    def load(self, seed: int) -> list[LoadedModel]:
        """The model with weights and inputs of this seed, at each of its shapes."""
        assert self.source is not None
        return self.source.load(device=self.device, dtype=self.dtype, backward=False, seed=seed)


def verify_apart(
    folder: Path, task: VerificationTask, names: Sequence[str], timeout_s: float
) -> Verification:
    """The verification of the folder's package, which has the kernels of these names, in a process of its
    own. A kernel that ends the process is found by bisection, and left out. What the compiler tunes is
    timed in another process: it may take longer than all the rest, which is kept for the next call in case
    that this one is interrupted. Raises VerificationError."""
    (folder / FILE).unlink(missing_ok=True)
    found = _verified_in_all_ways(folder, task, names, timeout_s)
    found.write(folder / FILE)  # not before: whoever finds it takes the model for verified
    for each in folder.glob(f"{KEPT}*"):
        each.unlink()
    return found


def _verified_in_all_ways(
    folder: Path, task: VerificationTask, names: Sequence[str], timeout_s: float
) -> Verification:
    if TUNED not in task.ways:
        return _verified(folder, task, names, timeout_s)
    untuned = replace(task, ways=[way for way in task.ways if way != TUNED])
    kept = folder / f"{KEPT}{_digest(folder, untuned)}.json"
    if kept.exists():
        found = Verification.read(kept)
    else:
        found = _verified(folder, untuned, names, timeout_s)
        if not found.passes:
            return found
        found.write(kept)
    ways = (EAGER, OPTIMIZED, TUNED)
    tuning = replace(task, seeds=0, ways=ways, without=found.left_out, in_place=found.in_place)
    tuned = _run(folder, tuning, timeout_s)
    if isinstance(tuned, str):
        return replace(found, failed={**found.failed, TUNED: tuned})
    return replace(
        found, sessions=[*found.sessions, *tuned.sessions], failed={**found.failed, **tuned.failed}
    )


def _digest(folder: Path, task: VerificationTask) -> str:
    """Of what is verified: the package, but for its weights, and what is to be done."""
    package = folder / PACKAGE
    files = [each for each in sorted(package.rglob("*.*")) if each.suffix in (".py", ".json")]
    texts = ((str(each.relative_to(package)), each.read_text()) for each in files)
    return content_id(json.dumps(asdict(task)), *itertools.chain(*texts))


def _verified(folder: Path, task: VerificationTask, names: Sequence[str], timeout_s: float) -> Verification:
    """A CUDA graph that ends the process costs no kernel: which of both it was is not known."""
    found = _run(folder, task, timeout_s)
    if isinstance(found, Verification):
        return found
    died = found
    if OPTIMIZED_GRAPH in task.ways:
        graphs = [way for way in task.ways if way in (GRAPH, OPTIMIZED_GRAPH)]
        without = replace(task, ways=[way for way in task.ways if way not in graphs])
        found = _verified(folder, without, names, timeout_s)
        return replace(found, failed={**found.failed, **dict.fromkeys(graphs, died)})
    smoke = replace(task, seeds=1, ways=())

    def dies(some: Sequence[str]) -> bool:
        off = {name: "" for name in names if name not in some}
        return isinstance(_run(folder, replace(smoke, without={**off, **task.without}), timeout_s), str)

    tried = [name for name in names if name not in task.without]
    out = dict.fromkeys(guilty(tried, dies), f"it ends the process: {died}")
    if not out or dies([]):
        raise VerificationError(f"the model's process ended: {died}")
    found = _run(folder, replace(task, without={**task.without, **out}), timeout_s)
    if isinstance(found, str):
        raise VerificationError(f"the model's process ended: {found}")
    return found


def _run(folder: Path, task: VerificationTask, timeout_s: float) -> Verification | str:
    """What the process has found, or how it failed."""
    write_atomically(folder / TASK, json.dumps(asdict(task)))
    (folder / FOUND).unlink(missing_ok=True)
    command = [sys.executable, "-m", "search.optimize.verification.process", str(folder)]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"it took longer than {timeout_s:.0f} s"
    if done.returncode == 0 and (folder / FOUND).exists():
        found = Verification.read(folder / FOUND)
        (folder / FOUND).unlink()
        return found
    signal = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    said = last_words(done.stderr)
    return f"{signal}: {said}" if said else signal


def last_words(errors: str) -> str:
    """The line of a process's output of errors that says why it ended: the first exception of a traceback, or
    what C++ has thrown, otherwise the last line that is no warning: such come last of all where a GPU has
    failed. "" where there is none."""
    lines = [line.rstrip() for line in errors.splitlines() if line.strip()]
    traceback = next((n for n, line in enumerate(lines) if line.startswith(TRACEBACK)), len(lines))
    raised = [line for line in lines[traceback:] if EXCEPTION.match(line)]
    thrown = [line.strip() for line in lines if line.lstrip().startswith("what():")]
    rest = [line for line in lines if "Warning" not in line]
    return next(iter([*raised, *thrown, *rest[-1:], *lines[-1:]]), "")
