"""Kernels to be installed elsewhere, from the command line:

    python -m kernel_library.export format=package to=my_kernels
    python -m kernel_library.export format=package to=my_kernels kernels=generated_kernels package=mine
    python -m kernel_library.export format=directory to=kernels op=softmax
    python -m kernel_library.export format=hub to=my_kernels package=my_kernels version=1
    python -m kernel_library.export format=hub to=my_model package=my_model kernels=RUN/optimized
    python -m kernel_library.export format=directory to=kernels kernels=RUN/optimized

`package`: a Python package that puts the kernels in the place of PyTorch's operators as soon as it is
installed (`pip install ./my_kernels`). It needs torch, and Triton where a kernel does. `directory`:
BackendBench's layout, one kernel an operator. `hub`: a project that Hugging Face's `kernel-builder` takes,
with the library's kernels in Triton, one a function, and in its `build/` what the package `kernels` loads.
The kernels are the library's that may be taken (see `docs/override.md`), of `package` and `directory` those
that are for an operator, or those of a folder in BackendBench's layout. Exit status 0, 1 when there is no
kernel to write, 2 when the call was wrong. With `kernels=` the formats take a model that `search.optimize`
made faster, too: `hub` the whole of it, the others those of its kernels that are the library's for an
operator.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING, DictConfig
from rich.console import Console

from evaluators.app.command import CommandCall, command, log_to
from evaluators.base.cause import first_line
from evaluators.base.option import option
from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Kernel
from kernel_library.app.entries import FilterConfig, check_filters, chosen, expand_filters, open_library
from kernel_library.catalogue.best import candidates
from kernel_library.overrides.choice import Candidate

FORMATS = ("package", "directory", "hub")
FROM_LIBRARY = "library "
"""Before an entry's id where a model's `kernels.json` says that a kernel comes from there."""


@dataclass
class LibraryExportConfig(FilterConfig):
    """The config of the command."""

    layout: str = option(MISSING, "what format= says: package | directory | hub")
    to: str = option(MISSING, "the folder that is written, which must not be there yet")
    kernels: str | None = option(
        None, "a folder in BackendBench's layout, or optimized/ of a model; empty: the library's"
    )
    package: str = option("ideatree_kernels", "the package's name, for import")
    version: str = option("0.1.0", "its version")
    licence: str = option("Apache-2.0", "with hub: of a model, and of kernels whose card names none (SPDX)")
    faster: bool = option(True, "only kernels that were measured to be faster than eager PyTorch")
    lower_precision: bool = option(False, "also kernels that round factors to a lower precision")


def expand(overrides: Sequence[str]) -> CommandCall:
    """`format` is a word here, and for Hydra a group of configs for training data. Raises UsageError where
    it is left out."""
    if not any(each.startswith(("format=", "-", "layout=")) for each in overrides):
        raise UsageError(f"say format={' or format='.join(FORMATS)}")
    return expand_filters(
        [f"layout={each.partition('=')[2]}" if each.startswith("format=") else each for each in overrides]
    )


@command("kernel_library.export", LibraryExportConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    console = Console(highlight=False, soft_wrap=True)
    log_to(Console(stderr=True))
    check_filters(config)
    if config.layout not in FORMATS:
        raise UsageError(f"format={config.layout}; it must be one of {', '.join(FORMATS)}")
    if not str(config.package).isidentifier():
        raise UsageError(f"package={config.package} is no name for a package: letters, digits and _")
    if Path(config.to).exists():
        raise UsageError(f"to={config.to} is there already; give another folder, or remove it")
    try:
        written = _given(config) if config.kernels else _of_library(config, None)
    except OSError as error:
        raise UsageError(f"cannot be written or read: {first_line(error)}") from error
    for line in written:
        console.print(line, markup=False)
    if not written:
        console.print("nothing to write: no kernel for an operator passes the filters; see faster=false")
        return 1
    if config.layout == "package":
        console.print(f"pip install {shlex.quote(str(Path(config.to).resolve()))}", markup=False)
    return 0


def _given(config: DictConfig) -> list[str]:
    """Writes a folder's kernels; returns what there is to say. Raises UsageError and OSError."""
    from kernel_library.export.package import write_package
    from kernel_library.overrides.kernels import files_of

    if config.layout == "hub":
        return _model(config)
    if (Path(config.kernels) / "manifest.json").exists():
        return _operators_of_model(config)
    if config.layout == "directory":
        raise UsageError(f"kernels={config.kernels} is in that layout; leave it out for the library's")
    files = dict(files_of(Path(config.kernels)))
    if files:
        write_package(Path(config.to), str(config.package), str(config.version), operators=files)
    return [f"{name}: {path.stem}" for name, path in files.items()]


def _model(config: DictConfig) -> list[str]:
    """Writes a model with kernels for the hub; returns what there is to say. Raises UsageError and
    OSError."""
    from kernel_library.export.hub import BACKENDS, write_hub_model

    package = Path(config.kernels)
    backend, kernels = _manifest(package)
    if backend not in BACKENDS:
        raise UsageError(f"kernels={package} is for {backend}; the hub is for {' and '.join(BACKENDS)}")
    name, version = _hub_name(str(config.package)), _major(str(config.version))
    write_hub_model(Path(config.to), name, version, package, backend, str(config.licence))
    return [f"load(model): {', '.join(kernels) or 'no kernel'}"]


def _manifest(package: Path) -> tuple[str, list[str]]:
    """The device that a model with kernels is for, and the names of these. Raises UsageError."""
    try:
        manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["device"]), [str(each["name"]) for each in manifest["kernels"]]
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError) as error:
        is_what = (
            "format=hub takes the folder optimized/ of a run of search.optimize, or the library's kernels"
        )
        raise UsageError(f"kernels={package}: {is_what}: {first_line(error)}") from error


def _operators_of_model(config: DictConfig) -> list[str]:
    """Writes those of a model's kernels that are the library's for an operator; returns what there is to say.
    Raises UsageError and OSError."""
    package = Path(config.kernels)
    _, names = _manifest(package)
    try:
        won = json.loads((package.parent / "kernels.json").read_text(encoding="utf-8"))
        origins = {name: str(won[name]["origin"]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{package.parent}/kernels.json does not name its kernels: {error}") from error
    entries = {
        name: each.removeprefix(FROM_LIBRARY)
        for name, each in origins.items()
        if each.startswith(FROM_LIBRARY)
    }
    written = _of_library(config, set(entries.values()))
    said = {word for line in written for word in line.split()}
    left = [
        f"{name}: left out: {_why_left_out(entries.get(name))}"
        for name in names
        if entries.get(name) not in said
    ]
    return written and [*written, *left]


def _why_left_out(entry: str | None) -> str:
    if entry is None:
        return "it was searched for the model's own operators and shapes"
    why = f"{entry} is for no operator, behind another kernel for it, or passes no filter"
    return f"{why}; see faster=false, lower_precision=true"


def _of_library(config: DictConfig, only: Collection[str] | None) -> list[str]:
    """Writes the library's kernels, `only` those with these ids; returns what there is to say. Raises
    UsageError and OSError."""
    from kernel_library.export.directory import write_directory
    from kernel_library.export.hub import write_hub_project
    from kernel_library.export.package import write_package
    from kernel_library.overrides.interfaces import INTERFACES

    _, entries = open_library(config)
    some = [entry for entry, _ in chosen(config, entries) if only is None or entry.id in only]
    ops = {each.op for each in INTERFACES.values()}
    found = [each for each in candidates(some) if _may_be_taken(each, config)]
    if config.layout != "hub":
        found = [each for each in found if each.op in ops]
    sources = {entry.id: entry.kernel for entry in some}
    if not found:
        return []
    if config.layout == "directory":
        written = write_directory(Path(config.to), found, sources)
        return [f"{name}: {kernel}" for name, kernel in written.items()]
    if config.layout == "hub":
        name, version = _hub_name(str(config.package)), _major(str(config.version))
        licences = {entry.id: entry.licence or str(config.licence) for entry in some}
        made = write_hub_project(Path(config.to), name, version, found, sources, licences)
        return [f"{function}: {kernel}" for function, kernel in made.items()]
    rules = {"faster": bool(config.faster), "lower_precision": bool(config.lower_precision)}
    write_package(
        Path(config.to),
        str(config.package),
        str(config.version),
        candidates=found,
        sources=sources,
        rules=rules,
    )
    return _said(found, sources)


def _hub_name(package: str) -> str:
    """The package's name as the hub writes it. Raises UsageError."""
    from kernel_library.export.hub import NAME

    name = package.lower().replace("_", "-")
    if not NAME.fullmatch(name):
        rule = "two or more of a-z, 0-9 and _, a letter first, no _ last"
        raise UsageError(f"package={package} is no name for the hub: {rule}")
    return name


def _major(version: str) -> int:
    """The hub's version, a whole number from 1 on. Raises UsageError."""
    major = version.partition(".")[0]
    if not major.isdigit():
        raise UsageError(f"version={version}; it must begin with a whole number")
    return max(1, int(major))


def _may_be_taken(candidate: Candidate, config: DictConfig) -> bool:
    slow = all(each.speedup_low <= 1 for each in candidate.measured)
    rounds = any(each.precision for each in candidate.measured)
    return (
        bool(candidate.function)
        and (not slow or not config.faster)
        and (not rounds or config.lower_precision)
    )


def _said(found: Sequence[Candidate], sources: dict[str, Kernel]) -> list[str]:
    return [f"{each.op}: {each.name} ({sources[each.name].language})" for each in found]


if __name__ == "__main__":
    sys.exit(main())
