"""The report of a comparison as a file, and in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ideatree.commands import main as command
from search.compare.comparison_page import page_data, write_page
from search.compare.curves import UNITS
from tests.search.compare.compared import ARMS, ATTACK, PROBLEMS, compared
from tests.search.report.in_browser import ChartsInBrowser, browser, made_apart, page

__all__ = ["browser", "page"]  # fixtures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_apart(lambda: compared(tmp_path_factory.mktemp("compared") / "2026-01-31"))
    write_page(folder)
    return folder


@pytest.mark.slow
def test_the_page_shows_what_was_found(folder: Path) -> None:
    data = page_data(folder)
    assert data["arms"][0]["name"] == "quick"
    assert {each["name"] for each in data["arms"]} == set(ARMS)
    assert data["arms"][0]["statuses"] == {"correct": 408, "compile_error": 48, "crashed": 24}
    assert data["units"] == ["evaluations", "device_s"], "nobody paid for tokens"
    assert len(data["curves"]) == len(PROBLEMS) * 2 * len(ARMS)
    for each in data["curves"]:
        quartiles = zip(each["low"], each["median"], each["high"], strict=True)
        assert all(low <= median <= high for low, median, high in quartiles)
        assert each["amounts"][-1] == (20 if each["unit"] == "evaluations" else 50)
    quick = next(
        each for each in data["differences"] if {each["first"], each["second"]} == {"steady", "quick"}
    )
    assert quick["is_real"] and quick["sentence"].startswith(
        "quick finds significantly faster kernels than steady: 1.4"
    )
    reports = [each["report"] for each in data["searches"] if each["report"]]
    assert reports == ["./level1/softmax/steady/seed_0/report.html"]
    assert data["command"].endswith("seeds=12") and "python" in data["versions"]
    assert set(UNITS) <= data["searches"][0].keys()


def test_too_few_pairs_have_no_interval(tmp_path: Path) -> None:
    data = page_data(compared(tmp_path / "few", seeds=1))
    assert data["differences"][0]["ratio"]["low"] is not None or data["differences"][0]["pairs"] < 3
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("ended", [1, 2, 5])
def test_an_unfinished_one_has_a_page(ended: int, tmp_path: Path) -> None:
    folder = compared(tmp_path / "compared", ended=ended)
    data = page_data(folder)
    assert len(data["searches"]) == ended < data["planned"]
    assert len(data["arms"]) == min(ended, len(ARMS))
    assert write_page(folder).stat().st_size > 1_000_000


@pytest.mark.slow
def test_the_command_writes_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(folder), f"out={tmp_path / 'x.html'}"]) == 0
    assert (tmp_path / "x.html").read_text() == (folder / "report.html").read_text()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "searches.jsonl").touch()
    assert command(["report", str(tmp_path / "begun")]) == 2
    assert (
        "the comparison has not ended; continue it with ideatree compare resume=" in capsys.readouterr().err
    )


class TestInBrowser(ChartsInBrowser):
    def test_all_charts_are_there(self, page: Page) -> None:
        assert page.locator(".chart").count() == len(PROBLEMS) + 3

    def test_a_script_in_an_arms_name_is_shown_as_text(self, page: Page) -> None:
        name = list(ARMS)[-1]
        assert page.title() == "3 arms on 2 problems"
        expect(page.locator("#legend button").nth(1)).to_contain_text(ATTACK)
        expect(page.locator("#matrix tbody th", has_text=name)).to_have_count(1)
        expect(page.locator("#h-differences ~ * li", has_text=ATTACK)).to_have_count(2)
        page.locator("#chart-arms").scroll_into_view_if_needed()
        expect(page.locator("#chart-arms .ytick", has_text="<script>")).to_have_count(1)
        assert page.locator("img").count() == 0

    def test_the_legend_hides_an_arm_and_leaves_one_alone(self, page: Page) -> None:
        lines = page.locator("#chart-curve-0 .scatterlayer .js-line")
        page.locator("#chart-curve-0").scroll_into_view_if_needed()
        expect(lines).to_have_count(2 * len(ARMS))
        quick = page.locator("#legend button", has_text="quick")
        quick.click()
        expect(lines).to_have_count(2 * len(ARMS) - 2)
        expect(quick).to_have_attribute("aria-pressed", "false")
        quick.click()
        quick.dblclick()
        expect(lines).to_have_count(2)
        page.get_by_label("quartiles").uncheck()
        expect(lines).to_have_count(1)
        for each in page.locator("#legend button").all()[1:]:
            each.click()
        page.get_by_label("quartiles").check()
        expect(lines).to_have_count(2 * len(ARMS))

    def test_the_curves_are_over_another_unit(self, page: Page, tmp_path: Path) -> None:
        page.select_option("[name=unit]", "device_s")
        expect(page.locator("#chart-curve-1 .xtitle")).to_have_text("device seconds")
        with page.expect_download() as download:
            page.locator("#save-curves").click()
        download.value.save_as(tmp_path / "x.csv")
        lines = (tmp_path / "x.csv").read_text().splitlines()
        assert lines[0] == "arm,problem,device_s,low,median,high"
        assert len(lines) == 1 + len(ARMS) * len(PROBLEMS) * 101
        page.select_option("[name=unit]", "evaluations")

    def test_searches_are_listed_with_their_reports(self, page: Page) -> None:
        page.locator("#searches-frame summary").click()
        expect(page.locator("#searches tbody tr")).to_have_count(12 * len(ARMS) * len(PROBLEMS))
        link = page.locator("#searches a")
        expect(link).to_have_count(1)
        assert link.get_attribute("href") == "./level1/softmax/steady/seed_0/report.html"

    def test_a_chart_is_saved_as_svg(self, page: Page, tmp_path: Path) -> None:
        with page.expect_download() as download:
            page.locator("[data-svg=chart-differences]").click()
        download.value.save_as(tmp_path / "x.svg")
        picture = (tmp_path / "x.svg").read_text()
        assert picture.startswith("<svg") and "<script>" not in picture
        assert re.search("quick over steady", picture)
