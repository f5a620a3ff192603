"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from evaluators import PACKAGE

ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|\n\n)((?: {4}.*\n?|\n(?= {4}))+)")
INLINE = re.compile(r"`([^`]+)`")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return INDENTED.sub("\n\n", FENCED.sub("", page.read_text(encoding="utf-8")))


def blocks(page: Path) -> str:
    """The blocks of code alone."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*FENCED.findall(text), *INDENTED.findall(FENCED.sub("", text))])


def examples() -> dict[str, str]:
    """The files that the pages show whole, by their paths."""
    return {path: text for page in PAGES for path, text in TITLED.findall(page.read_text(encoding="utf-8"))}


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may say behind its `#`, on GitHub and on the site."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def load(path: Path, name: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
