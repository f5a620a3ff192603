"""Runs the verification in a child process, because a kernel may crash or corrupt the process it runs in."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import TRACEBACK
from evaluators.records.problem import content_id
from search.optimize.installation.package import PACKAGE
from search.optimize.model_config import source_of
from search.optimize.models.source import LoadedModel, ModelSource, at_shapes
from search.optimize.verification.errors import find_guilty
from search.optimize.verification.record import (
    COMPILE,
    COMPILED_PAIRS,
    EAGER,
    FILE,
    GRAPH,
    OPTIMIZED,
    OPTIMIZED_GRAPH,
    REDUCED,
    REWRITTEN,
    Verification,
)

TASK, RESULT = "verification_task.json", "verification_found.json"
"""The child's task, and its result, which may cover a part of the ways."""
ERRORS = "verification_errors.txt"
"""What the last child that failed wrote to its standard error."""
UNTUNED = "verification_untuned_"
"""Prefix of the file that keeps the results of everything but max-autotune."""
CAUSED = "The above exception was the direct cause of "
EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
"""Matches the start of the traceback line that names the exception."""
TUNED = "max-autotune"
OPTIMIZERS = ("adamw", "sgd")
TIMING = "timing"
"""The key of `Verification.failed` for a verification that only compared the model."""
WAYS = {
    EAGER: "eager",
    REWRITTEN: "rewritten forward, no kernel",
    OPTIMIZED: "with the kernels",
    GRAPH: "CUDA graph",
    OPTIMIZED_GRAPH: "with the kernels, CUDA graph",
    COMPILE: "torch.compile",
    f"{REWRITTEN} {COMPILE}": "rewritten forward, torch.compile",
    f"{OPTIMIZED} {COMPILE}": "with the kernels, torch.compile",
    REDUCED: "torch.compile, reduce-overhead",
    f"{OPTIMIZED} {REDUCED}": "with the kernels, reduce-overhead",
    TUNED: "torch.compile, max-autotune",
}
"""The ways of running a model, with their titles."""
COMPILED = (f"{REWRITTEN} {COMPILE}", *itertools.chain(*COMPILED_PAIRS))
COMPILE_WAYS = {"none": (), "default": COMPILED, "all": (*COMPILED, TUNED)}
"""The ways of compiling the model that are timed, by the value of `compile=`."""


def ways_of(compile: str, device: str, *, backward: bool = False) -> list[str]:
    """The ways of running a model that are timed on a device. Those that use CUDA graphs need a GPU, and are
    not for training, of which a step has more than the forward."""
    ways = [EAGER, REWRITTEN, OPTIMIZED, GRAPH, OPTIMIZED_GRAPH, *COMPILE_WAYS[compile]]
    out = [] if device == "cuda" and not backward else [GRAPH, REDUCED]
    out += [f"{REWRITTEN} {COMPILE}"] if backward else []
    return [way for way in ways if not any(each in way for each in out)]


def way_title(found: Verification, way: str) -> str:
    """The title of a way: where no kernel runs in it, it does not name the kernels."""
    title = WAYS.get(way, way)
    return title if found.runs_kernels(way) else title.replace(WAYS[OPTIMIZED], "rewritten forward")


class VerificationError(Exception):
    """The model could not be verified; the message says why, in one line."""


class TimeLimit:
    """The time that a whole verification may take, over all of its processes, from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def __str__(self) -> str:
        return f"it took longer than verify_s={self.seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How a model is trained: steps, the optimizer's name (a key of OPTIMIZERS) and learning rate, and the
    dtype of `torch.autocast` ("": none)."""

    steps: int = 50
    optimizer: str = OPTIMIZERS[0]
    learning_rate: float = 3e-4
    autocast: str = ""


@dataclass(frozen=True, kw_only=True)
class VerificationTask:
    """What the child process is to verify: the model (fields of a `ModelConfig`) on `seeds` sets of weights
    and inputs, `turns` timing readings for each of the `ways`. `without`: kernels that stay off, with the
    reason. `in_place`: what is known of `Verification.in_place`. `shapes`: weights of the shapes, by name;
    None: all that the source has. `expected_s`: about how long it takes, for its progress. `training`: of a
    model that is trained. `source`: loads the model; only the child sets it."""

    model: Mapping[str, Any]
    device: str
    dtype: str | None
    seed: int = 0
    seeds: int = 5
    turns: int = 15
    ways: Sequence[str] = tuple(WAYS)
    without: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    shapes: Mapping[str, float] | None = None
    expected_s: float = 0.0
    training: TrainingPlan | None = None
    source: ModelSource | None = None

    @property
    def autocast(self) -> str:
        """The dtype of `torch.autocast` in the model's calls; "" for none."""
        return self.training.autocast if self.training is not None else ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> VerificationTask:
        """Reads what `asdict` makes of a task; loads no model."""
        training = fields["training"] and TrainingPlan(**fields["training"])
        return cls(**{**fields, "training": training, "source": source_of(fields["model"])})

    def load(self, seed: int) -> list[LoadedModel]:
        """Loads the model at each of its shapes, with weights and inputs drawn from this seed."""
        assert self.source is not None
        trains = self.training is not None
        models = self.source.load(device=self.device, dtype=self.dtype, backward=trains, seed=seed)
        models = [replace(each, autocast=self.autocast) for each in models]
        return models if self.shapes is None else at_shapes(models, self.shapes)


def verify_in_subprocess(
    folder: Path, task: VerificationTask, names: Sequence[str], timeout_s: float
) -> Verification:
    """Verifies the folder's `optimized/`, which has the kernels of these names.

    All of it takes at most `timeout_s`: a model that was compared by then is delivered without times. A
    kernel that crashes the child is found by bisection and left out. Max-autotune runs in a second child,
    because it may take longer than everything else; the results before it are kept, so that an interrupted
    verification continues there. Raises VerificationError.
    """
    (folder / FILE).unlink(missing_ok=True)
    found = _verify_all_ways(folder, task, names, TimeLimit(timeout_s))
    found.write(folder / FILE)  # last: this file marks the model as verified
    for each in folder.glob(f"{UNTUNED}*"):
        each.unlink()
    return found


def _verify_all_ways(
    folder: Path, task: VerificationTask, names: Sequence[str], limit: TimeLimit
) -> Verification:
    if TUNED not in task.ways:
        return _verify(folder, task, names, limit)
    untuned = replace(task, ways=[way for way in task.ways if way != TUNED])
    kept = folder / f"{UNTUNED}{_digest(folder, untuned)}.json"
    if kept.exists():
        found = Verification.read(kept)
    else:
        found = _verify(folder, untuned, names, limit)
        if not found.passes or TIMING in found.failed:
            return found
        found.write(kept)
    ways = (EAGER, OPTIMIZED, TUNED)
    tuning = replace(task, seeds=0, ways=ways, without=found.left_out, in_place=found.in_place)
    tuned = _run_child(folder, tuning, limit)
    if isinstance(tuned, str):
        return replace(found, failed={**found.failed, TUNED: tuned})
    return replace(
        found, sessions=[*found.sessions, *tuned.sessions], failed={**found.failed, **tuned.failed}
    )


def _digest(folder: Path, task: VerificationTask) -> str:
    """Identifies what is verified: the task and the package without its constants."""
    package = folder / PACKAGE
    files = [each for each in sorted(package.rglob("*.*")) if each.suffix in (".py", ".json")]
    texts = ((str(each.relative_to(package)), each.read_text()) for each in files)
    return content_id(json.dumps(asdict(replace(task, expected_s=0.0))), *itertools.chain(*texts))


def _verify(folder: Path, task: VerificationTask, names: Sequence[str], limit: TimeLimit) -> Verification:
    """Runs the child, without CUDA graphs or crashing kernels where needed. A crash while CUDA graphs are
    timed removes no kernel: the graph itself may be the cause."""
    found = _run_child(folder, task, limit)
    if isinstance(found, Verification):
        return found
    died = found
    if not limit.left:
        raise VerificationError(f"{died}; raise it, or lower compared, turns or the ways of compile=")
    if OPTIMIZED_GRAPH in task.ways:
        graphs = [way for way in task.ways if way in (GRAPH, OPTIMIZED_GRAPH)]
        without = replace(task, ways=[way for way in task.ways if way not in graphs])
        found = _verify(folder, without, names, limit)
        return replace(found, failed={**found.failed, **dict.fromkeys(graphs, died)})
    smoke = replace(task, seeds=1, ways=())

    def dies(some: Sequence[str]) -> bool:
        off = {name: "" for name in names if name not in some}
        return isinstance(_run_child(folder, replace(smoke, without={**off, **task.without}), limit), str)

    tried = [name for name in names if name not in task.without]
    out = dict.fromkeys(find_guilty(tried, dies), f"it crashes the process: {died}")
    if not out or dies([]):
        raise VerificationError(_ended(folder, died))
    found = _run_child(folder, replace(task, without={**task.without, **out}), limit)
    if isinstance(found, str):
        raise VerificationError(_ended(folder, found))
    return found


def _run_child(folder: Path, task: VerificationTask, limit: TimeLimit) -> Verification | str:
    """Runs the child; returns its result, or how it failed. A child whose time is up may have compared the
    model: that is its result, in which the timing failed."""
    write_atomically(folder / TASK, json.dumps(asdict(task)))
    (folder / RESULT).unlink(missing_ok=True)
    command = [sys.executable, "-m", "search.optimize.verification.child_process", str(folder)]
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=limit.left, check=False)
    except subprocess.TimeoutExpired:
        if not (folder / RESULT).exists():
            return str(limit)
        found = Verification.read(folder / RESULT)
        (folder / RESULT).unlink()
        return replace(found, failed={**found.failed, TIMING: str(limit)})
    if done.returncode == 0 and (folder / RESULT).exists():
        found = Verification.read(folder / RESULT)
        (folder / RESULT).unlink()
        return found
    (folder / ERRORS).write_text(done.stderr)
    signal = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    reason = failure_reason(done.stderr)
    return f"{signal}: {reason}" if reason else signal


def _ended(folder: Path, reason: str) -> str:
    return f"the model's process ended: {reason} (see {folder / ERRORS})"


def failure_reason(errors: str) -> str:
    """The stderr line that says why a process ended: the exception of the last traceback or its direct cause,
    otherwise what C++ threw, otherwise the last line that is not a warning (a failed GPU prints warnings
    last). Earlier tracebacks are those of errors that were handled."""
    lines = [line.rstrip() for line in errors.splitlines() if line.strip()]
    starts = [
        n
        for n, line in enumerate(lines)
        if line.startswith(TRACEBACK) and not (n and lines[n - 1].startswith(CAUSED))
    ]
    raised = [line for line in lines[starts[-1] :] if EXCEPTION.match(line)] if starts else []
    thrown = [line.strip() for line in lines if line.lstrip().startswith("what():")]
    rest = [line for line in lines if "Warning" not in line]
    return next(iter([*raised, *thrown, *rest[-1:], *lines[-1:]]), "")
