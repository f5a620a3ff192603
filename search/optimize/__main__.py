"""Makes a model faster:

    ideatree optimize model=my_model.py budget.evaluations=400
    ideatree optimize model=transformers/GPT2LMHeadModel dtype=bfloat16 proposer=llm budget.dollars=20
    ideatree optimize model=transformers/Qwen3ForCausalLM model.labels=true backward=true
    ideatree optimize model=my_model.py 'model.shapes=[{sizes:{rows:8},weight:3},{sizes:{rows:64}}]'
    ideatree optimize model=my_model.py 'model.calls=[{},{scale:2.0}]'
    ideatree optimize resume=outputs/optimize/2026-01-31_12-00-00

The model is a file or an importable module that defines `Model`, `get_inputs` and `get_init_inputs`, a
problem by its name (`level1/softmax`), or an architecture of transformers, torchvision or diffusers with
random weights. `model.shapes` gives it several sets of inputs, `model.calls` several ways of calling it. With
`backward=true` a step of training becomes faster. The command has four stages:

- `profile` finds where the model's time goes.
- `extract` turns the parts that could gain most into problems.
- `search` tries the library's kernels, then searches new ones within `budget`.
- `install` puts the kernels into the model, compares it to the original, and times both.

The run folder has the profile (`profile.html`), the problems, the searches, and `optimized/`, which loads
without Ideatree. Exit status 0: the command ended normally; 2: the call was wrong or the model is refused;
130: interrupted. `resume=` continues an interrupted run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import (
    CommandCall,
    build,
    command,
    given_overrides,
    log_to,
    one_of,
    output_folder,
    positive,
    say,
    shown,
)
from evaluators.app.config import DEVICE_HELP, hydra_settings, section
from evaluators.app.device_config import settle_device
from evaluators.base.atomic_write import write_atomically
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.suites.traced.files import write_trace
from search.app.overrides import without
from search.app.resuming import restore_overrides
from search.app.run_folders import NEW_FOLDER, page_at_the_end
from search.campaign.__main__ import OWN as CAMPAIGN
from search.campaign.config import SearchesConfig, check_searches
from search.campaign.running import LIMITS
from search.optimize.extraction.calls import merge_calls
from search.optimize.extraction.traced_model import trace_model
from search.optimize.installation.rehearsal import rehearse
from search.optimize.model_config import ModelConfig, expand_name, source_of
from search.optimize.models.source import LoadedModel, check_dtype, resumed_at
from search.optimize.profile_page import read_profile, write_page
from search.optimize.profiling.profile import calls_of, profile_of
from search.optimize.profiling.record import Profile
from search.optimize.profiling.table import head, legend, show_ranking
from search.optimize.stages import OptimizeRun, budget_lines, extract_problems, find_kernels, install_kernels
from search.optimize.verification.launcher import COMPILE_WAYS, OPTIMIZERS

STAGES = ("profile", "extract", "search", "install")
OWN = (
    *CAMPAIGN,
    "model",
    "dtype",
    "backward",
    "training",
    "warmup",
    "iterations",
    "top",
    "targets",
    "least_gain",
    "compared",
    "turns",
    "compile",
    "verify_s",
    "stop_after",
    "report",
)
"""The keys that are not passed on to the searches."""
PLAYBOOK = "search.proposers.playbook.playbook.Playbook"


@dataclass
class TrainingConfig:
    """How a model is trained, with backward=true."""

    steps: int = option(50, "steps for which the losses with and without kernels are compared")
    optimizer: str = option(OPTIMIZERS[0], f"optimizer: {' | '.join(OPTIMIZERS)}")
    learning_rate: float = option(3e-4, "learning rate of the optimizer")
    autocast: str | None = option(
        None, "dtype of torch.autocast in the model's calls: bfloat16; null: no autocast"
    )


@dataclass
class OptimizeConfig(SearchesConfig):
    """The config of the command."""

    model: ModelConfig = section(ModelConfig)
    dtype: str | None = option(None, "dtype of floating weights and inputs; null: the model's default")
    device: str = option("auto", DEVICE_HELP)
    backward: bool = option(
        False, "optimize a step of training: kernels with a backward pass, in training mode"
    )
    training: TrainingConfig = section(TrainingConfig)
    warmup: int = option(3, "untimed calls of the model before the profile")
    iterations: int = option(
        10, "calls of the model that the profile traces; three times that number are timed before, untraced"
    )
    seed: int = option(0, "seed of the weights, the inputs and every random choice of the searches")
    top: int = option(20, "rows of the printed table")
    targets: int = option(8, "maximum number of problems to search kernels for")
    least_gain: float = option(
        0.005, "smallest possible end-to-end gain for which a part of the model is searched; 0.005: 0.5 %"
    )
    compared: int = option(5, "sets of weights and inputs on which the two models are compared")
    turns: int = option(15, "timing readings for each way of running the model")
    compile: str = option("all", "torch.compile modes to time: none | default | all (adds max-autotune)")
    verify_s: float = option(3600.0, "time limit of the whole verification, in seconds")
    stop_after: str = option("install", "last stage to run: profile | extract | search | install")
    report: bool = option(True, "write profile.html")
    hydra: Any = hydra_settings({**NEW_FOLDER, "run": {"dir": "${out}/optimize/${now:%Y-%m-%d_%H-%M-%S}"}})


def expand(overrides: Sequence[str]) -> CommandCall:
    """Expands `model=…`; a resumed run gets the overrides it started with. Raises UsageError."""
    return restore_overrides(expand_name(overrides), "optimization")


@command("search.optimize", OptimizeConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler; read when torch is imported
    one_of(config, "stop_after", STAGES)
    one_of(config, "compile", [*COMPILE_WAYS])
    check_searches(config)
    positive(config, "iterations", "top", "targets", "compared")
    positive(config, "turns", least=6)
    positive(config, "warmup", least=0)
    check_dtype(config.dtype)
    _check_training(config)
    settle_device(config)
    config.problem.libraries = config.problem.libraries or "any"  # only the model's time counts here
    config.problem.backward = bool(config.backward) or config.problem.backward
    if not any(each.startswith("evaluator.compile_mode=") for each in given_overrides()):
        config.evaluator.compile_mode = ""  # kernels are compared with torch.compile in the model, not alone
    folder = output_folder()
    profile = read_profile(folder) if (folder / "profile.json").exists() else None
    if profile is not None and not profile.shapes and config.model.shapes is None:
        config.model.shapes = []  # a profile of an earlier version, which knew one shape
    source = source_of(config.model)
    say(console, f"loading the model on {config.device}")
    models = source.load(
        device=config.device, dtype=config.dtype, backward=bool(config.backward), seed=int(config.seed)
    )
    models = [replace(each, autocast=config.training.autocast or "") for each in models]
    if not config.backward:
        models = merge_calls(models, lambda line: say(console, line))
    if profile is None:
        profile = _profile(config, models, console)
        _show(config, profile, folder, console)
    else:
        if profile.backward != bool(config.backward) or (profile.backward and not profile.both_passes):
            raise UsageError(
                f"{shown(folder)} has no profile for backward={config.backward}; start a new run"
            )
        models = resumed_at(models, profile.weights)
        if profile.weights != {each.shape: each.weight for each in models}:
            raise UsageError(f"model.shapes differs from that of {shown(folder)}; start a new run")
    if config.stop_after == "profile":
        return 0
    run = OptimizeRun(folder=folder, config=config, shared=without(given_overrides(), *OWN), console=console)
    return asyncio.run(_optimize(run, profile, models))


def _check_training(config: DictConfig) -> None:
    """Raises UsageError for invalid keys of a training."""
    one_of(config, "training.optimizer", OPTIMIZERS)
    positive(config, "training.steps")
    if not config.training.learning_rate > 0:
        raise UsageError(f"training.learning_rate is {config.training.learning_rate}; it must be above 0")
    if config.training.autocast not in (None, "bfloat16"):
        raise UsageError(f"training.autocast is {config.training.autocast}; it must be bfloat16 or null")
    if config.training.autocast and not config.backward:
        raise UsageError("training.autocast needs backward=true")
    searched = any(config.budget[unit] is not None for unit in LIMITS)
    if config.backward and searched and config.proposer.get("_target_") == PLAYBOOK:
        raise UsageError(
            "backward=true: the playbook writes no backward passes; set proposer=llm or mailbox, or leave "
            "out budget.* to try the library's kernels alone"
        )


async def _optimize(run: OptimizeRun, profile: Profile, models: Sequence[LoadedModel]) -> int:
    """Runs the stages after the profile."""
    traced_models = [trace_model(each) for each in models]
    rehearse(traced_models)
    extraction = extract_problems(run, profile, traced_models)
    if run.config.stop_after == "extract":
        return 0
    if extraction.problems:
        run.say(*budget_lines(run, profile, traced_models, extraction))
    kernels = await find_kernels(run, profile, traced_models, extraction) if extraction.problems else {}
    if run.config.stop_after == "install":
        found = install_kernels(run, profile, traced_models, extraction, kernels)
        if found is not None:
            run.say(f"optimized: {shown(run.folder / 'optimized')}")
            run.say(*page_at_the_end(write_page, run.folder, bool(run.config.report)))
    return 0


def _show(config: DictConfig, profile: Profile, folder: Path, console: Console) -> None:
    write_atomically(folder / "profile.json", json.dumps(profile.to_json(), indent=1))
    say(console, "", *head(profile), "")
    show_ranking(profile, config.top, console)
    say(console, *legend(profile, config.top), "", f"profile: {shown(folder / 'profile.json')}")
    calls = folder / "calls.txt"
    write_trace(calls, calls_of(profile))
    say(console, f"to search its operators: TRACES={shown(calls)} ideatree campaign suite=operators/traced")
    say(console, *page_at_the_end(write_page, folder, bool(config.report)))


def _profile(config: DictConfig, models: Sequence[LoadedModel], console: Console) -> Profile:
    return profile_of(
        models,
        entries=build(config.library.kernels).entries() if config.library.use else [],
        warmup=int(config.warmup),
        iterations=int(config.iterations),
        say=lambda line: say(console, line),
    )


if __name__ == "__main__":
    sys.exit(main())
