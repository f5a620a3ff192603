"""One line each: a missing package, an old version, an unsupported GPU, a package that cannot be imported."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from evaluators.base.languages import LANGUAGES, Language
from evaluators.system import installed_languages
from evaluators.system.installed_languages import why_not_here

HELION, CUTE, CUTILE = (LANGUAGES[name] for name in ("helion", "cute", "cutile"))


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed distributions."""
    found: dict[str, str] = {}
    monkeypatch.setattr(installed_languages, "_version", lambda package: found.get(package, ""))
    monkeypatch.setattr(installed_languages, "_has_module", lambda name: False)
    return found


@pytest.mark.parametrize(
    ("language", "there", "architecture", "says"),
    [
        (HELION, {}, "9.0", "this machine has no Helion; pip install helion"),
        (
            CUTE,
            {},
            "",
            "this machine has no CuTe DSL; pip install 'nvidia-cutlass-dsl[cu13]' apache-tvm-ffi",
        ),
        (
            HELION,
            {"helion": "0.3.3"},
            "9.0",
            "this machine has Helion 0.3.3, which is too old; "
            "pip install --upgrade helion for 1.4.0 or newer",
        ),
        (
            CUTE,
            {"nvidia-cutlass-dsl": "4.8.1"},
            "7.5",
            "CuTe DSL does not support this GPU: its compute capability is 7.5, and 8.0 is the lowest that "
            "works; choose another language",
        ),
        (
            CUTILE,
            {"cuda-tile": "1.7.0", "nvidia-cuda-tileiras": "13.2.51"},
            "9.0",
            "this machine has no tileiras 13.3 or newer; pip install 'cuda-tile[tileiras]'",
        ),
        (CUTILE, {"cuda-tile": "1.7.0", "nvidia-cuda-tileiras": "13.3.36"}, "9.0", ""),
        (HELION, {"helion": "1.10.0"}, "12.0", ""),
        (HELION, {"helion": "1.4.0.dev3+git"}, "", ""),
    ],
)
def test_what_is_missing(
    versions: dict[str, str], language: Language, there: dict[str, str], architecture: str, says: str
) -> None:
    versions.update(there)
    assert why_not_here(language, architecture) == says


def test_a_tileiras_of_the_toolkit_counts(
    versions: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions["cuda-tile"] = "1.7.0"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    program = tmp_path / "bin" / "tileiras"
    program.parent.mkdir()
    for release, works in (("13.3", True), ("13.1", False)):
        program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.36'\n")
        program.chmod(0o755)
        assert (why_not_here(CUTILE, "9.0") == "") is works


def test_a_package_that_cannot_be_imported(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions |= {"helion": "1.5.1", "torch": "2.11.0"}
    line = "ImportError: cannot import name 'IntelGPUError'"
    monkeypatch.setattr(installed_languages, "_import_error", lambda module: line)
    assert why_not_here(HELION, "9.0") == "", "an import takes seconds"
    assert why_not_here(HELION, "9.0", tries_import=True) == (
        f"Helion 1.5.1 cannot be imported on this machine ({line}); install a version that fits torch 2.11.0"
    )


@pytest.mark.slow
def test_an_import_is_tried_in_a_new_process() -> None:
    assert installed_languages._import_error("json") == ""
    assert installed_languages._import_error("nowhere_to_be_found").startswith("ModuleNotFoundError: ")


def test_installed_ones_are_facts(versions: dict[str, str]) -> None:
    versions |= {"triton": "3.6.0", "helion": "1.4.0", "cuda-tile": "1.0.0"}
    assert installed_languages.installed_languages() == {"triton": "3.6.0", "helion": "1.4.0"}


def test_versions_are_those_of_distributions() -> None:
    assert installed_languages._version("numpy") == importlib.metadata.version("numpy")
    assert installed_languages._version("nowhere-to-be-found") == ""
