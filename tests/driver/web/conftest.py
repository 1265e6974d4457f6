"""A browser and pages that watch themselves: an error in the console or a request to another host fails the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from forebay.http.server import Server
from forebay.model.errors import UsageError
from forebay.security.access import Guard
from tests.conftest import missing
from tests.driver.web import canned
from tests.support.run.ports import free_port
from tests.support.run.wheel import ROOT
from tests.support.servers import chromium
from tests.support.state.guarded import settings

#: folder of the documentation's pictures
IMAGES = ROOT / "docs" / "images"
SIZES: dict[str, ViewportSize] = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
TOKENS = {role: f"the-token-of-a-{role}" for role in ("reader", "operator", "query", "receiver")}
PATIENCE_MS = 60_000  # the machine may be busy; a page that shows it earlier does not wait
expect.set_options(timeout=PATIENCE_MS)


def takes_pictures() -> bool:
    """Return whether the documentation's pictures are taken again (`make screenshots`)."""
    return bool(os.environ.get("FOREBAY_SCREENSHOTS"))


def busy() -> float:
    """Return the number of processes that wait for each core, at least 1: a time on an idle machine is to be multiplied by it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for each module: while it runs, this thread has an event loop, which other tests must not meet."""
    try:
        running = chromium.running()
        opened = running.__enter__()
    except UsageError as error:
        missing(str(error))
    try:
        yield opened
    finally:
        running.__exit__(None, None, None)


@dataclass
class Watched:
    """The pages of one test. ``errors``: what went wrong in them; a test removes what it caused on purpose."""

    browser: Browser
    errors: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)

    def open(
        self,
        url: str,
        view: str = "",
        size: str = "wide",
        theme: str = "light",
        prepare: Callable[[Page], object] = lambda page: None,
    ) -> Page:
        """A page in a profile of its own. ``prepare``: called before it loads."""
        # without motion: otherwise the processor paints a moving background the whole time while a test waits
        context = self.browser.new_context(
            viewport=SIZES[size],
            color_scheme=theme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        return self.tab(context, url, view, prepare)

    def tab(
        self, context: BrowserContext, url: str, view: str = "", prepare: Callable[[Page], object] = lambda page: None
    ) -> Page:
        page = context.new_page()
        prepare(page)
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._asked(url, request.url))
        page.goto(f"{url}/{view}")
        return page

    def shoot(self, page: Page, name: str) -> None:
        """Keep what the page shows as a picture of the documentation, if that is wanted (`make screenshots`)."""
        if takes_pictures():
            page.mouse.move(0, 0)
            page.screenshot(path=IMAGES / f"page-{name}.png", animations="disabled", scale="css")

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(f"console: {text}")

    def _asked(self, own: str, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "data" and parts.netloc != urlsplit(own).netloc:
            self.errors.append(f"another host: {url}")

    def expected(self, text: str) -> None:
        """The browser logs each refused or failed request; these are on purpose."""
        assert any(text in error for error in self.errors), self.errors
        self.causes.append(text)  # the last ones may still be on their way


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    pages = Watched(browser)
    yield pages
    for context in pages.contexts:
        context.close()
    assert [error for error in pages.errors if not any(cause in error for cause in pages.causes)] == []


@dataclass
class Driver:
    """A made-up driver that a test changes, stops and starts again."""

    world: canned.World
    guard: Guard
    url: str
    server: Server | None = None

    def start(self) -> None:
        self.server = Server(
            canned.driver_application(self.world, self.guard), self.url, grace_seconds=0.1, guard=self.guard
        )
        self.server.__enter__()

    def stop(self) -> None:
        if self.server is not None:
            self.server.__exit__(None, None, None)
            self.server = None


@pytest.fixture
def make_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def make(world: canned.World, guarded: bool = False) -> Driver:
        security = {}
        if guarded:
            tokens = tmp_path / "tokens"
            tokens.touch(mode=0o600)
            tokens.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
            security["token_file"] = str(tokens)
        driver = Driver(world, Guard(settings(tmp_path, **security)), f"http://127.0.0.1:{free_port()}")
        driver.start()
        drivers.append(driver)
        return driver

    yield make
    for driver in drivers:
        driver.stop()
