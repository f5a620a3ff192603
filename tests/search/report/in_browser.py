"""Reports in a browser: the browser, a page that is opened once, and what every page with charts is to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BINARY = next((path for name in NAMES if (path := shutil.which(name))), None)
in_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="no Chromium or Chrome is installed"),
]
OPENS_WITHIN_S = 2.0
T = TypeVar("T")


def made_apart(make: Callable[[], T]) -> T:
    """What `make` returns in a thread. A browser, which may be open already, has this thread's event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BINARY)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(folder: Path, browser: Browser) -> Iterator[Page]:
    """The report in the module's `folder`, opened once; in the end nothing was complained of or asked for."""
    page = browser.new_page(viewport={"width": 1366, "height": 768}, accept_downloads=True)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    open_report(page, folder)
    yield page
    assert said == []
    assert [each for each in asked if not each.startswith(("blob:", "data:"))] == [address(folder)]


def address(folder: Path) -> str:
    return (folder / "report.html").as_uri()


def open_report(page: Page, folder: Path) -> None:
    """Until its charts can be drawn."""
    page.goto(address(folder))
    page.wait_for_selector("body[data-charts]", state="attached")


def draw_charts(page: Page) -> None:
    """Each as a reader comes by."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".main-svg").first).to_be_visible()


class ChartsInBrowser:
    """For the tests of a page of many searches to inherit; their module has a fixture `folder`."""

    pytestmark = in_browser

    def test_it_opens_quickly_and_draws_all_charts(self, page: Page) -> None:
        assert 0 < int(page.locator("body").get_attribute("data-ready") or 0) / 1000 < OPENS_WITHIN_S
        draw_charts(page)

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_a_phone_need_not_scroll_sideways(self, scheme: str, browser: Browser, folder: Path) -> None:
        context = browser.new_context(
            viewport={"width": 390, "height": 844}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = context.new_page()
        open_report(page, folder)
        for chart in page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        context.close()
