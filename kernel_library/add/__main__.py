"""Evaluates a kernel and adds it to the library:

    ideatree add problem=level1/softmax kernel=my_kernel.py
    ideatree add problem=my_model.py kernel=my_kernel.py licence=Apache-2.0

The evaluation is that of `ideatree evaluate thorough=true`. The kernel is added if it is correct and
significantly faster than eager PyTorch: the whole 95 % interval of its speedup is above 1.00. Set another
bound with `library.min_speedup=`; 0 adds every correct kernel. The exit status is 0 if the kernel is in the
library, 1 if it is not correct or not fast enough, 2 for a wrong call, 130 after an interrupt.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import build, command, log_to, one_of, say
from evaluators.app.config import DEVICE_HELP, RayConfig, group, section
from evaluators.app.device_config import settle_device
from evaluators.app.kernel_file import read_kernel
from evaluators.base.languages import LANGUAGES
from evaluators.base.nearest import near
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import evaluate
from evaluators.records.configurations import judged_kernel
from evaluators.records.problem import DTYPES, Problem
from kernel_library.app.entries import LibraryConfig, unwritable
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.library import FolderLibrary, functions_of
from kernel_library.overrides.shapes import fits


@dataclass
class LibraryAddConfig(LibraryConfig):
    """The config of the command."""

    problem: Any = group(None)
    evaluator: Any = group("default")
    pool: Any = group("local")
    kernel: str = option(MISSING, "the kernel's file, which defines ModelNew")
    language: str = option("auto", "language such as cuda, triton or cute; auto: by the file's imports")
    op: str = option("", "operation that it computes, e.g. residual_rmsnorm; empty: detected")
    function: str = option("", "function that `best` returns; empty: detected")
    licence: str = option("", "the kernel's licence, e.g. Apache-2.0")
    tags: list[str] = option([], "keywords of the entry")
    shapes: list[str] = option(
        [], "shapes for which it is correct, a pattern for each input, e.g. [...x1..65536]; []: the problem's"
    )
    dtypes: list[str] = option([], "dtypes for which it is correct; []: the problem's")
    device: str = option("auto", DEVICE_HELP)
    ray: RayConfig = section(RayConfig)


@command("kernel_library.add", LibraryAddConfig, __doc__)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    one_of(config, "language", ("auto", *LANGUAGES))
    settle_device(config)
    return add(config, output, errors)


def add(config: DictConfig, output: Console, errors: Console) -> int:
    """Evaluates the configured kernel and adds it; returns the exit status. Raises UsageError."""
    library: FolderLibrary = build(config.library.kernels)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    shapes = tuple(map(str, config.shapes))
    try:
        for each in shapes:
            fits(each, ())
    except ValueError as error:
        raise UsageError(f"shapes: {error}") from error
    for dtype in config.dtypes:
        if dtype not in DTYPES:
            raise UsageError(f"dtypes has {dtype}; choose from {', '.join(DTYPES)}{near(dtype, DTYPES)}")
    functions = functions_of(kernel.source)
    if config.function and config.function not in functions:
        unknown = f"function={config.function} is not defined in kernel={config.kernel}"
        raise UsageError(unknown + near(config.function, functions))
    (evaluation,) = asyncio.run(
        evaluate(
            problem,
            kernel,
            settings=build(config.evaluator),
            host=build(config.pool),
            thorough=True,
            output=output,
            errors=errors,
        )
    )
    if evaluation.timing is None:
        return 1
    entry = Entry(
        kernel=judged_kernel(kernel, evaluation),
        measurements=(Measurement(problem=problem, evaluation=evaluation),),
        tags=tuple(map(str, config.tags)),
        op=str(config.op),
        shapes=shapes,
        dtypes=tuple(config.dtypes),
        function=str(config.function),
        licence=str(config.licence),
    )
    if (why := library.refusal(entry)) is not None:
        say(output, f"not added: {why}")
        return 1
    try:
        new = library.add(entry)
    except OSError as error:
        raise UsageError(unwritable(config, error)) from error
    say(output, f"{entry.id}: {'added' if new else 'already in the library'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
