"""Debian's Chromium, driven by playwright. A browser that playwright would download is never used."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Set to `required` by .ci/run, where a test that is skipped would be one that is never run.
VARIABLE = "LABS_BROWSER"
MISSING = "there is no Chromium on this machine (on Debian: apt-get install chromium)"


class NoBrowser(Exception):
    """There is no browser to test with."""


def find_chromium() -> str:
    """The path of an installed Chromium; raises NoBrowser without one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise NoBrowser(MISSING)
    return found


def is_required() -> bool:
    """Whether a machine without a browser fails the tests."""
    return os.environ.get(VARIABLE) == "required"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser. Raises NoBrowser where none is installed."""
    options = ["--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # which Chromium demands of root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=options)
        try:
            yield browser
        finally:
            browser.close()
