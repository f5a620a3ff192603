"""The report of a campaign as a file, and in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ideatree.commands import main as command
from search.app import run_folders as cli
from search.campaign.campaign_page import has_campaign, page_data, write_page
from search.campaign.slices import SearchProgress, Slice
from tests.search.campaign.landscapes import ARMS, ATTACK, CEILING, MOVES, searched
from tests.search.report.in_browser import ChartsInBrowser, browser, made_apart, page

__all__ = ["browser", "page"]  # fixtures
pytestmark = pytest.mark.slow
SEARCHES = len(MOVES) * len(ARMS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaigns") / "2026-01-31"
    made_apart(lambda: searched(folder))
    write_page(folder)
    return folder


def test_the_page_shows_what_was_found(folder: Path) -> None:
    data, said = page_data(folder), json.loads((folder / "campaign.json").read_text())
    assert data["ended"]
    assert (data["total"]["problems"], data["total"]["searched"]) == (4, 3)
    for arm in data["arms"]:
        own = said["arms"][arm["name"]]
        assert arm["solved"] == own["solved"]
        assert arm["spent"] == pytest.approx(own["spent"])
        for baseline in ("eager", "compile"):
            for name, each in own[f"against {baseline}"].items():
                assert arm["against"][baseline][name] == pytest.approx(each, rel=1e-5), name
    assert data["total"]["evaluations"] == sum(arm["spent"]["evaluations"] for arm in data["arms"])
    best = {each["problem"]: each for each in reversed(data["searches"])}
    assert data["total"]["solved"] == sum((each["final"] or 0) > 1 for each in best.values())


def test_searches_are_sorted_by_speedup_and_say_why_they_stopped(folder: Path) -> None:
    shown = page_data(folder)["searches"]
    assert len(shown) == SEARCHES
    finals = [each["final"] for each in shown if each["state"] != "not searched"]
    assert finals == sorted(finals, reverse=True)
    unfit = shown[-len(ARMS) :]
    assert {each["problem"] for each in unfit} == {"landscape/broken"}
    assert all(each["why"].startswith("unknown problem nowhere") for each in unfit)
    assert all(each["result"] is None for each in unfit)
    assert next(each for each in shown if each["why"] == ATTACK)["state"] == "stopped"
    large = [each for each in shown if each["problem"] == "landscape/large"]
    assert all(each["roofline_share"] == pytest.approx(each["final"] / CEILING, rel=1e-4) for each in large)
    assert [each["report"] for each in shown if each["report"]] == ["./landscape/large/many/report.html"]
    for each in shown:
        assert [used for used, _ in each["slices"]][-1:] == [each["evaluations"]][: len(each["slices"])]


def test_the_curves_agree_with_the_measures(folder: Path) -> None:
    for arm in page_data(folder)["arms"]:
        for baseline, steps in arm["shares"].items():
            for name, each in arm["against"][baseline].items():
                if name.startswith("fast_"):
                    at = [share for p, share in steps if p <= float(name.removeprefix("fast_"))]
                    assert at[-1] == pytest.approx(each["value"], rel=1e-5), name
            assert steps[-1][1] == 0
        spent, shares = zip(*arm["budget"], strict=True)
        assert spent[-1] == arm["spent"]["evaluations"]
        assert list(spent) == sorted(spent) and list(shares) == sorted(shares)


def test_an_unfinished_one_has_a_page(folder: Path, tmp_path: Path) -> None:
    begun = SearchProgress(problem="a", arm="b", slices=(Slice(evaluations=3),))
    line = json.dumps({"key": begun.key, "value": begun.to_json()})
    (tmp_path / "campaign.jsonl").write_text(
        f'{line}\n{{"key": "seconds", "value": 7.5}}\n{{"key": "a b", "va'
    )
    data = page_data(tmp_path)
    assert not data["ended"]
    assert data["total"]["seconds"] == 7.5
    assert data["total"]["geometric mean"]["value"] is None
    [shown] = data["searches"]
    assert (shown["state"], shown["result"], shown["evaluations"]) == ("can continue", "none correct", 3)
    assert data["arms"][0]["per_solved"]["evaluations"] is None


def test_a_campaign_without_any_search_has_a_page(tmp_path: Path) -> None:
    unfit = SearchProgress(problem="a", arm="b", unfit="it cannot judge")
    (tmp_path / "campaign.jsonl").write_text(json.dumps({"key": "a b", "value": unfit.to_json()}) + "\n")
    assert write_page(tmp_path).stat().st_size > 4_000_000


def test_the_command_writes_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert has_campaign(folder) and not has_campaign(tmp_path)
    assert command(["report", str(folder), f"out={tmp_path / 'x.html'}"]) == 0
    assert (tmp_path / "x.html").read_text() == (folder / "report.html").read_text()
    assert command(["report", str(tmp_path)]) == 2
    assert (
        "not the folder of a run (it has no journal.jsonl), comparison, campaign or profile"
        in capsys.readouterr().err
    )


def test_the_page_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.page_at_the_end(write_page, folder, False) == []
    assert cli.page_at_the_end(write_page, folder, True) == [f"report: {folder / 'report.html'}"]
    monkeypatch.setattr(cli, "missing_packages", lambda: ["plotly"])
    [line] = cli.page_at_the_end(write_page, folder, True)
    assert line == "report: not written, it needs plotly: pip install -e '.[report]'"


class TestInBrowser(ChartsInBrowser):
    def test_the_cards_and_the_columns_are_there(self, page: Page) -> None:
        expect(page.locator("#cards .card")).to_have_count(6)
        expect(page.locator("#cards")).to_contain_text("problems, 1 not searched")
        expect(page.locator("#arms th", has_text="fast_1.5")).to_have_count(2)

    def test_scripts_in_texts_are_shown_as_text(self, page: Page) -> None:
        assert page.title() == "2 arms on 4 problems"
        expect(page.locator("#searches td.problem", has_text=ATTACK)).to_have_count(len(ARMS))
        expect(page.locator("#searches td.why", has_text=f"stopped: {ATTACK}")).to_have_count(1)
        assert page.locator("body script:not([type])").count() == 1

    def test_filters_leave_some_searches(self, page: Page, tmp_path: Path) -> None:
        rows = page.locator("#searches tbody tr")
        expect(rows).to_have_count(SEARCHES)
        page.select_option("[name=arm]", "many")
        expect(rows).to_have_count(len(MOVES))
        page.select_option("[name=state]", "not searched")
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("unknown problem nowhere")
        expect(page.locator("#count")).to_have_text(f"1 of {SEARCHES} searches")
        page.get_by_role("button", name="Show all").click()
        expect(rows).to_have_count(SEARCHES)
        page.get_by_label("Name of the problem").fill("SMALL")
        expect(rows).to_have_count(len(ARMS))
        with page.expect_download() as download:
            page.locator("#save-searches").click()
        download.value.save_as(tmp_path / "x.csv")
        lines = (tmp_path / "x.csv").read_text().splitlines()
        assert lines[0].startswith("problem,arm,weight,state,result,why,speedup,final")
        assert [line.split(",")[0] for line in lines[1:]] == ["landscape/small"] * len(ARMS)
        page.get_by_role("button", name="Show all").click()

    def test_searches_with_reports_are_linked(self, page: Page) -> None:
        link = page.locator("#searches a")
        expect(link).to_have_count(1)
        assert link.get_attribute("href") == "./landscape/large/many/report.html"
        expect(page.locator("#searches .spark")).to_have_count(SEARCHES - len(ARMS))

    def test_arms_are_hidden_and_the_baseline_is_chosen(self, page: Page) -> None:
        page.locator("#chart-fast-p").scroll_into_view_if_needed()
        lines = page.locator("#chart-fast-p .scatterlayer .js-line")
        expect(lines).to_have_count(len(ARMS))
        page.locator("#legend button", has_text="many").click()
        expect(lines).to_have_count(1)
        page.locator("#legend button", has_text="many").click()
        page.get_by_label("Baseline").select_option("compile")
        expect(page.locator("h3", has_text="as fast as torch.compile")).to_be_visible()
        page.get_by_label("Baseline").select_option("eager")

    def test_charts_and_the_table_of_arms_are_saved(self, page: Page, tmp_path: Path) -> None:
        for name in ("fast-p", "budget"):
            with page.expect_download() as download:
                page.locator(f"[data-svg=chart-{name}]").click()
            download.value.save_as(tmp_path / f"{name}.svg")
            assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
        with page.expect_download() as download:
            page.locator("#save-arms").click()
        download.value.save_as(tmp_path / "x.csv")
        assert "against torch.compile,fast_1.5,many" in (tmp_path / "x.csv").read_text()
