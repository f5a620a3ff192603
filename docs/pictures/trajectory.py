"""Draws `trajectory.svg`: a language model's search for conv2d beside the one that the method's authors
published.

    python docs/pictures/trajectory.py

Both on the same problem, on different GPUs: each is drawn as the speedup over eager PyTorch on its own GPU.
Ours is read from the shipped recording `language_model/conv2d`. The published figures are those of
"Surprisingly Fast AI-Generated Kernels We Didn't Mean to Publish (Yet)" (A. Ouyang, A. Mirhoseini, P. Liang,
Stanford CRFM, 2025-05-28), section "An Example Kernel Optimization Trajectory".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ideatree import open_run

HERE = Path(__file__).resolve().parent
RECORDING = "language_model/conv2d"

PUBLISHED_EAGER_MS = 1.41
PUBLISHED_MS = (7.02, 7.54, 3.46, 3.67, 3.46, 1.91, 1.37, 1.38, 1.37, 1.36, 1.07, 1.21, 1.01, 0.795)
"""Of the kernel of each round, from round 0, on one NVIDIA L40S."""
PUBLISHED_SPEEDUPS = (
    *(0.201, 0.188, 0.410, 0.387, 0.410, 0.749, 1.036),
    *(1.029, 1.036, 1.051, 1.336, 1.174, 1.412, 1.799),
)
"""As published: "% of reference", which is the reference's time over the kernel's."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best kernel after a round; round 0 is the first kernel of the published search, plain loops."""

    round: int
    kernel_ms: float
    speedup: float


def recorded() -> list[Point]:
    """The search of the recording, as it was measured on one NVIDIA H200."""
    rounds = open_run(RECORDING).frames().rounds
    measured = rounds[rounds["evaluations"] > 0]
    figures = zip(measured.index, measured["kernel_ms"], measured["speedup"], strict=True)
    return [Point(round=int(number), kernel_ms=ms, speedup=speedup) for number, ms, speedup in figures]


def published() -> list[Point]:
    """The published search; after a round that was slower the kernel of an earlier one is the best."""
    kernels = zip(PUBLISHED_SPEEDUPS, PUBLISHED_MS, strict=True)
    return [
        Point(round=number, kernel_ms=ms, speedup=speedup)
        for number, (speedup, ms) in enumerate(accumulate(kernels, max))
    ]


WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 30, 64, 52
LEAST, MOST, LAST_ROUND = 0.1, 20.0, 13
SETTING = "100×3×224×224 to 96 channels, window 11, stride 4; float32 in and out"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --dim: #59636e; --line: #d9dee3 }
  svg { --ours: #0969da; --theirs: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #f0f6fc; --dim: #9198a1; --line: #2f353d }
    svg { --ours: #58a6ff; --theirs: #f0883e }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink) }
  .title { font-size: 15px; font-weight: 600 }
  .dim { fill: var(--dim); font-size: 12px }
  .grid { stroke: var(--line) }
  .eager { stroke: var(--dim); stroke-dasharray: 5 4 }
  .ours { stroke: var(--ours); fill: var(--ours) }
  .theirs { stroke: var(--theirs); fill: var(--theirs) }
  polyline.ours, polyline.theirs { fill: none; stroke-width: 2.5; stroke-linejoin: round }
  text.ours, text.theirs { stroke: none; font-weight: 600 }
"""


def svg(ours: Sequence[Point], theirs: Sequence[Point]) -> str:
    """The picture. Light or dark as the reader's system is, with a background of its own."""
    first, end = ours[0], ours[-1]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title">',
        '<title id="title">Speedup over eager PyTorch of the best kernel after each round: a language model '
        f"in Ideatree on an H200, {first.speedup:.2f} to {end.speedup:.2f} times in {end.round} rounds; the "
        f"published search on an L40S, {theirs[0].speedup:.2f} to {theirs[-1].speedup:.2f} in "
        f"{theirs[-1].round}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" style="fill: var(--paper)"/>',
        _text(LEFT, 26, "conv2d: the best kernel so far, over eager PyTorch on the same GPU", "title"),
        _text(LEFT, 45, SETTING, "dim"),
        *_axes(),
        *_series(ours, "ours"),
        *_series(theirs, "theirs"),
        _text(_x(first.round), _y(first.speedup) + 20, f"{first.kernel_ms:.3f} ms", "ours", "middle"),
        _text(_x(0) - 10, _y(theirs[0].speedup) - 19, f"{theirs[0].kernel_ms:.3g} ms", "theirs"),
        _text(_x(end.round) + 12, _y(end.speedup) - 1, f"a language model, H200: {end.speedup:.1f}×", "ours"),
        _text(_x(end.round) + 12, _y(end.speedup) + 15, f"{end.kernel_ms:.3f} ms", "dim"),
        _text(_x(LAST_ROUND), _y(theirs[-1].speedup) - 30, _label(theirs[-1]), "theirs", "end"),
        _text(_x(LAST_ROUND), _y(theirs[-1].speedup) - 14, f"{theirs[-1].kernel_ms:.3f} ms", "dim", "end"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _label(point: Point) -> str:
    return f"published, L40S: {point.speedup:.2f}×"


def _axes() -> list[str]:
    lines = []
    for tick in TICKS:
        kind = "eager" if tick == 1 else "grid"
        lines.append(f'<path class="{kind}" d="M{LEFT} {_y(tick):.1f}H{WIDTH - RIGHT}"/>')
        lines.append(_text(LEFT - 8, _y(tick) + 4, f"{tick:g}×", "dim", "end"))
    for number in range(LAST_ROUND + 1):
        lines.append(_text(_x(number), HEIGHT - BOTTOM + 20, str(number), "dim", "middle"))
    lines.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "round", "dim", "middle"))
    lines.append(_text(WIDTH - RIGHT, _y(1) + 16, "eager PyTorch", "dim", "end"))
    return lines


def _series(points: Sequence[Point], kind: str) -> list[str]:
    places = [(_x(point.round), _y(point.speedup)) for point in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places]
    return [f'<polyline class="{kind}" points="{path}"/>', *dots]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _x(number: int) -> float:
    return LEFT + 16 + number * (WIDTH - LEFT - RIGHT - 32) / LAST_ROUND


def _y(speedup: float) -> float:
    share = math.log(speedup / LEAST) / math.log(MOST / LEAST)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


if __name__ == "__main__":
    (HERE / "trajectory.svg").write_text(svg(recorded(), published()))
