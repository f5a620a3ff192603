"""The documentation: it builds, its links lead somewhere, and what it names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, INLINE, NAMES, ROOT, anchors, blocks, examples, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
MODULE = re.compile(r"(?:search|evaluators|kernel_library|tests)(?:\.\w+)+")
ROOTS = (ROOT, ROOT / "evaluators")
"""What paths may be relative to: the glossary's are those of the evaluators."""
TOP = {folder.name for root in ROOTS for folder in root.iterdir() if folder.is_dir()} - {"site", "outputs"}


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]*)", page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.is_file(), f"{name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name} links to {link}: there is no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_files_and_modules_that_are_named_are_there(name: str) -> None:
    for code in INLINE.findall(prose(ROOT / name)):
        for path in PATH.findall(code):
            if path.partition("/")[0] in TOP and path not in examples() and "<" not in code:
                assert exists(path), f"{name} names {path}, which is not there"
        if MODULE.fullmatch(code) and not exists(code):
            assert is_module(code), f"{name} names {code}, which is not there"


@pytest.mark.parametrize("name", NAMES)
def test_commands_call_what_is_there(name: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    code = "\n".join([*INLINE.findall(prose(ROOT / name)), blocks(ROOT / name)])
    for module in re.findall(r"python -m\s+((?:search|evaluators|kernel_library|tests)(?:\.\w+)+)", code):
        assert is_module(module), f"{name} calls {module}"
    for script in re.findall(r"python\s+((?:benchmarks|docs)/[\w/]+\.py)", code):
        assert exists(script), f"{name} calls {script}"
    for target in re.findall(r"^(?: {4})?make ([\w-]+)", code, re.MULTILINE):
        assert target in targets, f"{name} calls make {target}"


def test_the_configuration_page_has_all_options() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| .+ \|$", (DOCS / "reference" / "configuration.md").read_text(), re.MULTILINE
    )
    groups = {folder.name: folder for folder in (ROOT / "configs").iterdir() if folder.is_dir()}
    told = {group: set(INLINE.findall(options)) for group, options in rows if group in groups}
    assert told.keys() >= groups.keys() - {"evaluator"}
    for group, options in told.items():
        there = {
            str(file.relative_to(groups[group]).with_suffix("")) for file in groups[group].rglob("*.yaml")
        }
        assert options <= there, f"reference/configuration.md names {options - there} of {group}"
        if group != "problem":  # of which it names some
            assert there - {"auto"} <= options, f"configuration.md leaves out {there - options} of {group}"


def exists(path: str) -> bool:
    return any((root / path).exists() for root in ROOTS)


def is_module(name: str) -> bool:
    """Whether it is a module or a package, or a name in one."""
    *above, last = name.split(".")
    place, parent = ROOT.joinpath(*above, last), ROOT.joinpath(*above)
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    module = parent / "__init__.py" if parent.is_dir() else parent.with_suffix(".py")
    return module.is_file() and re.search(rf"\b{last}\b", module.read_text()) is not None
