"""A real browser for the page. Without Chromium or Playwright these tests are skipped, and say so."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.record import CheckRecord
from isotherm.report.html import to_html

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page that is open, with everything it asked for, printed or popped up."""

    def __init__(self, browser: Any, path: Path, anchor: str, **options: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.refused.append((request.url, request.failure)))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.goto(path.as_uri() + anchor)
        self.address = path.as_uri()

    def wait_for(self, condition: Callable[[], object], within: float = 20.0) -> None:
        """Wait until something has arrived from the page: a message, a request."""
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            self.page.wait_for_timeout(20)

    def outside(self) -> list[str]:
        """Requests for anything but the file itself and what it made."""
        return [url for url in self.requests if not url.startswith((self.address, "blob:", "data:"))]


def until(page: Any, condition: str, argument: Any = None, within: float = 20.0) -> None:
    """Wait until a function of the page answers true. Playwright's own wait needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + within
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait; longer than they do by themselves, for a machine that is busy."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=20_000)
    return expected(locator)


_WRITTEN: dict[int, tuple[CheckRecord, str]] = {}


def text_of(record: CheckRecord) -> str:
    """The page of a report, which several tests open: made once."""
    if id(record) not in _WRITTEN:
        _WRITTEN[id(record)] = record, to_html(record, "en")
    return _WRITTEN[id(record)][1]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    pages: list[Opened] = []

    def open_page(record: CheckRecord, anchor: str = "#lang=en", **options: Any) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(text_of(record), encoding="utf-8")
        pages.append(Opened(browser, path, anchor, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.outside() == []
        assert page.said == []
        page.context.close()
