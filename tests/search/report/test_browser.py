"""The report in a browser: how fast it opens, what it asks for, what a reader can do with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from evaluators.records.evaluation import Status
from evaluators.records.resources import resource_lines
from search.report.run_page import write_report
from tests.search.report.in_browser import (
    OPENS_WITHIN_S,
    address,
    browser,
    draw_charts,
    in_browser,
    open_report,
)
from tests.search.report.synthetic import ATTACK, SyntheticRun

__all__ = ["browser"]  # a fixture
pytestmark = in_browser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SyntheticRun:
    """One of 520 variants, with its report."""
    run = SyntheticRun(tmp_path_factory.mktemp("run"))
    write_report(run.folder)
    return run


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    yield context
    context.close()


@pytest.fixture(scope="module")
def opened(browser: Browser, run: SyntheticRun) -> Iterator[Page]:
    """The report, opened once for all; in the end nothing was complained of and nothing asked for."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    open_report(page, run.folder)
    yield page
    assert said == []
    assert {each for each in asked if not each.startswith("blob:")} == {address(run.folder)}


@pytest.fixture
def page(opened: Page) -> Page:
    """The report, as after opening."""
    opened.keyboard.press("Escape")
    opened.get_by_role("button", name="Show all").click()
    opened.locator("#list-frame").evaluate("each => { each.open = false; }")
    return opened


def show(page: Page, id: str) -> None:
    """Clicks a node of the tree."""
    page.locator(f'#tree [data-node="{id}"]').dispatch_event("click")


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()
    expect(page.get_by_role("tabpanel")).to_have_attribute("aria-busy", "false")


def test_it_opens_quickly(context: BrowserContext, run: SyntheticRun) -> None:
    """Until it can be read and used; Plotly and the charts come after that. The best of three, for others may
    keep the cores busy."""
    took: list[float] = []
    while not took or (min(took) > OPENS_WITHIN_S and len(took) < 3):
        page = context.new_page()
        page.goto(address(run.folder))
        took.append(int(page.locator("body").get_attribute("data-ready") or 0) / 1000)
        page.close()
    assert 0 < min(took) < OPENS_WITHIN_S, took


def test_all_charts_are_drawn(page: Page) -> None:
    draw_charts(page)
    assert page.locator(".chart").count() == 8


def test_the_steps_to_the_winner_and_all_ideas_are_listed(page: Page, run: SyntheticRun) -> None:
    tree = run.state.tree
    line = tree.lineage(tree.best()[0])
    expect(page.locator("#steps tbody tr")).to_have_count(len([each for each in line if each.timing]))
    expect(page.locator("#steps tbody tr").last).to_contain_text(tree.ideas[line[-1].idea].text[:40])
    judged = {each.idea for each in tree.variants.values() if each.evaluation}
    expect(page.locator("#idea-gains tbody tr")).to_have_count(len(judged))
    page.locator("#steps tbody a").last.click()
    expect(page.locator("#details h2")).to_have_text(re.compile(line[-1].id[:6]))


def test_a_node_shows_its_code_diff_log_and_calls(page: Page, run: SyntheticRun) -> None:
    tree = run.state.tree
    variant = next(each for each in tree.variants.values() if each.repairs)
    show(page, variant.id)
    expect(page.locator("#details h2")).to_have_text(re.compile(variant.id[:6]))
    tab(page, "Code")
    assert page.locator("pre.code").text_content() == variant.kernel.source
    assert page.locator("pre.code .keyword", has_text="__global__").count() == 1
    tab(page, "Diff")
    before = tree.variants[variant.repairs].kernel.source.splitlines()
    diff = page.locator("pre.diff")
    removed = [each.removeprefix("- ") for each in diff.locator(".removed").all_text_contents()]
    added = [each.removeprefix("+ ") for each in diff.locator(".added").all_text_contents()]
    assert removed and set(removed) <= set(before)
    assert added and set(added) <= set(variant.kernel.source.splitlines())
    tab(page, "Log")
    assert variant.evaluation is not None
    expect(page.get_by_role("tabpanel")).to_contain_text(variant.evaluation.log or "no log")
    tab(page, "Prompt and answer")
    expect(page.get_by_role("tabpanel")).to_contain_text(f"Make this faster (variant {variant.repairs}).")


def test_a_correct_kernel_shows_the_resources_of_its_functions(page: Page, run: SyntheticRun) -> None:
    variant = next(each for each in run.state.tree.variants.values() if each.timing)
    assert variant.evaluation is not None
    show(page, variant.id)
    facts = page.locator("#details dl").first
    expect(facts.locator("dt", has_text="compiled")).to_have_count(1)
    for line in resource_lines(variant.evaluation.resources):
        expect(facts.locator("dd").get_by_text(line, exact=True)).to_have_count(1)


def test_a_profiled_kernel_shows_its_diagnosis(page: Page, run: SyntheticRun) -> None:
    profiled = [each for each in run.state.tree.variants.values() if each.kernel.id in run.state.diagnoses]
    show(page, profiled[0].id)
    tab(page, "Profile")
    shown = page.get_by_role("tabpanel")
    first, second = shown.locator(".findings > li").all()
    expect(first).to_contain_text(
        "bank conflicts in void transpose<float, 32>(float const*, float*, int), costs"
    )
    expect(first).to_contain_text("pad the rows of the shared tile")
    expect(second).to_contain_text(ATTACK)
    widths = [
        each.evaluate("each => each.getBoundingClientRect().width") for each in shown.locator(".bar").all()
    ]
    assert widths[0] > 5 * widths[1] > 5
    expect(shown).to_contain_text("no countersthis user may not read the GPU's counters")
    page.keyboard.press("Escape")
    page.locator("#list-frame summary").click()
    expect(page.locator("#list td", has_text="bank conflicts")).to_have_count(len(profiled))
    other = next(each for each in run.state.tree.variants.values() if each not in profiled)
    show(page, other.id)
    expect(page.get_by_role("tab", name="Profile")).to_have_count(0)


def test_a_difference_has_the_lines_of_both(page: Page, run: SyntheticRun) -> None:
    best = run.state.tree.best()[0]
    show(page, best.id)
    tab(page, "Diff")
    lines = (page.locator("pre.diff").text_content() or "").splitlines()
    signs = [line[:1] for line in lines]
    assert signs.count("+") and signs.count("-")
    before, after = run.state.tree.variants[best.parent].kernel.source, best.kernel.source
    assert signs.count("+") - signs.count("-") == len(after.splitlines()) - len(before.splitlines())


def test_a_filter_leaves_its_category(page: Page, run: SyntheticRun) -> None:
    category = next(iter(run.state.tree.ideas.values())).category
    page.select_option("[name=category]", category.value)
    ideas = run.state.tree.ideas
    left = [each for each in run.state.tree.variants.values() if ideas[each.idea].category is category]
    expect(page.locator("#list-count")).to_have_text(f"{len(left)} of 520 variants")
    faded = page.locator('#tree g[data-node][opacity="0.12"]').count()
    assert faded == 520 - len(left)
    page.locator("#list-frame summary").click()
    expect(page.locator("#list tbody tr")).to_have_count(len(left))
    page.select_option("[name=status]", "timeout")
    late = [each for each in left if each.evaluation and each.evaluation.status is Status.TIMEOUT]
    expect(page.locator("#list-count")).to_have_text(f"{len(late)} of 520 variants")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#list-count")).to_have_text("520 of 520 variants")


def test_a_link_leads_to_its_node(page: Page, context: BrowserContext, run: SyntheticRun) -> None:
    best = run.state.tree.best()[0]
    show(page, best.id)
    link = page.evaluate("location.href")
    assert link == f"{address(run.folder)}#variant-{best.id}"
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#details")).to_be_hidden()
    pasted = context.new_page()
    pasted.goto(link)
    expect(pasted.locator("#details h2")).to_have_text(f"Variant {best.id[:6]}, the winner")
    pasted.get_by_role("link", name=best.parent[:6]).first.click()
    expect(pasted.locator("#details h2")).to_have_text(f"Variant {best.parent[:6]}")


def test_any_address_is_taken(page: Page) -> None:
    for fragment in ("variant-nobody", "idea-%ZZ", "entry-", "<script>", "reference"):
        page.evaluate("fragment => { location.hash = fragment; }", fragment)
        expect(page.locator("#details")).to_be_visible(visible=fragment == "reference")


def test_a_script_in_a_text_is_shown_and_not_run(page: Page, run: SyntheticRun) -> None:
    first = next(iter(run.state.tree.ideas.values()))
    assert ATTACK in first.text
    title = page.title()
    show(page, first.id)
    expect(page.locator("#details p").first).to_have_text(first.text)
    variant = run.state.tree.variants_of(first.id)[0]
    show(page, variant.id)
    for name in ("Code", "Diff", "Log", "Time", "Prompt and answer"):
        tab(page, name)
    page.keyboard.press("Escape")
    page.locator("#list-frame summary").click()
    page.locator(f'#tree [data-node="{variant.id}"]').dispatch_event("pointermove")
    expect(page.locator("#tip")).to_contain_text("<script>")
    page.locator("#chart-gains").scroll_into_view_if_needed()
    expect(page.locator("#chart-gains .main-svg").first).to_be_visible()
    assert page.locator("body img").count() == 0
    assert page.title() == title


def test_it_shows_where_the_time_went(page: Page, run: SyntheticRun) -> None:
    variant = next(each for each in run.state.tree.variants.values() if each.timing)
    show(page, variant.id)
    tab(page, "Time")
    expect(page.locator("#details pre")).to_contain_text("0.150 s  timing")
    page.keyboard.press("Escape")
    page.locator("#chart-time").scroll_into_view_if_needed()
    expect(page.locator("#chart-time .main-svg").first).to_be_visible()
    title = page.locator("#chart-time").get_attribute("aria-label")
    assert title is not None and "s of the devices" in title
    expect(page.locator("#chart-time")).to_contain_text("timing checks")


def test_the_policy_stops_what_would_be_added(context: BrowserContext, run: SyntheticRun) -> None:
    page = context.new_page()
    stopped: list[str | None] = []
    page.on("requestfailed", lambda request: stopped.append(request.failure))
    page.on("requestfinished", lambda request: stopped.append(request.url))
    page.goto(address(run.folder))
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'taken over'";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src='http://127.0.0.1:9/x.png'>");
            return fetch("http://127.0.0.1:9/").catch(() => null);
        }"""
    )
    assert page.title() != "taken over"
    assert stopped == [address(run.folder), "csp"]


def test_the_keyboard_walks_the_tree(page: Page, run: SyntheticRun) -> None:
    page.locator("#tree").focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#tip")).to_contain_text("Round 1")
    page.keyboard.press("Enter")
    path = run.state.tree.lineage(run.state.tree.best()[0])
    expect(page.locator("#details h2")).to_have_text(f"Variant {path[0].id[:6]}")
    assert page.evaluate("document.activeElement.id") == "details"
    page.keyboard.press("Escape")
    expect(page.locator("#details")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "tree"
    page.keyboard.press("+")
    before = page.locator("#tree > g").get_attribute("transform")
    page.keyboard.press("0")
    assert page.locator("#tree > g").get_attribute("transform") != before


def test_csv_and_svg_are_saved(page: Page, run: SyntheticRun, tmp_path: Path) -> None:
    page.select_option("[name=round]", "1")
    page.locator("#list-frame summary").click()
    for button, name in (("Save CSV", "x.csv"), ("Save SVG", "x.svg")):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        download.value.save_as(tmp_path / name)
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert len(lines) == 1 + sum(each.round == 1 for each in run.state.tree.variants.values())
    assert lines[0].startswith("id,idea,number,round")
    picture = (tmp_path / "x.svg").read_text()
    assert picture.startswith("<svg") and picture.count("<circle") >= 520 - 200
    assert "var(--" not in picture


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_need_not_scroll_sideways(scheme: str, browser: Browser, run: SyntheticRun) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844},
        color_scheme="dark" if scheme == "dark" else "light",
        has_touch=True,
        is_mobile=True,
    )
    page = context.new_page()
    open_report(page, run.folder)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    show(page, run.state.tree.best()[0].id)
    assert page.locator("#details").bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 844}
    context.close()
