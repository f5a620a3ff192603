"""The stages after the profile: problems out of the model, kernels for them, the model with the kernels."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from search.optimize.extraction.record import EXTRACTION, Extracted, Extraction
from search.optimize.extraction.whole import Whole
from search.optimize.installation.package import PACKAGE, set_way, write_package
from search.optimize.installation.placement import assigned
from search.optimize.outcome import KERNELS
from search.optimize.profiling.record import Profile
from search.optimize.readme import extracted_lines, readme, won_lines
from search.optimize.searching import (
    AcceptedKernel,
    LibraryAnswers,
    ModelRules,
    SavedTime,
    best_of,
    of_search,
)
from search.optimize.verification.apart import (
    WAYS,
    VerificationError,
    VerificationTask,
    verify_apart,
    ways_of,
)
from search.optimize.verification.record import Verification, in_lines
from search.run.searches import PlannedSearch

SEARCHES = "searches"
"""The folder of the searches' run folders."""


@dataclass(frozen=True, kw_only=True)
class OptimizeRun:
    """The folder of the run, its config, and the overrides that its searches share."""

    folder: Path
    config: DictConfig
    shared: Sequence[str]
    console: Console

    def say(self, *lines: str) -> None:
        """On the console."""
        say(self.console, *lines)


def extracted(making: OptimizeRun, profile: Profile, wholes: Sequence[Whole]) -> Extraction:
    """The problems of the run, which are made unless they are there."""
    file = making.folder / EXTRACTION
    if file.exists():
        return Extraction.read(file)
    config = making.config
    entries = build(config.library.kernels).entries() if config.library.use else []
    entries = [each for each in entries if is_for(each, str(config.device))]
    views = set().union(*(each.views for each in wholes))
    found = extract(
        profile,
        wholes,
        making.folder,
        most=int(config.targets),
        gain=float(config.least_gain),
        known=lambda fragment: any(adapted(entry, fragment, views) for entry in entries),
    )
    found.write(file)
    making.say(*extracted_lines(found, profile))
    return found


def _give_memory_back() -> None:
    """To the device, of what running the model has taken: of a LLaMA 61 GiB, without which its kernels could
    not be judged."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


async def kernels_for(
    making: OptimizeRun, profile: Profile, wholes: Sequence[Whole], extraction: Extraction
) -> dict[str, AcceptedKernel]:
    """Asks the library, then searches with the campaign's budget. Raises UsageError."""
    config = making.config
    found: dict[str, list[AcceptedKernel | None]] = {each.name: [] for each in extraction.problems}
    searched = any(config.budget[unit] is not None for unit in LIMITS)
    _give_memory_back()
    host = host_of(config)
    with Pool(host) as pool:
        if config.library.use:
            library = build(config.library.kernels)
            answers = LibraryAnswers(making.folder, library, wholes, making.say)
            turns = asyncio.Semaphore(host.devices + 1)  # kernels are built while others are measured

            async def ask(each: Extracted) -> None:
                async with turns:
                    found[each.name].append(await answers.ask(pool, each, _problem(making, each)))

            await asyncio.gather(*map(ask, extraction.problems))
        if searched:
            with CampaignView(making.console) as view:
                campaign = _campaign(making, profile, extraction, host.devices)
                run = CampaignRun(campaign, pool, config.device, view.show)
                await run.run()
    if searched:
        for each in extraction.problems:
            found[each.name].append(of_search(making.folder / SEARCHES / each.name))
        ended: dict[str, list[str]] = {}
        for search in run.searches:
            ended.setdefault(search.unfit or search.stopped, []).append(search.problem)
        making.say(*(f"{', '.join(names)}: {why}" for why, names in ended.items() if why))
    else:
        making.say("no budget.evaluations, seconds, calls, tokens or dollars: the library alone was asked")
    return best_of(found)


def _problem(making: OptimizeRun, each: Extracted) -> Problem:
    return open_problem(
        str(making.folder / each.file), device=making.config.device, rules=making.config.problem
    )


def _campaign(making: OptimizeRun, profile: Profile, extraction: Extraction, devices: int) -> Campaign:
    config = making.config
    rules = [f"rounds={config.rounds}", f"problem.libraries={config.problem.libraries}"]
    shared = [*given_config_folders(), *rules, *making.shared]
    planned = [
        PlannedSearch(
            problem=each.name,
            arm="search",
            weight=each.time_ms,
            overrides=(f"problem={making.folder / each.file}", *shared),
            folder=making.folder / SEARCHES / each.name,
            ceiling=each.ceiling,
        )
        for each in extraction.problems
        if each.searched
    ]
    return Campaign(
        folder=making.folder,
        planned=planned,
        scheduler=SavedTime(),
        rules=ModelRules(total_ms=profile.total_ms, model_gain=float(config.least_gain), **config.stop),
        slice=config.slice,
        at_once=searches_at_once(config, devices),
        limits={unit: config.budget[unit] for unit in LIMITS},
    )


def installed(
    making: OptimizeRun,
    profile: Profile,
    wholes: Sequence[Whole],
    extraction: Extraction,
    kernels: Mapping[str, AcceptedKernel],
) -> Verification | None:
    """Writes `optimized/` with the kernels with which the model is the same, and says what they are worth. A
    GPU may run the forward as a CUDA graph, which can be worth it without any kernel; None where nothing is.
    Raises UsageError."""
    making.say(*won_lines(kernels, extraction.problems))
    sources = {name: each.kernel for name, each in kernels.items()}
    times = {each.name: each.time_ms for each in extraction.problems}
    saved_ms = {name: times[name] * (1 - 1 / each.low) for name, each in kernels.items()}
    places = assigned(saved_ms, extraction.problems)
    write_atomically(
        making.folder / KERNELS,
        json.dumps({name: each.to_json() for name, each in kernels.items()}, indent=1),
    )
    config = making.config
    if not places and config.device == "cpu":
        making.say("nothing to put into the model")
        return None
    model = OmegaConf.to_container(config.model, resolve=True)
    assert isinstance(model, dict)
    task = VerificationTask(
        model={str(key): value for key, value in model.items()},
        device=str(config.device),
        dtype=config.dtype,
        seed=int(config.seed),
        seeds=int(config.compared),
        turns=int(config.turns),
        ways=ways_of(str(config.compile), str(config.device)),
    )
    try:
        write_package(making.folder, wholes, sources, places)
        making.say("holding the model with the kernels against the model")
        found = verify_apart(making.folder, task, [each.name for each in places], float(config.verify_s))
        if not found.passes:
            shutil.rmtree(making.folder / PACKAGE)
            raise VerificationError("its forward as code gives other answers, without any kernel")
        if found.left_out:
            left = {each: own for each, own in places.items() if each.name not in found.left_out}
            write_package(making.folder, wholes, sources, left)
        set_way(
            making.folder,
            as_graph=found.as_graph,
            in_compiled=found.in_compiled,
            own_in_compiled=not found.compiled_pays,
            slower=found.slower_in,
        )
    except (CaptureError, VerificationError) as error:
        raise UsageError(f"model={profile.model}: no kernel can be put into it: {error}") from error
    kept = {each.name: kernels[each.name] for each in places if each.name not in found.left_out}
    making.say(*in_lines(found, WAYS))
    if not kept and not found.is_faster:
        shutil.rmtree(making.folder / PACKAGE)
        making.say("nothing to put into the model")
        return None
    write_atomically(making.folder / PACKAGE / "README.md", readme(profile, extraction, kept, found))
    return found
