"""Chromium, the browser in which the web page is tested: from PATH, or Debian's package.

``python -m tests.support.servers.chromium`` installs the package.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from forebay.model.errors import UsageError
from tests.support.servers import debian

_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: nothing that asks another host, and no sandbox: tests run as root, and show only their own pages
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def binary() -> Path | None:
    """None where there is none yet."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return Path(found) if found else None


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    if binary() is None:
        debian.install("the web page is tested in Chromium", "chromium")
    found = binary()
    if found is None:
        raise UsageError("the package chromium has no program chromium: install one of " + ", ".join(_NAMES))
    return found


@contextmanager
def running() -> Iterator[Browser]:
    """A headless browser with an empty profile. Raises UsageError where Chromium is missing."""
    program = binary()
    if program is None:
        raise UsageError("Chromium is not installed: make services installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(program), headless=True, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
