"""Shared by the commands that handle a suite: its choice, its problems' rules, and opening a problem."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import build, compose_config
from evaluators.app.config import (
    DEVICE_HELP,
    NO_FOLDER,
    RayConfig,
    group,
    hydra_settings,
    section,
)
from evaluators.app.device_config import host_of
from evaluators.app.words import overrides
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.nearest import near
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.device.child_processes import WorkerBroken
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.reference.loading import assigned_names
from evaluators.scheduler.pool import Pool
from evaluators.suites.suite import Suite, SuiteEntry


@dataclass
class RulesConfig:
    """Rules for all problems of a suite; null leaves a rule to each problem's own config."""

    dtype: str | None = option(
        None, "dtype of floating-point inputs and weights: float64 | float32 | bfloat16 | float16"
    )
    tolerance: str | None = option(None, "rule for comparing outputs: strict | kernelbench | kernelbench_v02")
    precision: str | None = option(
        None, "type to which a kernel may round the factors of products: float16 | bfloat16 | tfloat32"
    )
    libraries: str | None = option(None, "whether library calls may do the kernel's work: any | no_library")
    floor: bool | None = option(None, "reject kernels that are faster than the machine can be")
    backward: bool | None = option(
        None, "judge gradients of inputs and weights too, and time forward and backward together"
    )
    allow_degenerate: bool | None = option(None, "accept references that cannot judge")
    types: list[str] | None = option(None, "for operators: use only calls with tensors of these dtypes")
    most_cases: int | None = option(
        None, "for operators: use only this number of calls per dtype, the largest; null: all"
    )
    timed_workloads: int | None = option(None, "for definitions: workloads to time")
    checked_workloads: int | None = option(None, "for definitions: other workloads to check without timing")
    timed: bool | None = option(None, "time the kernels; false: they only have to be right")
    sizes: dict[str, Any] = option({}, "module globals to replace, in each reference that has them")


@dataclass
class SuiteConfig:
    """The keys of every command that handles each problem of a suite."""

    suite: Any = group(None)
    only: list[str] = option([], "problems of the suite: numbers, names, or patterns with *; []: all")
    problem: RulesConfig = section(RulesConfig)
    evaluator: Any = group("default")
    pool: Any = group("local")
    device: str = option("auto", DEVICE_HELP)
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@dataclass
class ProblemConfig:
    """The config of a single problem."""

    problem: Any = group(None)


def entries_of(suite: Suite) -> list[SuiteEntry]:
    """The problems of the suite. Raises UsageError."""
    try:
        return list(suite.entries())
    except ValueError as error:
        raise UsageError(str(error)) from error


def chosen_entries(suite: Suite, config: DictConfig) -> list[SuiteEntry]:
    """The problems of the suite that a command's config selects. Raises UsageError."""
    entries = entries_of(suite)
    wanted = chosen([each.problem for each in entries], config.only, f"the suite {suite.name}")
    _check_sizes(config, wanted)
    return [each for each in entries if each.problem in wanted]


def chosen(problems: Sequence[str], only: Sequence[Any], where: str) -> set[str]:
    """The problems that `only` selects by number, name, path, or pattern with `*`; all if it is empty. Raises
    UsageError for an item that matches none. `where`: the problems' source, for the message."""
    found: set[str] = set()
    for pattern in map(str, only):
        named = {each for each in problems if _matches(each, pattern)}
        if not named:
            raise UsageError(f"{where} has no problem {pattern}{near(pattern, problems)}")
        found |= named
    return found if only else set(problems)


def _check_sizes(config: DictConfig, problems: Iterable[str]) -> None:
    """Raises UsageError for a size that no reference has."""
    unknown, known = set(config.problem.sizes), set()
    for each in problems:
        if not unknown:
            return
        with contextlib.suppress(UsageError):
            known |= assigned_names(open_problem(each, device=config.device).source)
            unknown -= known
    for name in sorted(unknown):
        raise UsageError(f"problem.sizes.{name}: no reference has it{near(name, known)}")


def open_problem(name: str, *, device: str, rules: DictConfig | None = None) -> Problem:
    """The problem of `problem=<name>` or `problem=<file>.py`, with those of the `RulesConfig`'s rules that
    are set. Raises UsageError."""
    return _opener(name, rules)(device=device)


def operator_opener(suite: str, *, device: str, rules: DictConfig) -> Callable[[str], Problem]:
    """A function that opens an operator's problem of a suite as `open_problem` does. All problems share one
    config: composing one takes Hydra 0.06 s, 90 % of opening. Both raise UsageError."""
    open_with = _opener(f"{suite}/none", rules)
    return lambda operator: open_with(name=f"{suite}/{operator}", device=device)


def _opener(name: str, rules: DictConfig | None) -> Callable[..., Problem]:
    """A function that builds the problem of `problem=<name>` under the rules. Its arguments replace fields of
    the problem's config."""
    given: dict[str, Any] = {} if rules is None else dict(OmegaConf.to_container(rules))  # type: ignore[arg-type]
    sizes = given.pop("sizes", None) or {}
    rules_set = overrides({key: value for key, value in given.items() if value is not None}, "problem.")
    config = compose_config(ProblemConfig, [f"problem={name}", *rules_set]).problem

    def open_with(**fields: Any) -> Problem:
        problem: Problem = build(config, **fields)
        if known := sizes_in(problem.source, sizes):
            problem = build(config, **fields, sizes={**config.sizes, **known})
        return problem

    return open_with


def sizes_in(source: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that replace module globals of this reference."""
    names = assigned_names(source)
    return {name: value for name, value in sizes.items() if name in names}


class SuiteProblems:
    """Opens the problems of a suite. A bad reference stops none of the others."""

    def __init__(self, config: DictConfig) -> None:
        """`config`: the command's, with its keys `device` and `problem`."""
        self._config = config
        self._opened: dict[str, Problem] = {}
        self.errors: dict[str, UsageError] = {}
        """Why problems could not be opened."""

    def open(self, name: str) -> Problem | None:
        """The problem of this name, or None if it cannot be opened."""
        if name not in self._opened and name not in self.errors:
            try:
                self._opened[name] = open_problem(
                    name, device=self._config.device, rules=self._config.problem
                )
            except UsageError as error:
                self.errors[name] = error
        return self._opened.get(name)

    def lines(self) -> list[str]:
        """Which problems could not be opened, and why. Raises UsageError with the most frequent reason if
        none could be opened: then the call is wrong rather than a reference."""
        if self.errors and not self._opened:
            raise UsageError(Counter(map(str, self.errors.values())).most_common(1)[0][0])
        return [f"{name}: cannot be opened: {error}" for name, error in self.errors.items()]


async def for_each_problem(
    suite: Suite, config: DictConfig, settings: Settings, do: Callable[[Pool, str], Awaitable[None]]
) -> None:
    """Calls `do` with each selected problem's name, for one problem per device at a time. Raises
    UsageError."""
    entries = chosen_entries(suite, config)
    host = host_of(config, settings)
    turns = asyncio.Semaphore(host.devices)

    async def in_turn(pool: Pool, name: str) -> None:
        async with turns:
            await do(pool, name)

    with Pool(host) as pool:
        await all_of(in_turn(pool, each.problem) for each in entries)


async def all_of(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Waits for all jobs. The first error cancels the others, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def evaluate_once(
    pool: Pool, problem: Problem, kernel: Kernel, store: JsonlStore, key: str, *, thorough: bool = False
) -> Evaluation:
    """The evaluation stored under the key, or a new one, which is stored if it is lasting. A failure of the
    evaluator itself is an infrastructure error."""
    if (known := store.get(key)) is not None:
        return Evaluation.from_json(known)
    try:
        evaluation = await pool.evaluate(problem, kernel, thorough=thorough)
    except WorkerBroken as error:
        evaluation = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=str(error))
    if evaluation.is_lasting:
        store.put(key, evaluation.to_json())
    return evaluation


def _matches(problem: str, pattern: str) -> bool:
    last = problem.rpartition("/")[2]
    has_number = pattern.isdigit() and last.startswith(f"{pattern}_")
    return has_number or any(pattern == each or fnmatch(each, pattern) for each in (problem, last))
