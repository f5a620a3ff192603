"""The pictures and the tables that are made of data: they show what the data say today."""

from __future__ import annotations

import itertools
import json
import re

import pytest

import ideatree
from tests.docs.pages import DOCS, ROOT, load

trajectory = load(DOCS / "pictures" / "trajectory.py", "docs_trajectory")
comparing = load(DOCS / "pictures" / "comparing.py", "docs_comparing")
tables = load(DOCS / "tables.py", "docs_tables")
AGAIN = "python docs/pictures/trajectory.py draws it anew"


def test_the_recorded_search_is_drawn_round_by_round() -> None:
    points = trajectory.recorded()
    assert [point.round for point in points] == list(range(1, len(points) + 1))
    assert points[0].kernel_ms == pytest.approx(0.0956, rel=0.005)
    found = ideatree.open_corpus("language_model").searches.loc["conv2d"]
    assert len(points) == found["rounds"]


def test_the_published_search_is_as_it_was_published() -> None:
    points = trajectory.published()
    assert [point.round for point in points] == list(range(14))
    assert (points[0].kernel_ms, points[0].speedup) == (7.02, 0.201)
    assert (points[-1].kernel_ms, points[-1].speedup) == (0.795, 1.799)
    assert all(before.speedup <= after.speedup for before, after in itertools.pairwise(points))
    for ms, speedup in zip(trajectory.PUBLISHED_MS, trajectory.PUBLISHED_SPEEDUPS, strict=True):
        assert trajectory.PUBLISHED_EAGER_MS / ms == pytest.approx(speedup, rel=0.02)  # both were rounded


def test_the_picture_shows_these_points() -> None:
    drawn = trajectory.svg(trajectory.recorded(), trajectory.published())
    committed = (DOCS / "pictures" / "trajectory.svg").read_text()
    assert places(committed) == pytest.approx(places(drawn), abs=0.2), AGAIN
    assert re.findall(r"<text[^>]*>([^<]*)", committed) == re.findall(r"<text[^>]*>([^<]*)", drawn), AGAIN


def places(svg: str) -> list[float]:
    return [float(each) for line in re.findall(r'points="([^"]*)"', svg) for each in re.split("[ ,]", line)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/results/kernels.md", "docs/results/language-model.md"])
def test_the_tables_are_those_of_the_cards_and_recordings(name: str) -> None:
    page = (ROOT / name).read_text()
    assert tables.with_tables(page, *tables.PAGES[name]()) == page, "python docs/tables.py writes them anew"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["language_model.svg", "predictions.svg"])
def test_the_pictures_of_lessons_are_those_of_the_recordings(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "pictures"))
    lessons = load(DOCS / "pictures" / "lessons.py", "docs_lessons")
    drawn = lessons.PICTURES[file](ideatree.open_corpus("language_model"))
    assert (DOCS / "pictures" / file).read_text() == drawn, "python docs/pictures/lessons.py draws it anew"


@pytest.mark.parametrize("name", comparing.ON_KERNELS)
def test_the_comparison_on_kernels_is_that_of_its_data(name: str) -> None:
    folder = DOCS / "pictures" / name
    assert (DOCS / "pictures" / f"{name}.svg").read_text() == comparing.curves(folder)
    said, page = (
        json.loads((folder / "comparison.json").read_text()),
        (DOCS / "results" / "strategies.md").read_text(),
    )
    for arm, mean in said["arms"].items():
        assert re.search(
            rf"\| {arm} \| {mean['value']:.2f} \[{mean['low']:.2f}, {mean['high']:.2f}\] \|", page
        )
    assert not any(each["is_real"] for each in said["differences"])
    assert said["command"].replace("'", "") in page


@pytest.mark.parametrize("name", ["comparison", "sensitivity"])
def test_the_pictures_of_comparisons_are_those_of_their_data(name: str) -> None:
    data = json.loads((DOCS / "pictures" / "sensitivity.json").read_text())
    landscape = DOCS / "pictures" / "landscape"
    if name == "comparison":
        drawn = comparing.curves(landscape)
    else:
        drawn = comparing.sensitivity(data, comparing.ranked(landscape))
    again = "python docs/pictures/comparing.py draws it anew"
    assert (DOCS / "pictures" / f"{name}.svg").read_text() == drawn, again
    assert len(re.findall("<polyline", drawn)) == 9 * (2 if name == "comparison" else 4)


def test_the_table_of_strategies_is_that_of_its_comparison() -> None:
    said = json.loads((DOCS / "pictures" / "landscape" / "comparison.json").read_text())
    page = (DOCS / "results" / "strategies.md").read_text()
    for arm, mean in said["arms"].items():
        assert f"| {arm} | {mean['value']:.3g} [{mean['low']:.3g}, {mean['high']:.3g}] | 100 |" in page
    assert said["command"].replace("'", "").startswith("python -m search.compare problem=landscape")
    assert (
        sum(each["is_real"] for each in said["differences"]) == 32 and "Thirty-two of the thirty-six" in page
    )
