"""The sources of training data: runs, read from their journals, and entries of the kernel library."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from evaluators.base.compiler_messages import without_folders
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import PROBLEMS
from kernel_library.catalogue.entry import Entry
from kernel_library.catalogue.library import FolderLibrary
from search.harvest.conversations import Brief
from search.harvest.identity import fingerprint, sized
from search.harvest.recorded_calls import RecordedCalls
from search.proposers.llm.measured_history import MeasuredHistory
from search.recordings.archives import SUFFIX, unpacked
from search.records.journal import JOURNAL, JournalError, recorded_state
from search.records.run_state import RunState
from search.records.tree import LIBRARY, Category, Idea, Seed, Variant

logger = logging.getLogger(__name__)

OWN_LICENSE = "apache-2.0"
"""License of everything that ships with Ideatree: its references and the playbook's templates."""

RULES = ("tolerance", "precision", "libraries", "device")
"""The fields of a problem that say how its kernels are judged."""

T = TypeVar("T")
Track = Callable[[Sequence[T], str], Iterable[T]]
"""Iterates over a sequence and shows progress under the given description."""


class HarvestError(ValueError):
    """Nothing can be harvested from the input; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A correct kernel with its idea. `lineage`: the earlier ideas, oldest first. `brief`: what a prompt for
    it would say."""

    problem: Problem
    kernel: Kernel
    evaluation: Evaluation
    origin: Mapping[str, Any]
    brief: Brief
    idea: str
    category: str = ""
    lineage: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HarvestedRun:
    """One search, read from its journal. `name`: the run folder, relative to the folder that was read;
    `license`: of what does not ship with Ideatree; `rejected`: by kernel id, the verdicts on kernels that any
    run on the same reference found to cheat."""

    name: str
    command: str
    state: RunState
    license: str
    calls: RecordedCalls = field(default_factory=RecordedCalls)
    rejected: Mapping[str, Evaluation] = field(default_factory=dict)

    @cached_property
    def problem(self) -> Problem:
        """The problem that was searched."""
        assert self.state.started is not None, "a run without a start is no run"
        return self.state.started.problem

    @cached_property
    def judged(self) -> Mapping[str, Variant]:
        """Variants by id with the verdict that counts: a rejection from any run; otherwise the confirmation,
        the last comparison with other leaders, or the evaluation, in this order. Variants whose only verdict
        is not about the kernel (our failures, a reference that cannot judge) are left out, as are those of
        which only the quick stage of a race is known (`outpaced`)."""
        judged = {}
        for variant in self.state.tree.variants.values():
            kernel, own = variant.kernel.id, variant.evaluation
            last = own and self.state.tree.ranking.evaluation(kernel, own)
            verdict = self.rejected.get(kernel) or self.state.confirmed.get(kernel) or last
            if verdict is not None and verdict.status.is_of_the_kernel and verdict.quick is None:
                judged[variant.id] = replace(variant, evaluation=verdict)
        return judged

    @cached_property
    def written(self) -> Mapping[str, Variant]:
        """The judged variants that the run wrote, without the library kernels that it only measured."""
        ideas = self.state.tree.ideas
        return {id: each for id, each in self.judged.items() if ideas[each.idea].proposer != LIBRARY}

    def before(self, variant: Variant) -> Variant | None:
        """The variant that this one was made from: the failed one it repairs, or its idea's parent; None for
        the reference or a library kernel."""
        return self.written.get(variant.repairs or variant.parent)

    def seed_of(self, variant: Variant) -> Seed | None:
        """The kernel that the variant's idea starts from; None for the reference. A library kernel has this
        run's verdict, if it was measured here."""
        if (parent := self.judged.get(variant.parent)) is not None:
            return parent.seed
        assert self.state.started is not None
        entry = next((each for each in self.state.started.entries if each.id == variant.parent), None)
        measured = (
            v for v in self.judged.values() if v.id not in self.written and v.parent == variant.parent
        )
        taken = next(measured, None)
        return replace(entry, evaluation=taken.evaluation) if entry and taken else entry

    def brief(self, variant: Variant) -> Brief:
        """What a prompt for the variant would say."""
        assert self.state.started is not None
        idea = self.state.tree.ideas[variant.idea]
        started, earlier = self.state.started, self.state.tree.before(idea.round)
        entry = next((each for each in started.entries if each.id == idea.builds_on), None)
        known = MeasuredHistory(earlier.history(), started.entries, earlier.ranking)
        facts = started.environment
        sources = {each.id: each.kernel.source for each in started.entries}
        return Brief(
            idea=idea,
            seed=self.seed_of(variant),
            entry=entry,
            facts=facts,
            known=known,
            asked=self.calls.writing(variant, self.state.tree, sources),
        )

    def lineage(self, variant: Variant) -> tuple[str, ...]:
        """The ideas that led to the variant's own, oldest first."""
        ideas: list[str] = []
        parent = self.state.tree.variants.get(variant.parent)
        while parent is not None:
            ideas.insert(0, self.state.tree.ideas[parent.idea].text)
            parent = self.state.tree.variants.get(parent.parent)
        return tuple(ideas)

    def origin(self, *variants: Variant) -> dict[str, Any]:
        """The provenance columns of a row made from these variants; the device is that of the first one."""
        ideas = [self.state.tree.ideas[each.idea] for each in variants]
        evaluation = variants[0].evaluation
        assert self.state.started is not None
        facts = dict((evaluation and evaluation.environment) or self.state.started.environment)
        ours = {"playbook"} >= {idea.proposer for idea in ideas}
        return _problem_columns(self.problem, self.license) | {
            "run": self.name,
            "entry": "",
            "variants": [each.id for each in variants],
            "proposers": sorted({idea.proposer for idea in ideas}),
            "models": sorted({idea.model for idea in ideas} - {""}),
            "device": facts.pop("device", ""),
            "versions": json.dumps(facts, sort_keys=True),
            "command": self.command,
            "kernel_license": OWN_LICENSE if ours else self.license,
        }


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Everything that rows are made from."""

    runs: Sequence[HarvestedRun]
    from_library: Sequence[Solution] = ()

    def problems(self) -> list[Problem]:
        """The problems of the runs and the library entries, with repetitions."""
        return [run.problem for run in self.runs] + [each.problem for each in self.from_library]

    def without(self, keys: Container[str]) -> Corpus:
        """The corpus without the problems with these keys."""
        return Corpus(
            runs=[run for run in self.runs if _key(run.problem) not in keys],
            from_library=[each for each in self.from_library if _key(each.problem) not in keys],
        )

    def solutions(self) -> Iterator[Solution]:
        """The correct kernels of all runs, then those of the library."""
        for run in self.runs:
            for variant in run.written.values():
                if variant.evaluation is not None and variant.evaluation.status is Status.CORRECT:
                    idea = run.state.tree.ideas[variant.idea]
                    yield Solution(
                        problem=run.problem,
                        kernel=variant.kernel,
                        evaluation=variant.evaluation,
                        origin=run.origin(variant),
                        brief=run.brief(variant),
                        idea=idea.text,
                        category=idea.category.value,
                        lineage=run.lineage(variant),
                    )
        yield from self.from_library


def read_runs(folders: Sequence[str | Path], license: str, track: Track[Any]) -> list[HarvestedRun]:
    """The runs below the folders, also packed ones, each once, ordered by path. An unreadable one is logged
    and skipped. Raises HarvestError for a missing folder."""
    found: dict[Path, str] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise HarvestError(f"{folder} is not a folder; give runs=<folders with runs below them>")
        for path in sorted(folder.rglob(JOURNAL)):
            name = path.parent.relative_to(folder).as_posix()
            found.setdefault(path.parent.resolve(), path.parent.resolve().name if name == "." else name)
        for archive in sorted(folder.rglob(f"*{SUFFIX}")):
            name = archive.relative_to(folder).as_posix().removesuffix(SUFFIX)
            try:
                found.setdefault(unpacked(archive), name)
            except UsageError as error:
                logger.warning("run skipped: %s", error)
    runs = []
    for path, name in track(list(found.items()), "reading runs"):
        try:
            state = recorded_state(path)
        except (JournalError, ValueError, KeyError, OSError) as error:
            logger.warning("run skipped: %s", error)
            continue
        if state.started is not None:
            calls = RecordedCalls(path)
            run = HarvestedRun(name=name, command=_command(path), state=state, license=license, calls=calls)
            runs.append(run)
    return _with_cheats(runs)


def read_library(roots: Iterable[str | Path]) -> list[Entry]:
    """The entries of the libraries, each once. An unreadable one is logged and skipped."""
    found: dict[str, Entry] = {}
    for root in roots:
        for entry in FolderLibrary(root, seeds=None).entries():
            found.setdefault(entry.id, entry)
    return list(found.values())


def solutions_of(entries: Iterable[Entry], runs: Iterable[HarvestedRun], license: str) -> list[Solution]:
    """A solution per measurement of the entries, without kernels that a run found to cheat."""
    entries = list(entries)
    kernels = {entry.id: Seed(id=entry.id, kernel=entry.kernel) for entry in entries}
    cheats = {(_key(run.problem), kernel) for run in runs for kernel in run.rejected}
    solutions = []
    for entry in entries:
        *before, idea = entry.lineage.ideas or ("",)
        for measurement in entry.measurements:
            if (_key(measurement.problem), entry.kernel.id) in cheats:
                continue
            facts = dict(measurement.evaluation.environment)
            origin = _problem_columns(measurement.problem, license) | {
                "run": "",
                "entry": entry.id,
                "variants": [],
                "proposers": [],
                "models": [],
                "device": facts.pop("device", ""),
                "versions": json.dumps(facts, sort_keys=True),
                "command": measurement.command,
                "kernel_license": entry.licence or license,
            }
            solutions.append(
                Solution(
                    problem=measurement.problem,
                    kernel=entry.kernel,
                    evaluation=measurement.evaluation,
                    origin=origin,
                    brief=_brief(entry, kernels.get(entry.lineage.start), measurement.evaluation.environment),
                    idea=idea,
                    lineage=tuple(before),
                )
            )
    return solutions


def _brief(entry: Entry, start: Seed | None, facts: Mapping[str, str]) -> Brief:
    """All ideas of an entry joined into one, because the library does not contain the kernels in between."""
    text = "; then ".join(entry.lineage.ideas) or "Make it as fast as this device can."
    idea = Idea(
        text=text, category=Category.COMPUTE, parent=start.id if start else "", round=1, proposer=LIBRARY
    )
    return Brief(idea=idea, seed=start, facts=facts)


def comparable(one: Evaluation, other: Evaluation) -> bool:
    """Whether both were measured on the same kind of device."""
    return one.environment.get("device") == other.environment.get("device")


def faster(one: Evaluation, other: Evaluation) -> bool:
    """Whether both are correct, were measured on the same kind of device, and the first is significantly
    faster: the 95 % intervals of the speedups do not overlap."""
    if one.timing is None or other.timing is None or not comparable(one, other):
        return False
    return one.timing.speedup_low > other.timing.speedup_high


def task(problem: Problem) -> dict[str, Any]:
    """The columns that describe the task."""
    return {
        "reference": sized(problem),
        "dtype": problem.dtype,
        "tolerance": problem.tolerance,
        "target": problem.device,
    }


def rules(problem: Problem) -> str:
    """How kernels for the problem are judged, as JSON."""
    known = asdict(problem)
    return json.dumps({name: known[name] for name in RULES if name in known})


def _with_cheats(runs: Sequence[HarvestedRun]) -> list[HarvestedRun]:
    """The runs, each with the kernels that any run on the same reference found to cheat."""
    cheats: dict[str, dict[str, Evaluation]] = {}
    for run in runs:
        there = cheats.setdefault(_key(run.problem), {})
        variants = run.state.tree.variants.values()
        verdicts = [(each.kernel.id, each.evaluation) for each in variants if each.evaluation is not None]
        compared = [pair for each in run.state.tree.ranking.comparisons for pair in each.found.items()]
        for kernel_id, verdict in [*verdicts, *compared, *run.state.confirmed.items()]:
            if verdict.status is Status.REJECTED:
                there.setdefault(kernel_id, verdict)
    return [replace(run, rejected=cheats[_key(run.problem)]) for run in runs]


def _key(problem: Problem) -> str:
    return fingerprint(problem.source)


def _problem_columns(problem: Problem, license: str) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "problem_id": problem.id,
        "problem_key": _key(problem),
        "reference_license": OWN_LICENSE if problem.source in _shipped_references() else license,
    }


@lru_cache
def _shipped_references() -> frozenset[str]:
    return frozenset(path.read_text() for path in PROBLEMS.rglob("*.py"))


def _command(folder: Path) -> str:
    """The command that made a run folder, without folders and addresses of servers; "" where it is not
    recorded."""
    import yaml

    try:
        config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text()) or {}
        arguments = yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text()) or []
    except (OSError, yaml.YAMLError):
        return ""
    module = "search.run" if "strategy" in config else "search.mcp"
    public = [str(each) for each in arguments if "base_url=" not in str(each)]
    return without_folders(shlex.join(["python", "-m", module, *public]))
