"""Exports kernels for use without Ideatree:

    ideatree export format=package to=my_kernels
    ideatree export format=package to=my_kernels kernels=generated_kernels package=mine
    ideatree export format=directory to=kernels op=softmax
    ideatree export format=hub to=my_kernels package=my_kernels version=1
    ideatree export format=hub to=my_model package=my_model kernels=RUN/optimized
    ideatree export format=directory to=kernels kernels=RUN/optimized

Formats:

    package       a Python package whose kernels replace PyTorch's operators once it is installed
                  (pip install ./my_kernels); it needs torch, and Triton for Triton kernels
    directory     BackendBench's layout, one kernel per operator
    hub           a project for Hugging Face's kernel-builder with the library's Triton kernels, one per
                  function; its build/ has the files that the package kernels loads

Without `kernels=` the kernels are the library's (see `docs/guides/override.md` for which of them qualify);
`package` and `directory` use only those for a PyTorch operator. `kernels=` names a folder in BackendBench's
layout, or the `optimized/` folder of `ideatree optimize`: `hub` exports the whole model, the other formats
those of its kernels that come from the library and are for an operator. The exit status is 0, 1 if there is
no kernel to write, 2 for a wrong call.
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
from kernel_library.app.entries import FilterConfig, check_filters, chosen, expand_filters, open_library
from kernel_library.catalogue.best import candidates
from kernel_library.overrides.choice import Candidate

FORMATS = ("package", "directory", "hub")
FROM_LIBRARY = "library "
"""The prefix of a library entry's id in the origins of a model's `kernels.json`."""


@dataclass
class LibraryExportConfig(FilterConfig):
    """The config of the command."""

    layout: str = option(MISSING, "output format, set as format=: package | directory | hub")
    to: str = option(MISSING, "folder to write, which must not exist yet")
    kernels: str | None = option(
        None, "folder in BackendBench's layout, or optimized/ of a model; empty: the library's kernels"
    )
    package: str = option("ideatree_kernels", "import name of the package")
    version: str = option("0.1.0", "version of the package")
    licence: str = option(
        "Apache-2.0", "SPDX licence of a model, and of kernels whose card has none (format=hub)"
    )
    faster: bool = option(True, "export only kernels measured to be faster than eager PyTorch")
    lower_precision: bool = option(False, "also export kernels that round factors to a lower precision")


def expand(overrides: Sequence[str]) -> CommandCall:
    """Renames `format`, which for Hydra is the config group of training data. Raises UsageError if it is
    missing."""
    if not any(each.startswith(("format=", "-", "layout=")) for each in overrides):
        raise UsageError(f"format is not set; add format={' or format='.join(FORMATS)}")
    return expand_filters(
        [f"layout={each.partition('=')[2]}" if each.startswith("format=") else each for each in overrides]
    )


@command("kernel_library.export", LibraryExportConfig, __doc__, expand=expand)
def main(config: DictConfig) -> int:
    """Runs the command; returns its exit status."""
    console = Console(highlight=False, soft_wrap=True)
    log_to(Console(stderr=True))
    check_filters(config)
    if config.layout not in FORMATS:
        raise UsageError(f"format={config.layout}; it must be one of {', '.join(FORMATS)}")
    if not str(config.package).isidentifier():
        raise UsageError(
            f"package={config.package} is not a valid package name; use letters, digits and _, a letter first"
        )
    if Path(config.to).exists():
        raise UsageError(f"to={config.to} already exists; choose another folder or remove it")
    try:
        written = _export_folder(config) if config.kernels else _export_library(config, None)
    except OSError as error:
        raise UsageError(f"the export failed: {first_line(error)}") from error
    for line in written:
        console.print(line, markup=False)
    if not written:
        console.print("nothing to write: no kernel passes the filters; try faster=false")
        return 1
    if config.layout == "package":
        console.print(f"pip install {shlex.quote(str(Path(config.to).resolve()))}", markup=False)
    return 0


def _export_folder(config: DictConfig) -> list[str]:
    """Writes a folder's kernels; returns the lines to print. Raises UsageError and OSError."""
    from kernel_library.export.package import write_package
    from kernel_library.overrides.kernels import files_of

    if config.layout == "hub":
        return _export_model(config)
    if (Path(config.kernels) / "manifest.json").exists():
        return _export_model_operators(config)
    if config.layout == "directory":
        raise UsageError(
            f"kernels={config.kernels} already has this layout; omit it to export the library's kernels"
        )
    files = dict(files_of(Path(config.kernels)))
    if files:
        write_package(Path(config.to), str(config.package), str(config.version), operators=files)
    return [f"{name}: {path.stem}" for name, path in files.items()]


def _export_model(config: DictConfig) -> list[str]:
    """Writes a model with kernels for the hub; returns the lines to print. Raises UsageError and OSError."""
    from kernel_library.export.hub import BACKENDS, write_hub_model

    package = Path(config.kernels)
    backend, kernels = _manifest(package)
    if backend not in BACKENDS:
        raise UsageError(f"kernels={package} is for {backend}; the hub supports {' and '.join(BACKENDS)}")
    name, version = _hub_name(str(config.package)), _major(str(config.version))
    write_hub_model(Path(config.to), name, version, package, backend, str(config.licence))
    return [f"load(model): {', '.join(kernels) or 'no kernel'}"]


def _manifest(package: Path) -> tuple[str, list[str]]:
    """A model's device and the names of its kernels. Raises UsageError."""
    try:
        manifest = json.loads((package / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["device"]), [str(each["name"]) for each in manifest["kernels"]]
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"kernels={package} has no valid manifest.json ({first_line(error)}); give the folder optimized/ "
            "of ideatree optimize, or omit kernels= to export the library's"
        ) from error


def _export_model_operators(config: DictConfig) -> list[str]:
    """Writes those of a model's kernels that come from the library and are for an operator; returns the lines
    to print. Raises UsageError and OSError."""
    package = Path(config.kernels)
    _, names = _manifest(package)
    try:
        won = json.loads((package.parent / "kernels.json").read_text(encoding="utf-8"))
        origins = {name: str(won[name]["origin"]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{package.parent}/kernels.json lacks the model's kernels: {error}") from error
    entries = {
        name: each.removeprefix(FROM_LIBRARY)
        for name, each in origins.items()
        if each.startswith(FROM_LIBRARY)
    }
    written = _export_library(config, set(entries.values()))
    exported = {word for line in written for word in line.split()}
    left = [
        f"{name}: left out: {_why_left_out(entries.get(name))}"
        for name in names
        if entries.get(name) not in exported
    ]
    return written and [*written, *left]


def _why_left_out(entry: str | None) -> str:
    if entry is None:
        return "it was searched for the model's own operators and shapes"
    why = f"{entry} is not for an operator, is slower than another kernel, or does not pass the filters"
    return f"{why}; try faster=false or lower_precision=true"


def _export_library(config: DictConfig, only: Collection[str] | None) -> list[str]:
    """Writes the library's kernels (`only`: those with these ids); returns the lines to print. Raises
    UsageError and OSError."""
    from kernel_library.export.directory import write_directory
    from kernel_library.export.hub import write_hub_project
    from kernel_library.export.package import write_package
    from kernel_library.overrides.interfaces import INTERFACES

    _, entries = open_library(config)
    some = [entry for entry, _ in chosen(config, entries) if only is None or entry.id in only]
    ops = {each.op for each in INTERFACES.values()}
    found = [each for each in candidates(some) if _qualifies(each, config)]
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
    return [f"{each.op}: {each.name} ({sources[each.name].language})" for each in found]


def _hub_name(package: str) -> str:
    """The package's name in the hub's spelling. Raises UsageError."""
    from kernel_library.export.hub import NAME

    name = package.lower().replace("_", "-")
    if not NAME.fullmatch(name):
        rule = "use two or more of a-z, 0-9 and _, a letter first, no _ last"
        raise UsageError(f"package={package} is not a valid name on the hub; {rule}")
    return name


def _major(version: str) -> int:
    """The version on the hub, a whole number of at least 1. Raises UsageError."""
    major = version.partition(".")[0]
    if not major.isdigit():
        raise UsageError(f"version={version}; it must begin with a whole number")
    return max(1, int(major))


def _qualifies(candidate: Candidate, config: DictConfig) -> bool:
    """Whether the kernel has a function and passes `faster` and `lower_precision`."""
    slow = all(each.speedup_low <= 1 for each in candidate.measured)
    rounds = any(each.precision for each in candidate.measured)
    return (
        bool(candidate.function)
        and (not slow or not config.faster)
        and (not rounds or config.lower_precision)
    )


if __name__ == "__main__":
    sys.exit(main())
