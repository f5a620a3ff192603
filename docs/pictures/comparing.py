"""Draws the pictures of `docs/results/strategies.md`, each from its data.

    python docs/pictures/comparing.py
    python docs/pictures/comparing.py outputs/compare/<date_time>

The first draws all, of `landscape/`, `softmax_h200/`, `matmul_h100/`, `method_cpu/` and `sensitivity.json`
beside this file; the second that of another comparison, as `curves.svg` in its folder.

The folders have the `comparison.json` and `curves.csv` that `search.compare` wrote into its own;
`sensitivity.json` is written by `python benchmarks/landscape.py sensitivity=true out=…`.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ON_KERNELS = ("softmax_h200", "matmul_h100", "method_cpu")
WIDTH, LEFT, TOP, BOTTOM, LABELS = 760, 52, 64, 52, 215
"""Of a picture; `LABELS` is the room at the right for the names."""
TICKS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10)
WIDE_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40)
"""For an axis that begins below eager."""
LIGHT = ("332288", "cc6677", "117733", "aa4499", "44aa99", "882255", "999933", "88ccee", "ddcc77")
DARK = ("77aadd", "ee8866", "bbcc33", "ffaabb", "44bb99", "eedd88", "99ddff", "aaaa00", "dddddd")
"""Paul Tol's schemes "muted" and "light": as on the report's page."""
DASHES = ("", "7 4", "2 3", "7 3 2 3")
Line = Sequence[tuple[float, float]]


def style() -> str:
    """Light or dark as the reader's system is."""

    def of(colours: Sequence[str]) -> str:
        return "; ".join(f"--arm-{place}: #{colour}" for place, colour in enumerate(colours))

    return f"""
  svg {{ --paper: #ffffff; --ink: #1f2328; --dim: #59636e; --line: #d9dee3; {of(LIGHT)} }}
  @media (prefers-color-scheme: dark) {{
    svg {{ --paper: #0d1117; --ink: #f0f6fc; --dim: #9198a1; --line: #2f353d; {of(DARK)} }}
  }}
  text {{ font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink) }}
  .title {{ font-size: 15px; font-weight: 600 }}
  .dim {{ fill: var(--dim); font-size: 12px }}
  path {{ stroke: var(--line); fill: none }}
  polyline {{ fill: none; stroke-width: 2.25; stroke-linejoin: round }}
"""


class Picture:
    """Panels side by side with one axis of speedups, on a logarithmic scale, and a name for each line at the
    right. `least` and `most`: the ends of the axis; `names`: the lines in the order of their colours."""

    def __init__(
        self,
        title: str,
        below: str,
        *,
        panels: int,
        most: float,
        names: Sequence[str],
        least: float = 1,
        height: int = 380,
    ) -> None:
        self.height, self.least, self.most, self.names = height, least, most, list(names)
        self.width = (WIDTH - LEFT - LABELS) / panels
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{style()}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" style="fill: var(--paper)"/>',
            text(LEFT - 34, 26, title, "title"),
            text(LEFT - 34, 45, below, "dim"),
        ]
        for tick in (each for each in (TICKS if least == 1 else WIDE_TICKS) if least <= each <= most):
            self.parts.append(f'<path d="M{LEFT} {self.y(tick):.1f}H{WIDTH - LABELS}"/>')
            self.parts.append(text(LEFT - 8, self.y(tick) + 4, f"{tick:g}×", "dim", "end"))

    def y(self, speedup: float) -> float:
        """Where a speedup is."""
        share = math.log(speedup / self.least) / math.log(self.most / self.least)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM - 14)

    def panel(
        self, number: int, lines: Mapping[str, Line], ticks: Mapping[float, str], title: str, axis: str
    ) -> None:
        """The lines by their names; x from the first of the ticks to the last one."""
        first, last, pad = min(ticks), max(ticks), 18
        left = LEFT + number * self.width

        def x(value: float) -> float:
            return left + pad + (value - first) / (last - first) * (self.width - 2 * pad)

        for value, label in ticks.items():
            self.parts.append(text(x(value), self.height - BOTTOM + 20, label, "dim", "middle"))
        middle = left + self.width / 2
        self.parts.append(text(middle, self.height - 12, axis, "dim", "middle"))
        self.parts.append(text(middle, TOP + 6, title, "dim", "middle"))
        for name, line in lines.items():
            points = " ".join(f"{x(at):.1f},{self.y(value):.1f}" for at, value in line)
            self.parts.append(f'<polyline points="{points}" {self._stroke(name)}/>')

    def labelled(self, ends: Mapping[str, float], texts: Mapping[str, str]) -> str:
        """The whole picture, with a text for each line at the height of its end, or below the one above."""
        lowest = -math.inf
        for name in sorted(ends, key=lambda each: self.y(ends[each])):
            lowest = max(self.y(ends[name]), lowest + 17)
            right = WIDTH - LABELS
            self.parts.append(
                f'<polyline points="{right + 6:.1f},{lowest:.1f} {right + 30:.1f},{lowest:.1f}" '
                f"{self._stroke(name)}/>"
            )
            self.parts.append(text(right + 36, lowest + 4, texts[name], "name"))
        return "\n".join([*self.parts, "</svg>"]) + "\n"

    def _stroke(self, name: str) -> str:
        place = self.names.index(name)
        dash = f' stroke-dasharray="{found}"' if (found := DASHES[place % len(DASHES)]) else ""
        return f'style="stroke: var(--arm-{place % len(LIGHT)})"{dash}'


def ranked(folder: Path) -> list[str]:
    """The arms of a comparison, the best first."""
    arms = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["arms"]
    return sorted(arms, key=lambda name: -arms[name]["value"])


def curves(folder: Path) -> str:
    """The best so far of each arm, a panel for each problem of a comparison: medians over its searches."""
    said = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    with (folder / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names, means = ranked(folder), {name: found["value"] for name, found in said["arms"].items()}
    unit, problems = said["unit"], said["problems"]
    lines = {
        problem: {
            name: [
                (float(row[unit]), float(row["median"]))
                for row in rows
                if (row["arm"], row["problem"]) == (name, problem)
            ]
            for name in names
        }
        for problem in problems
    }
    points = [point for of_problem in lines.values() for line in of_problem.values() for point in line]
    last, lowest = max(at for at, _ in points), min(value for _, value in points)
    several = len(problems) > 1
    picture = Picture(
        f"{f'{len(problems)} problems' if several else problems[0]}: the best so far, over eager",
        f"median of {len(said['seeds'])} searches; at the right the geometric mean of the winners",
        panels=len(problems),
        least=1 if lowest >= 1 else 0.9 * lowest,
        most=1.1 * max(value for _, value in points),
        names=names,
    )
    for number, problem in enumerate(problems):
        steps = 2 if several else 5
        ticks = {last * place / steps: f"{last * place / steps:g}" for place in range(steps + 1)}
        title = problem_name(said["command"], problem) if several else ""
        picture.panel(number, lines[problem], ticks, title, unit.replace("device_s", "device seconds"))
    texts = {name: f"{name} {means[name]:.2f}×" for name in names}
    return picture.labelled({name: lines[problems[-1]][name][-1][1] for name in names}, texts)


def problem_name(command: str, problem: str) -> str:
    """A problem's name; that of a file is in the command."""
    if problem == "file":
        problem = re.search(r"problem\.path=(\S+)", command)[1]
    return Path(problem).stem.replace("_", " ").replace("conv2d relu maxpool", "conv2d block")


def sensitivity(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """The mean speedups by the rate of failures, a panel for each noise of implementations; `names` in the
    order of their colours."""
    rows = found["rows"]
    noises = sorted({row["noise"] for row in rows})
    picture = Picture(
        "landscape: the ranking by noise and rate of failures",
        f"geometric mean speedup of the winners; {found['seeds']} searches of {found['evaluations']} "
        "evaluations at each point",
        panels=len(noises),
        most=1.1 * max(mean[0] for row in rows for mean in row["means"].values()),
        names=names,
    )
    for number, noise in enumerate(noises):
        own = [row for row in rows if row["noise"] == noise]
        lines = {name: [(row["failures"], row["means"][name][0]) for row in own] for name in names}
        ticks = {row["failures"]: f"{row['failures']:.0%}" for row in own}
        picture.panel(number, lines, ticks, f"noise {noise:g}", "variants that fail")
    ends = {name: rows[-1]["means"][name][0] for name in names}
    return picture.labelled(ends, {name: name for name in names})


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Words at a place, of the class `kind`."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    if len(sys.argv) > 1:
        (Path(sys.argv[1]) / "curves.svg").write_text(curves(Path(sys.argv[1])), encoding="utf-8")
    else:
        (HERE / "comparison.svg").write_text(curves(HERE / "landscape"), encoding="utf-8")
        for name in ON_KERNELS:
            (HERE / f"{name}.svg").write_text(curves(HERE / name), encoding="utf-8")
        data = json.loads((HERE / "sensitivity.json").read_text(encoding="utf-8"))
        (HERE / "sensitivity.svg").write_text(sensitivity(data, ranked(HERE / "landscape")), encoding="utf-8")
