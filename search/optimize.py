"""A model in: where its time goes, and what can be won there.

    python -m search.optimize model=my_model.py
    python -m search.optimize model=transformers/GPT2LMHeadModel model.config.n_layer=4 dtype=bfloat16
    python -m search.optimize model=torchvision/resnet50 model.batch=32 backward=true

The model is a file or an importable module that defines `Model`, `get_inputs` and `get_init_inputs`, a
problem by its name (`level1/softmax`), or an architecture of transformers, torchvision or diffusers with
random weights. The folder of the run has `profile.json` and `profile.html`, and in `calls.txt` the calls of
its operators as a trace: what the suite operators/traced makes problems of. Exit status 0, 2 when the call
was wrong, 130 when it was interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from evaluators.atomic_write import write_atomically
from evaluators.cli import Call, build, command, log_to, one_of, output_folder, positive, say
from evaluators.config import group, hydra_settings, section
from evaluators.device_config import settle_device
from evaluators.option import option
from evaluators.suites.traces import write_trace
from search.cli import page_at_the_end, shown
from search.optimizations.model_config import ModelConfig, named, source_of
from search.optimizations.model_source import check_dtype
from search.optimizations.page import write_page
from search.optimizations.profile import Profile
from search.optimizations.profiling import calls_of, profile_of
from search.optimizations.table import head, legend, show_ranking

STAGES = ("profile",)


@dataclass
class OptimizeConfig:
    """The config of the command."""

    model: ModelConfig = section(ModelConfig)
    dtype: str | None = option(None, "of floating inputs and weights; null: the model's own")
    device: str = option("auto", "auto | cuda | cpu")
    backward: bool = option(False, "forward and backward, in training mode")
    warmup: int = option(3, "iterations before any is timed")
    iterations: int = option(10, "that are timed, and that are traced")
    seed: int = option(0, "of weights and inputs")
    top: int = option(20, "rows of the table")
    stop_after: str = option("profile", "the last stage to be run: profile")
    library: Any = group("folder")
    out: str = option("outputs", "where run folders are made")
    report: bool = option(True, "write profile.html")
    hydra: Any = hydra_settings({"run": {"dir": "${out}/optimize/${now:%Y-%m-%d_%H-%M-%S}"}})


def expand(overrides: Sequence[str]) -> Call:
    """`model=…` is short for a key of its own."""
    return Call(overrides=named(overrides))


@command("search.optimize", OptimizeConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console()
    log_to(Console(stderr=True))
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported: the profiler talks
    one_of(config, "stop_after", STAGES)
    positive(config, "iterations", "top")
    positive(config, "warmup", least=0)
    check_dtype(config.dtype)
    settle_device(config)
    folder = output_folder()
    profile = _profile(config, console)
    write_atomically(folder / "profile.json", json.dumps(profile.to_json(), indent=1))
    say(console, "", *head(profile), "")
    show_ranking(profile, config.top, console)
    say(console, *legend(profile, config.top), "", f"profile: {shown(folder / 'profile.json')}")
    calls = folder / "calls.txt"
    write_trace(calls, calls_of(profile))
    say(console, f"problems: TRACES={shown(calls)} python -m search.campaign suite=operators/traced")
    say(console, *page_at_the_end(write_page, folder, bool(config.report)))
    return 0


def _profile(config: DictConfig, console: Console) -> Profile:
    source = source_of(config.model)
    say(console, f"making the model on {config.device}")
    model = source.load(
        device=config.device, dtype=config.dtype, backward=bool(config.backward), seed=int(config.seed)
    )
    return profile_of(
        model,
        entries=build(config.library.kernels).entries() if config.library.use else [],
        warmup=int(config.warmup),
        iterations=int(config.iterations),
        say=lambda line: say(console, line),
    )


if __name__ == "__main__":
    sys.exit(main())
