"""Which languages this machine has, and why kernels in one of them cannot run here.

Versions come from the installed distributions, without importing anything: some packages take seconds.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys

from evaluators.base.languages import LANGUAGES, Language

TILEIRAS = "13.3"
"""The oldest release of cuTile's compiler that knows GPUs before Blackwell."""
IMPORT_S = 60.0


def version_of(language: Language) -> str:
    """The installed version of the language's package; "" if there is none."""
    return _version(language.package) if language.package else ""


def why_not_here(language: Language, architecture: str, *, tries_import: bool = False) -> str:
    """What this machine lacks for a language of Python modules, and what to do, in one line; "" if nothing.

    Args:
        architecture: the GPU's compute capability, such as "9.0"; "" if it does not matter.
        tries_import: whether to import the language's module in a new process too, which takes seconds.
    """
    found = version_of(language)
    if not found and not _has_module(language.modules[0]):
        return f"this machine has no {language.title}; pip install {language.install}"
    if found and _numbers(found) < _numbers(language.oldest):
        return (
            f"this machine has {language.title} {found}, which is too old; "
            f"pip install --upgrade {language.install} for {language.oldest} or newer"
        )
    if architecture and _numbers(architecture) < language.capability:
        needed = ".".join(map(str, language.capability))
        return (
            f"{language.title} does not support this GPU: its compute capability is {architecture}, and "
            f"{needed} is the lowest that works; choose another language"
        )
    if language.name == "cutile" and not _has_tileiras():
        return f"this machine has no tileiras {TILEIRAS} or newer; pip install {language.install}"
    if tries_import and (error := _import_error(language.modules[0])):
        version = f" {found}" if found else ""
        return (
            f"{language.title}{version} cannot be imported on this machine ({error}); install a version that "
            f"fits torch {_version('torch')}"
        )
    return ""


def installed_languages() -> dict[str, str]:
    """The versions of the languages for GPUs that this machine has in full, by name."""
    return {
        each.name: version_of(each)
        for each in LANGUAGES.values()
        if each.default and each.modules and version_of(each) and not why_not_here(each, "")
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _has_module(name: str) -> bool:
    """Whether a module is there; for a module in a package, its distribution says that."""
    return "." not in name and importlib.util.find_spec(name) is not None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparisons."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def _has_tileiras() -> bool:
    """Whether cuTile's compiler is installed, as a distribution or with the CUDA toolkit."""
    if found := _version("nvidia-cuda-tileiras"):
        return _numbers(found) >= _numbers(TILEIRAS)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    program = shutil.which("tileiras") or shutil.which(f"{home}/bin/tileiras")
    if program is None:
        return False
    ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release ([\d.]+)", ran.stdout)
    return release is not None and _numbers(release[1]) >= _numbers(TILEIRAS)


@functools.cache
def _import_error(module: str) -> str:
    """The last line of what importing the module raises in a new process; "" if it can be imported, or if
    that cannot be found out."""
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=IMPORT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["it died"])[-1]
