"""Code templates, one file for each operation and language: `<language>/<op>.py` exports `TEMPLATE`."""

from __future__ import annotations

import importlib
import importlib.util

from search.proposers.playbook.move import Template


def template_for(op: str, language: str) -> Template | None:
    """The template of an operation in a language; None if there is none."""
    name = f"{__name__}.{language}.{op}"
    if importlib.util.find_spec(name) is None:
        return None
    template: Template = importlib.import_module(name).TEMPLATE
    return template
