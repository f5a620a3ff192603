"""Draws the pictures of `docs/results/language-model.md` and `docs/results/lessons.md`, from the shipped
searches by a language model.

    python docs/pictures/lessons.py
"""

from __future__ import annotations

import math

from comparing import HERE, Picture, style, text

import ideatree
from search.report.corpus_frames import CorpusFrames

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 400, 52, 74, 352
SIDE = BOTTOM - TOP
"""Of the square in which predictions are drawn."""
GAINS = (0.5, 1, 2, 4, 8, 16, 32, 64)
"""The ticks of its axes; what lies outside is drawn at the edge."""
BARS, BAR = 470, 34
"""Where the bars begin, and how wide one is."""


def bests(corpus: CorpusFrames) -> str:
    """The best so far of each search after each round."""
    measured = corpus.rounds[corpus.rounds["evaluations"] > 0]
    lines = {
        str(name): list(zip(own.index.get_level_values("round"), own["speedup"], strict=True))
        for name, own in measured[measured["speedup"].notna()].groupby(level="search")
    }
    ends = {name: line[-1][1] for name, line in lines.items()}
    names = sorted(lines, key=lambda name: -ends[name])
    last = max(line[-1][0] for line in lines.values())
    picture = Picture(
        "The best kernel so far, over eager PyTorch",
        f"{len(lines)} searches by a large language model on an H200, each from the plain reference",
        panels=1,
        least=0.08,
        most=48,
        names=names,
        height=460,
    )
    picture.panel(0, lines, {number: str(number) for number in range(1, last + 1)}, "", "round")
    return picture.labelled(ends, {name: f"{_spoken(name)} {ends[name]:.3g}×" for name in names})


def _spoken(name: str) -> str:
    return name.replace("_", " ").replace("query attention", "queries")


def predictions(corpus: CorpusFrames) -> str:
    """What the model predicted of each idea and what its best variant gained over its seed. Beside it, in how
    many searches the best kernel is of which round."""
    ideas = corpus.ideas[(corpus.ideas["predicted_gain"] > 0) & corpus.ideas["gain"].notna()]
    rounds = corpus.searches["best_round"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="Predicted and measured gains, rounds of the bests">',
        f"<style>{style()}  .later {{ fill: var(--arm-1) }} .first {{ fill: var(--arm-0) }}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" style="fill: var(--paper)"/>',
        text(LEFT - 34, 26, f"Gains of {len(ideas)} ideas over their seeds", "title"),
        text(LEFT - 34, 45, "predicted before and measured after", "dim"),
        text(BARS, 26, "The round of the best kernel", "title"),
        text(BARS, 45, f"of {(rounds > 0).sum()} searches", "dim"),
        f'<path stroke-dasharray="5 4" d="M{_x(GAINS[0])} {_y(GAINS[0])}L{_x(GAINS[-1])} {_y(GAINS[-1])}"/>',
    ]
    for gain in GAINS:
        parts += [
            f'<path d="M{LEFT} {_y(gain):.1f}H{LEFT + SIDE}"/>',
            text(LEFT - 8, _y(gain) + 4, f"{gain:g}×", "dim", "end"),
            text(_x(gain), BOTTOM + 18, f"{gain:g}×", "dim", "middle"),
        ]
    parts.append(text(LEFT + SIDE / 2, HEIGHT - 10, "predicted", "dim", "middle"))
    parts.append(text(LEFT + SIDE + 8, TOP + 4, "measured", "dim"))
    for kind, own in (
        ("first", ideas[ideas["round"] == 1]),
        ("later", ideas[ideas["round"] > 1]),
    ):
        points = zip(own["predicted_gain"], own["gain"], strict=True)
        parts += [
            f'<circle class="{kind}" cx="{_x(x):.1f}" cy="{_y(y):.1f}" r="3.5" opacity="0.8"/>'
            for x, y in points
        ]
        place = BOTTOM - 14 if kind == "later" else BOTTOM - 32
        parts.append(f'<circle class="{kind}" cx="{LEFT + SIDE + 14}" cy="{place - 4}" r="3.5"/>')
        parts.append(text(LEFT + SIDE + 24, place, f"{kind} round{'s' * (kind == 'later')}", "dim"))
    counts = rounds[rounds > 0].value_counts()
    for number in range(1, rounds.max() + 1):
        count, left = counts.get(number, 0), BARS + (number - 1) * (BAR + 12)
        height = count / counts.max() * (SIDE - 20)
        parts += [
            f'<rect x="{left}" y="{BOTTOM - height:.1f}" width="{BAR}" height="{height:.1f}" class="first"/>',
            text(left + BAR / 2, BOTTOM - height - 6, str(count), "dim", "middle"),
            text(left + BAR / 2, BOTTOM + 18, str(number), "dim", "middle"),
        ]
    parts.append(text(BARS + (BAR + 12) * rounds.max() / 2, HEIGHT - 10, "round", "dim", "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(gain: float) -> float:
    return LEFT + SIDE * _share(gain)


def _y(gain: float) -> float:
    return BOTTOM - SIDE * _share(gain)


def _share(gain: float) -> float:
    first, last = GAINS[0], GAINS[-1]
    return math.log(min(max(gain, first), last) / first) / math.log(last / first)


PICTURES = {"language_model.svg": bests, "predictions.svg": predictions}

if __name__ == "__main__":
    found = ideatree.open_corpus("language_model")
    for file, draw in PICTURES.items():
        (HERE / file).write_text(draw(found), encoding="utf-8")
