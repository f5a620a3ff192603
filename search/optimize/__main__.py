"""A model in, a faster model out:

    python -m search.optimize model=my_model.py budget.evaluations=400
    python -m search.optimize model=transformers/GPT2LMHeadModel dtype=bfloat16 proposer=llm budget.dollars=20
    python -m search.optimize model=torchvision/resnet50 model.batch=32 backward=true stop_after=profile
    python -m search.optimize model=my_model.py 'model.shapes=[{sizes:{rows:8},weight:3},{sizes:{rows:64}}]'
    python -m search.optimize resume=outputs/optimize/2026-01-31_12-00-00

The model is a file or an importable module that defines `Model`, `get_inputs` and `get_init_inputs`, a
problem by its name (`level1/softmax`), or an architecture of transformers, torchvision or diffusers with
random weights; `model.shapes` gives it several sets of inputs. `profile` says where its time goes; `extract`
makes problems of what can be won; `search` asks the library for kernels, and then searches with what `budget`
allows; `install` puts the kernels into the model, holds that against the model, and times both. The folder of
the run has the profile (`profile.html`), the problems, the searches, and `optimized/`, which loads without
this project. Exit status 0, 2 when the call was wrong, 130 when it was interrupted; `resume=` goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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
from evaluators.app.config import hydra_settings, section
from evaluators.app.device_config import settle_device
from evaluators.base.atomic_write import write_atomically
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.suites.traces import write_trace
from search.app.overrides import without
from search.app.resuming import restore_overrides
from search.app.run_folders import page_at_the_end
from search.campaign.__main__ import OWN as CAMPAIGN
from search.campaign.config import SearchesConfig, check_searches
from search.optimize.extraction.whole import whole_of
from search.optimize.model_config import ModelConfig, named, source_of
from search.optimize.models.source import LoadedModel, check_dtype
from search.optimize.profile_page import read_profile, write_page
from search.optimize.profiling.profile import calls_of, profile_of
from search.optimize.profiling.record import Profile
from search.optimize.profiling.table import head, legend, show_ranking
from search.optimize.stages import OptimizeRun, extracted, installed, kernels_for
from search.optimize.verification.apart import COMPILED

STAGES = ("profile", "extract", "search", "install")
OWN = (
    *CAMPAIGN,
    "model",
    "dtype",
    "backward",
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
"""Keys that are not those of the searches."""


@dataclass
class OptimizeConfig(SearchesConfig):
    """The config of the command."""

    model: ModelConfig = section(ModelConfig)
    dtype: str | None = option(None, "of floating inputs and weights; null: the model's own")
    device: str = option("auto", "auto | cuda | cpu")
    backward: bool = option(False, "forward and backward, in training mode")
    warmup: int = option(3, "iterations before any is timed")
    iterations: int = option(10, "that are timed, and that are traced")
    seed: int = option(0, "of weights, inputs and every random choice of the searches")
    top: int = option(20, "rows of the table")
    targets: int = option(8, "problems that are made of the model, at most")
    least_gain: float = option(0.005, "of the model, that a problem must be able to give")
    compared: int = option(5, "sets of weights and inputs on which the models are compared")
    turns: int = option(15, "readings of each way of running the model")
    compile: str = option("all", "ways of torch.compile that are timed: none | default | all (max-autotune)")
    verify_s: float = option(3600.0, "limit of the comparison, in seconds")
    stop_after: str = option("install", "the last stage to be run: profile | extract | search | install")
    report: bool = option(True, "write profile.html")
    hydra: Any = hydra_settings({"run": {"dir": "${out}/optimize/${now:%Y-%m-%d_%H-%M-%S}"}})


def expand(overrides: Sequence[str]) -> CommandCall:
    """`model=…` is short for a key of its own; a run that is resumed has the overrides that it began with.
    Raises UsageError."""
    return restore_overrides(named(overrides), "optimization")


@command("search.optimize", OptimizeConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported: the profiler talks
    one_of(config, "stop_after", STAGES)
    one_of(config, "compile", [*COMPILED])
    check_searches(config)
    positive(config, "iterations", "top", "targets", "compared")
    positive(config, "turns", least=6)
    positive(config, "warmup", least=0)
    check_dtype(config.dtype)
    settle_device(config)
    config.problem.libraries = config.problem.libraries or "any"  # what counts here is the model's time
    if not any(each.startswith("evaluator.compile_mode=") for each in given_overrides()):
        config.evaluator.compile_mode = ""  # kernels are held against torch.compile in the model, not alone
    folder = output_folder()
    profile = read_profile(folder) if (folder / "profile.json").exists() else None
    if profile is not None and not profile.shapes and config.model.shapes is None:
        config.model.shapes = []  # of an earlier version, when there was one
    source = source_of(config.model)
    say(console, f"making the model on {config.device}")
    models = source.load(
        device=config.device, dtype=config.dtype, backward=bool(config.backward), seed=int(config.seed)
    )
    if profile is None:
        profile = _profile(config, models, console)
        _show(config, profile, folder, console)
    elif profile.weights != {each.shape: each.weight for each in models}:
        raise UsageError(f"model.shapes is not what {shown(folder)} began with; begin a new run")
    if config.stop_after == "profile":
        return 0
    if config.backward:
        say(console, "backward=true: kernels are put into a forward without gradients; this ends here")
        return 0
    making = OptimizeRun(
        folder=folder, config=config, shared=without(given_overrides(), *OWN), console=console
    )
    return asyncio.run(_make(making, profile, models))


async def _make(making: OptimizeRun, profile: Profile, models: Sequence[LoadedModel]) -> int:
    """The stages after the profile."""
    wholes = [whole_of(each) for each in models]
    extraction = extracted(making, profile, wholes)
    if making.config.stop_after == "extract":
        return 0
    kernels = await kernels_for(making, profile, wholes, extraction) if extraction.problems else {}
    if making.config.stop_after == "install":
        found = installed(making, profile, wholes, extraction, kernels)
        if found is not None:
            making.say(f"optimized: {shown(making.folder / 'optimized')}")
            making.say(*page_at_the_end(write_page, making.folder, bool(making.config.report)))
    return 0


def _show(config: DictConfig, profile: Profile, folder: Path, console: Console) -> None:
    write_atomically(folder / "profile.json", json.dumps(profile.to_json(), indent=1))
    say(console, "", *head(profile), "")
    show_ranking(profile, config.top, console)
    say(console, *legend(profile, config.top), "", f"profile: {shown(folder / 'profile.json')}")
    calls = folder / "calls.txt"
    write_trace(calls, calls_of(profile))
    say(console, f"problems: TRACES={shown(calls)} python -m search.campaign suite=operators/traced")
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
