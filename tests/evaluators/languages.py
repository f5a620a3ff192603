"""A kernel in each language for one problem, from the pages that prompts show, and cheats made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluators.base.languages import LANGUAGES
from evaluators.records.problem import Problem
from evaluators.system.installed_languages import why_not_here

PAGES = Path(__file__).parents[2] / "search/proposers/llm/templates/languages"
PACKAGES = [each.name for each in LANGUAGES.values() if each.modules]
OWN_RUNTIME = [each for each in PACKAGES if each not in ("triton", "gluon")]
"""Those with a compiler and a way to launch of their own."""
SOFTMAX = "triton"
"""The one whose page shows a softmax; the other pages show a product with a number."""
SCALE = """
import torch
from torch import nn

rows, columns = 4096, 4096

class Model(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor

def get_inputs():
    return [torch.randn(rows, columns)]

def get_init_inputs():
    return [1.5]
"""
FORWARD = "return x * self.factor"
CLASS = "class ModelNew(nn.Module)"
AROUND = """

class ModelNew(Honest):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.stream = None

    def forward(self, x):
        BODY
"""


def problem(language: str, device: str = "cuda", libraries: str = "any") -> Problem:
    """The problem of a language's example."""
    source = SCALE
    if language == SOFTMAX:
        source = source.replace(FORWARD, "return torch.softmax(x, -1)")
        source = source.replace("self, factor", "self").replace("        self.factor = factor\n", "")
        source = source.replace("[1.5]", "[]")
    return Problem(name="file/example", source=source, device=device, libraries=libraries)


def example(language: str) -> str:
    """The kernel on a language's page."""
    page = (PAGES / f"{language}.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found, f"{language}.md has no example"
    return found[1]


def around(language: str, body: str) -> str:
    """A kernel with this `forward`, which may call the example's as `super().forward`."""
    honest = example(language).replace(CLASS, "class Honest(nn.Module)")
    lines = body.strip().replace("\n", "\n        ")
    return honest + AROUND.replace("BODY", lines)


def need(language: str, architecture: str = "9.0") -> None:
    """Skips the test, with the reason, if this machine lacks the language."""
    if why := why_not_here(LANGUAGES[language], architecture, tries_import=True):
        pytest.skip(why)
