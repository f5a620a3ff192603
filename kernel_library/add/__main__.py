"""A kernel for the library, from the command line:

    python -m kernel_library.add problem=level1/softmax kernel=my_kernel.py
    python -m kernel_library.add problem=my_model.py kernel=my_kernel.py licence=Apache-2.0

It is evaluated first, as `python -m evaluators.evaluate` does with `thorough=true`, and added when it is
correct and surely faster than eager PyTorch: the interval of its speedup clears 1.00 (another bound:
`library.min_speedup=`; 0 adds whatever is correct). Exit status 0 when it is in the library, 1 when it is not
correct or not fast enough, 2 when the call was wrong, 130 when it was interrupted.
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
from evaluators.app.config import RayConfig, group, section
from evaluators.app.device_config import settle_device
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import evaluate, read_kernel
from evaluators.records.problem import LANGUAGES, Problem
from kernel_library.app.entries import LibraryConfig
from kernel_library.catalogue.entry import Entry, Measurement
from kernel_library.catalogue.library import FolderLibrary, functions_of


@dataclass
class LibraryAddConfig(LibraryConfig):
    """The config of the command."""

    problem: Any = group(None)
    evaluator: Any = group("default")
    pool: Any = group("local")
    kernel: str = option(MISSING, "a file that defines ModelNew")
    language: str = option("auto", "auto | cpp | cuda | triton; auto: by what the file imports")
    function: str = option("", "its plain function, where that has its family's interface; empty: found")
    licence: str = option("", "of the kernel, e.g. Apache-2.0")
    tags: list[str] = option([], "words to find it by")
    device: str = option("auto", "auto | cuda | cpu")
    ray: RayConfig = section(RayConfig)


@command("kernel_library.add", LibraryAddConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    one_of(config, "language", ("auto", *LANGUAGES))
    settle_device(config)
    return add(config, output, errors)


def add(config: DictConfig, output: Console, errors: Console) -> int:
    """Evaluates the kernel of the config and adds it; returns the exit status. Raises UsageError."""
    library: FolderLibrary = build(config.library.kernels)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    if config.function and config.function not in functions_of(kernel.source):
        raise UsageError(f"function={config.function} is not defined in kernel={config.kernel}")
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
        kernel=kernel,
        measurements=(Measurement(problem=problem, evaluation=evaluation),),
        tags=tuple(map(str, config.tags)),
        function=str(config.function),
        licence=str(config.licence),
    )
    if (why := library.refusal(entry)) is not None:
        say(output, f"not added: {why}")
        return 1
    try:
        new = library.add(entry)
    except OSError as error:
        raise UsageError(
            f"library.root={config.library.root} cannot be written: {first_line(error)}"
        ) from error
    say(output, f"{entry.id}: {'added' if new else 'it was there already'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
