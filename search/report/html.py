"""One HTML file that needs no network, made from data, a template and scripts of `assets/`."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

PARTS = Path(__file__).with_name("assets")


def render_page(
    template: str, scripts: Sequence[str], *, name: str, title: str, data: Any, **parts: str
) -> str:
    """Renders a template with scripts, both from `assets/`. `data`: what they show, as plain JSON types; the
    browser shows its texts as text, never as markup. `name` begins the names of files that a reader saves;
    `parts` are values for other places in the template."""
    plotly, script = _plotly(), _script(tuple(scripts))
    shown = {
        "name": name,
        "title": title,
        "data": data,
        "policy": _policy(plotly, script),
        "style": Markup((PARTS / "page.css").read_text(encoding="utf-8")),
        "plotly": Markup(plotly),
        "script": Markup(script),
    }
    return str(_environment().get_template(template).render(shown, **parts))


def plain(value: Any, *, digits: int | None = 6) -> Any:
    """Converts a value for a page's data: numbers with `digits` significant digits (None: all), and null for
    values that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): plain(each, digits=digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, digits=digits) for each in value]
    if isinstance(value, float):
        rounded = value if digits is None else float(f"{value:.{digits}g}")
        return rounded if math.isfinite(value) else None
    return value


def link_to(folder: Path, path: str) -> str | None:
    """A link from a page in the folder to a file below it; None if the file does not exist."""
    return f"./{quote(path)}" if (folder / path).exists() else None


def _policy(*scripts: str) -> str:
    """Allows nothing from outside and no other scripts; inline styles are allowed, because Plotly adds
    some."""
    hashes = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _inlined(get_plotlyjs())


@cache
def _script(names: tuple[str, ...]) -> str:
    parts = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in names)
    return _inlined(f'(() => {{\n"use strict";\n{parts}}})();\n')


def _inlined(script: str) -> str:
    """A script in a form that may stand between script tags. A browser hashes it with plain line ends."""
    return re.sub("<(/script|!--)", r"\\x3c\1", script.replace("\r\n", "\n"), flags=re.IGNORECASE)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PARTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment
