"""Makes `report.html` of a run: one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evaluators.atomic_write import write_atomically
from search.reports.data import page_data
from search.reports.frames import RunFrames, load_run
from search.reports.texts import Texts

PACKAGES = ("pandas", "plotly")
"""What a report needs besides Ideatree itself."""
MOST_BYTES = 7_000_000
"""Of the page; the long texts are cut until it fits."""
PARTS = Path(__file__).with_name("page")
SCRIPTS = ("code.js", "layout.js", "tree.js", "details.js", "list.js", "charts.js", "main.js")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of the run in the folder, `report.html` there unless `out` says otherwise; returns
    the file. Raises OSError and JournalError."""
    place = out or folder / "report.html"
    write_atomically(place, render(load_run(folder)))
    return place


def render(frames: RunFrames) -> str:
    """The page as a whole. Its texts are data: the browser sets them as text, never as markup."""
    texts = Texts()
    data = page_data(frames, texts)
    plotly, script, style = _plotly(), _script(), (PARTS / "report.css").read_text(encoding="utf-8")
    parts: dict[str, Any] = {
        "title": f"{data['run']['problem']} on {data['run']['device']}",
        "policy": _policy(plotly, script),
        "style": Markup(style),
        "plotly": Markup(plotly),
        "script": Markup(script),
        "data": data,
    }
    page = _template().render(parts, texts="")
    left = MOST_BYTES - len(page.encode("utf-8", "replace"))
    return str(_template().render(parts, texts=texts.packed(left)))


def _policy(*scripts: str) -> str:
    """Nothing from outside, and no script but these; styles may stand in the page, where Plotly puts some."""
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
def _script() -> str:
    parts = "\n".join((PARTS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return _inlined(f'(() => {{\n"use strict";\n{parts}}})();\n')


def _inlined(script: str) -> str:
    """As it may stand between the tags of a script. A browser hashes it with plain line ends."""
    return re.sub("<(/script|!--)", r"\\x3c\1", script.replace("\r\n", "\n"), flags=re.IGNORECASE)


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(PARTS), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template("report.html.j2")
