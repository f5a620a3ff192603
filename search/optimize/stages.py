"""The stages after the profile: extract problems, find kernels for them, install and verify the kernels."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.app.command import build, given_config_folders, say
from evaluators.app.device_config import host_of
from evaluators.app.suite_config import open_problem
from evaluators.base.atomic_write import write_atomically
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from search.campaign.campaign_view import CampaignView
from search.campaign.config import searches_at_once
from search.campaign.running import LIMITS, Campaign, CampaignRun
from search.optimize.adapters import adapted, is_for
from search.optimize.extraction.graph import CaptureError
from search.optimize.extraction.problems import extract
from search.optimize.extraction.record import EXTRACTION, ExtractedProblem, Extraction
from search.optimize.extraction.traced_model import TracedModel
from search.optimize.installation.package import PACKAGE, set_way, write_package
from search.optimize.installation.placement import assign_places
from search.optimize.outcome import KERNELS
from search.optimize.profiling.record import Profile
from search.optimize.readme import kernel_lines, problem_lines, readme
from search.optimize.searching import (
    MOST_ENTRIES,
    AcceptedKernel,
    LibraryAnswers,
    ModelRules,
    SavedTime,
    fastest_kernels,
    search_winner,
)
from search.optimize.verification.duration import expected_s, plan_line
from search.optimize.verification.launcher import (
    TrainingPlan,
    VerificationError,
    VerificationTask,
    verify_in_subprocess,
    ways_of,
)
from search.optimize.verification.record import Verification
from search.optimize.verification.summary import report_lines
from search.run.searches import PlannedSearch

SEARCHES = "searches"
"""The folder that contains the searches' run folders."""


@dataclass(frozen=True, kw_only=True)
class OptimizeRun:
    """The run folder, its config, and the overrides that are passed to the searches."""

    folder: Path
    config: DictConfig
    shared: Sequence[str]
    console: Console

    def say(self, *lines: str) -> None:
        """Prints lines on the console."""
        say(self.console, *lines)


def extract_problems(run: OptimizeRun, profile: Profile, traced_models: Sequence[TracedModel]) -> Extraction:
    """Extracts the run's problems, or reads those of an earlier call."""
    file = run.folder / EXTRACTION
    if file.exists():
        return Extraction.read(file)
    config = run.config
    entries = build(config.library.kernels).entries() if config.library.use else []
    entries = [each for each in entries if is_for(each, str(config.device), backward=bool(config.backward))]
    views = set().union(*(each.views for each in traced_models))
    found = extract(
        profile,
        traced_models,
        run.folder,
        most=int(config.targets),
        gain=float(config.least_gain),
        known=lambda fragment: any(adapted(entry, fragment, views) for entry in entries),
    )
    found.write(file)
    run.say(*problem_lines(found, profile))
    return found


def _free_device_memory() -> None:
    """Frees what the model's run left allocated (61 GiB after a LLaMA), so that kernels can be judged."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


async def find_kernels(
    run: OptimizeRun, profile: Profile, traced_models: Sequence[TracedModel], extraction: Extraction
) -> dict[str, AcceptedKernel]:
    """Tries the library's kernels, then searches with the campaign's budget; the best of each problem by its
    name. Raises UsageError."""
    config = run.config
    found: dict[str, list[AcceptedKernel | None]] = {each.name: [] for each in extraction.problems}
    searched = any(config.budget[unit] is not None for unit in LIMITS)
    _free_device_memory()
    host = host_of(config)
    with Pool(host) as pool:
        if config.library.use:
            library = build(config.library.kernels)
            answers = LibraryAnswers(run.folder, library, traced_models, run.say)
            turns = asyncio.Semaphore(host.devices + 1)  # builds one kernel while others are measured

            async def ask(each: ExtractedProblem) -> None:
                async with turns:
                    found[each.name].append(await answers.ask(pool, each, _problem(run, each)))

            await asyncio.gather(*map(ask, extraction.problems))
        if searched:
            with CampaignView(run.console) as view:
                campaign = _campaign(run, profile, extraction, host.devices)
                campaign_run = CampaignRun(campaign, pool, config.device, view.show)
                await campaign_run.run()
    if searched:
        for each in extraction.problems:
            found[each.name].append(search_winner(run.folder / SEARCHES / each.name))
        ended: dict[str, list[str]] = {}
        for search in campaign_run.searches:
            ended.setdefault(search.unfit or search.stopped, []).append(search.problem)
        run.say(*(f"{', '.join(names)}: {why}" for why, names in ended.items() if why))
    else:
        run.say("no search, only library kernels: no budget.evaluations, seconds, calls, tokens or dollars")
    return fastest_kernels(found)


def _problem(run: OptimizeRun, each: ExtractedProblem) -> Problem:
    return open_problem(str(run.folder / each.file), device=run.config.device, rules=run.config.problem)


def _campaign(run: OptimizeRun, profile: Profile, extraction: Extraction, devices: int) -> Campaign:
    config = run.config
    rules = [f"rounds={config.rounds}", f"problem.libraries={config.problem.libraries}"]
    rules += ["problem.backward=true"] if config.backward else []
    shared = [*given_config_folders(), *rules, *run.shared]
    planned = [
        PlannedSearch(
            problem=each.name,
            arm="search",
            weight=each.time_ms,
            overrides=(f"problem={run.folder / each.file}", *shared),
            folder=run.folder / SEARCHES / each.name,
            ceiling=each.ceiling,
        )
        for each in extraction.problems
        if each.searched
    ]
    return Campaign(
        folder=run.folder,
        planned=planned,
        scheduler=SavedTime(),
        rules=ModelRules(total_ms=profile.total_ms, model_gain=float(config.least_gain), **config.stop),
        slice=config.slice,
        at_once=searches_at_once(config, devices),
        limits={unit: config.budget[unit] for unit in LIMITS},
    )


def verification_task(
    run: OptimizeRun, profile: Profile, traced_models: Sequence[TracedModel], *, kernels: int
) -> VerificationTask:
    """What is verified after the search, with this number of kernels."""
    config = run.config
    model = OmegaConf.to_container(config.model, resolve=True)
    assert isinstance(model, dict)
    task = VerificationTask(
        model={str(key): value for key, value in model.items()},
        device=str(config.device),
        dtype=config.dtype,
        seed=int(config.seed),
        seeds=int(config.compared),
        turns=int(config.turns),
        ways=ways_of(str(config.compile), str(config.device), backward=bool(config.backward)),
        shapes=profile.weights,
        training=training_plan(config) if config.backward else None,
    )
    calls = max(len(each.run.calls) for each in traced_models)
    took_s = expected_s(task, kernels=kernels, forward_ms=profile.wall_ms, calls=calls)
    return replace(task, expected_s=took_s)


def training_plan(config: DictConfig) -> TrainingPlan:
    """How the model is trained to compare its losses, with `backward=true`."""
    given = {str(key): value for key, value in config.training.items()}
    return TrainingPlan(**{**given, "autocast": given["autocast"] or ""})


def budget_lines(
    run: OptimizeRun, profile: Profile, traced_models: Sequence[TracedModel], extraction: Extraction
) -> Iterator[str]:
    """What the budget limits and what comes in addition to it, before anything is evaluated."""
    limits = {unit: value for unit in LIMITS if (value := run.config.budget[unit]) is not None}
    if limits:
        named = ", ".join(f"budget.{unit}={value}" for unit, value in limits.items())
        yield f"{named} limits the search alone; evaluations that have begun are finished"
    problems = len(extraction.problems)
    if run.config.library.use:
        yield f"before it: up to {MOST_ENTRIES} library kernels for each of {problems} problems"
    if run.config.stop_after == "install":
        task = verification_task(run, profile, traced_models, kernels=problems)
        line = plan_line(task, task.expected_s, float(run.config.verify_s))
        yield f"after it, if each of {problems} problems has a kernel: {line}"


def install_kernels(
    run: OptimizeRun,
    profile: Profile,
    traced_models: Sequence[TracedModel],
    extraction: Extraction,
    kernels: Mapping[str, AcceptedKernel],
) -> Verification | None:
    """Writes `optimized/` with the kernels that keep the model's outputs, and prints what they gain.

    Returns None where nothing makes the model faster. On a GPU the forward may run as a CUDA graph, which can
    be faster even without a kernel. Raises UsageError.
    """
    run.say(*kernel_lines(kernels, extraction.problems))
    sources = {name: each.kernel for name, each in kernels.items()}
    times = {each.name: each.time_ms for each in extraction.problems}
    saved_ms = {name: times[name] * (1 - 1 / each.low) for name, each in kernels.items()}
    places = assign_places(saved_ms, extraction.problems)
    write_atomically(
        run.folder / KERNELS,
        json.dumps({name: each.to_json() for name, each in kernels.items()}, indent=1),
    )
    config = run.config
    if not places and (config.device == "cpu" or config.backward):  # a CUDA graph may be faster without one
        run.say("optimized/ is not written: no kernel was found")
        return None
    task = verification_task(run, profile, traced_models, kernels=len(places))
    try:
        write_package(run.folder, traced_models, sources, places)
        run.say(
            "comparing the model with kernels to the original: "
            f"{plan_line(task, task.expected_s, float(config.verify_s))}"
        )
        found = verify_in_subprocess(run.folder, task, [each.name for each in places], float(config.verify_s))
        if not found.passes:
            shutil.rmtree(run.folder / PACKAGE)
            raise VerificationError("its forward as code has different outputs even without kernels")
        if found.left_out:
            left = {each: own for each, own in places.items() if each.name not in found.left_out}
            write_package(run.folder, traced_models, sources, left)
        set_way(
            run.folder,
            as_graph=found.as_graph,
            in_compiled=found.in_compiled,
            own_in_compiled=not found.compiled_pays,
            slower=found.slower_in,
        )
    except (CaptureError, VerificationError) as error:
        raise UsageError(f"model={profile.model}: kernels cannot be installed: {error}") from error
    kept = {each.name: kernels[each.name] for each in places if each.name not in found.left_out}
    run.say(*report_lines(found))
    if not kept and not found.is_faster:
        shutil.rmtree(run.folder / PACKAGE)
        run.say("optimized/ is not written: nothing makes the model faster")
        return None
    write_atomically(
        run.folder / PACKAGE / "README.md", readme(profile, extraction, kept, found, task.autocast)
    )
    return found
