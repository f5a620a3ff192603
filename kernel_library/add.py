"""A kernel for the library, from the command line:

    python -m kernel_library.add problem=level1/softmax kernel=my_kernel.py
    python -m kernel_library.add problem=file problem.path=my_model.py kernel=my_kernel.py licence=Apache-2.0

It is evaluated first, as `python -m evaluators.evaluate` does with `thorough=true`, and added when it is
correct. Exit status 0 when it is in the library, 1 when it is not correct, 2 when the call was wrong, 130
when it was interrupted. Every key is in `configs/library_add.yaml`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from evaluators.cli import (
    EXIT_USAGE,
    UsageError,
    build,
    choose_device,
    compose_config,
    log_to,
    one_line,
    one_of,
)
from evaluators.evaluate import evaluate, read_kernel
from evaluators.problem import DEVICES, LANGUAGES, Problem
from kernel_library.entry import Entry, Measurement
from kernel_library.library import FolderLibrary

THOROUGH = {"thorough": True, "repeat": 1, "json": False}
"""How `evaluate` is to evaluate."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    output, errors = Console(), Console(stderr=True)
    log_to(errors)
    if {"-h", "--help"} & set(arguments):
        output.print(__doc__, markup=False)
        return 0
    try:
        config = compose_config("library_add", arguments)
        one_of(config, "device", ("auto", *DEVICES))
        one_of(config, "language", ("auto", *LANGUAGES))
        config.device, _ = choose_device(str(config.device), clustered=bool(config.ray.address))
        return add(config, output, errors)
    except UsageError as error:
        print(f"kernel_library.add: {error}", file=sys.stderr)  # noqa: T201  (what a command says)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


def add(config: DictConfig, output: Console, errors: Console) -> int:
    """Evaluates the kernel of the config and adds it; returns the exit status. Raises UsageError."""
    library: FolderLibrary = build(config.library.kernels)
    problem: Problem = build(config.problem, device=config.device)
    kernel = read_kernel(Path(str(config.kernel)), str(config.language))
    how = OmegaConf.create(
        {"evaluator": config.evaluator, "pool": config.pool, "ray": config.ray, **THOROUGH}
    )
    (evaluation,) = asyncio.run(evaluate(how, problem, kernel, output, errors))
    if evaluation.timing is None:
        return 1
    entry = Entry(
        kernel=kernel,
        measurements=(Measurement(problem=problem, evaluation=evaluation),),
        tags=tuple(map(str, config.tags)),
        licence=str(config.licence),
    )
    try:
        new = library.add(entry)
    except OSError as error:
        raise UsageError(
            f"library.root={config.library.root} cannot be written: {one_line(error)}"
        ) from error
    output.out(f"{entry.id}: {'added' if new else 'it was there already'}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
