"""What the commands about a suite share: its choice, its problems' rules, and how a problem is opened."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evaluators.app.command import build, compose_config
from evaluators.app.config import NO_FOLDER, RayConfig, group, hydra_settings, quoted, section
from evaluators.app.device_config import host_of
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
    """What holds for all problems of a suite; null: as each problem's own config has it."""

    dtype: str | None = option(None, "of floating inputs and weights: float64 | float32 | bfloat16 | float16")
    tolerance: str | None = option(None, "strict | kernelbench | kernelbench_v02")
    precision: str | None = option(None, "to which a kernel may round the factors of products")
    libraries: str | None = option(None, "any | no_library: whether a kernel may leave the work to libraries")
    floor: bool | None = option(None, "reject a kernel that is faster than the machine can be")
    allow_degenerate: bool | None = option(None, "accept a reference that cannot judge")
    types: list[str] | None = option(None, "of an operator's calls those with tensors of these types alone")
    most_cases: int | None = option(None, "of an operator's calls the largest at each type, so many")
    timed: bool | None = option(None, "false: kernels have to be right, and nothing is timed")
    sizes: dict[str, Any] = option({}, "module globals to replace, in the references that have them")


@dataclass
class SuiteConfig:
    """What every command has that does something with each problem of a suite."""

    suite: Any = group(None)
    only: list[str] = option([], "of the suite's problems: numbers, names, or patterns with *")
    problem: RulesConfig = section(RulesConfig)
    evaluator: Any = group("default")
    pool: Any = group("local")
    device: str = option("auto", "auto | cuda | cpu")
    ray: RayConfig = section(RayConfig)
    hydra: Any = hydra_settings(NO_FOLDER)


@dataclass
class ProblemConfig:
    """The config of one problem alone."""

    problem: Any = group(None)


def entries_of(suite: Suite) -> list[SuiteEntry]:
    """The problems of the suite. Raises UsageError."""
    try:
        return list(suite.entries())
    except ValueError as error:
        raise UsageError(str(error)) from error


def chosen_entries(suite: Suite, config: DictConfig) -> list[SuiteEntry]:
    """The problems of the suite that a command's config wants. Raises UsageError."""
    entries = entries_of(suite)
    wanted = chosen([each.problem for each in entries], config.only, f"the suite {suite.name}")
    _check_sizes(config, wanted)
    return [each for each in entries if each.problem in wanted]


def chosen(problems: Sequence[str], only: Sequence[Any], where: str) -> set[str]:
    """Those that `only` names: a number, a name, a path, or a pattern with `*` for either; all if it
    is empty. Raises UsageError if it names what is not there. `where`: where the problems are from."""
    found: set[str] = set()
    for pattern in map(str, only):
        named = {each for each in problems if _is_named(each, pattern)}
        if not named:
            raise UsageError(f"{where} has no problem {pattern}{near(pattern, problems)}")
        found |= named
    return found if only else set(problems)


def _check_sizes(config: DictConfig, problems: Iterable[str]) -> None:
    """Raises UsageError for a size that none of the references has."""
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
    """The problem that `problem=<name>` chooses, or of a reference's file, with the rules that are set of a
    `RulesConfig`. Raises UsageError."""
    return _opener(name, rules)(device=device)


def operator_opener(suite: str, *, device: str, rules: DictConfig) -> Callable[[str], Problem]:
    """Opens an operator's problem of a suite as `open_problem` does, out of one config for all of them: Hydra
    takes some 0.06 s to compose one, nine tenths of opening. Raises UsageError, as what it returns does."""
    opened = _opener(f"{suite}/none", rules)
    return lambda operator: opened(name=f"{suite}/{operator}", device=device)


def _opener(name: str, rules: DictConfig | None) -> Callable[..., Problem]:
    """Builds what `problem=<name>` chooses, under the rules, with other fields than its config's where they
    are given."""
    held: dict[str, Any] = {} if rules is None else dict(OmegaConf.to_container(rules))  # type: ignore[arg-type]
    sizes = held.pop("sizes", None) or {}
    set_ones = [f"problem.{key}={_listed(value)}" for key, value in held.items() if value is not None]
    config = compose_config(ProblemConfig, [f"problem={name}", *set_ones]).problem

    def opened(**fields: Any) -> Problem:
        problem: Problem = build(config, **fields)
        if there := sizes_in(problem.source, sizes):
            problem = build(config, **fields, sizes={**config.sizes, **there})
        return problem

    return opened


def sizes_in(source: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Those that replace module globals which the reference has."""
    names = assigned_names(source)
    return {name: value for name, value in sizes.items() if name in names}


def _listed(value: Any) -> str:
    """A value as Hydra reads it back: a number, a truth value, a text, or a list of texts."""
    if isinstance(value, int | float):
        return json.dumps(value)
    return f"[{','.join(map(quoted, value))}]" if isinstance(value, list) else quoted(value)


async def for_each_problem(
    suite: Suite, config: DictConfig, settings: Settings, do: Callable[[Pool, str], Awaitable[None]]
) -> None:
    """Does something with each problem of the suite that the config wants, by its name, as many at a time as
    there are devices. Raises UsageError."""
    entries = chosen_entries(suite, config)
    host = host_of(config, settings)
    turns = asyncio.Semaphore(host.devices)

    async def in_turn(pool: Pool, name: str) -> None:
        async with turns:
            await do(pool, name)

    with Pool(host) as pool:
        await asyncio.gather(*(in_turn(pool, each.problem) for each in entries))


async def evaluate_and_keep(
    pool: Pool, problem: Problem, kernel: Kernel, kept: JsonlStore, key: str, *, thorough: bool = False
) -> Evaluation:
    """The verdict, which is kept under the key; an infrastructure error, which is not, where it failed for
    reasons of ours."""
    try:
        evaluation = await pool.evaluate(problem, kernel, thorough=thorough)
    except WorkerBroken as error:
        evaluation = Evaluation(status=Status.INFRASTRUCTURE_ERROR, log=str(error))
    if evaluation.status is not Status.INFRASTRUCTURE_ERROR:
        kept.put(key, evaluation.to_json())
    return evaluation


def _is_named(problem: str, pattern: str) -> bool:
    last = problem.rpartition("/")[2]
    is_its_number = pattern.isdigit() and last.startswith(f"{pattern}_")
    return is_its_number or any(pattern == each or fnmatch(each, pattern) for each in (problem, last))
