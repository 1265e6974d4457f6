"""Chromium, the browser in which the web page is tested: from PATH, or one of Debian's packages.

``python -m tests.support.servers.chromium`` installs a package. The headless shell is the same engine without the parts that
draw a browser's windows, and takes less than half of the processor time.
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

_PACKAGES = ("chromium-headless-shell", "chromium")
_NAMES = (*_PACKAGES, "chromium-browser", "google-chrome")
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
    if (found := binary()) is not None:
        return found
    try:
        debian.install("the web page is tested in Chromium", _PACKAGES[0])
    except UsageError:  # other releases of Debian have no such package
        debian.install("the web page is tested in Chromium", _PACKAGES[1])
    found = binary()
    if found is None:
        raise UsageError("the packages of Chromium have no program: install one of " + ", ".join(_NAMES))
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
