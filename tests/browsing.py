"""A headless Chromium, for tests that look at pages."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.marks import HANGS

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
    "--window-size=1280,1000",
)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser that records its console and its requests. Skips the test if there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = program
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield started
        finally:
            started.quit()


def until(browser: Any, condition: str, *arguments: Any) -> None:
    """Waits for a condition in JavaScript. It fails only where the browser is taken to hang."""
    end = time.monotonic() + HANGS
    while not browser.execute_script(f"return Boolean({condition})", *arguments):
        assert time.monotonic() < end, f"never {condition}: {browser.get_log('browser')}"
        time.sleep(0.1)


def requests(browser: Any) -> list[str]:
    """The addresses that were asked for since the last call, without those of Chromium's own first tab."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in asked if not one["documentURL"].startswith("chrome://")]


def resized(browser: Any, width: int, height: int = 900) -> None:
    """Gives the page the size of a phone (below 600) or of a desk."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
