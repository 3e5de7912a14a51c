"""A Chromium for tests and pictures: the machine's, what tools/chromium.py has unpacked, or that of Playwright."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.optional import lacking

_UNPACKED = str(Path(sys.prefix, "chromium", "bin"))


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """A browser of its own. The test fails with one sentence where there is none."""
    try:
        from playwright.async_api import Error, async_playwright
    except ModuleNotFoundError:
        lacking("Playwright", "playwright")
    path = shutil.which("chromium") or shutil.which("chromium", path=_UNPACKED)
    async with async_playwright() as driver:
        try:
            browser = await driver.chromium.launch(args=["--no-sandbox", "--disable-gpu"], executable_path=path)
        except Error:
            lacking("Chromium (apt-get install chromium, or playwright install chromium)", "playwright")
        yield browser
        await browser.close()
