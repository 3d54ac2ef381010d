"""A real browser, and a report opened in it; `.ci/browser` installs what this needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.audit.report.results import many_result, sample_result

from kvbaton.audit.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EXAMPLE = Path(__file__).parents[2] / "docs" / "data" / "audit-example.html"
"""Written by `kvbaton audit` after a real run."""

SIZES = {"phone": (360, 740), "desktop": (1280, 900)}
NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Opened:
    """A page, with what it complained of and asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, without a window; ``CHROMIUM`` names another one."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail("no Chromium on this machine; run: bash .ci/browser")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session", params=["sample", "many", "real"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report in which every part is there, one of many treatments, and that of a real run."""
    if request.param == "real":
        return EXAMPLE
    result = sample_result() if request.param == "sample" else many_result()
    return write_report(result, tmp_path_factory.mktemp("report"), trials=None).html


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    """What colours the reader likes."""
    return str(request.param)


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Width and height of the window."""
    return SIZES[request.param]


@pytest.fixture
def opened(browser: Browser, report: Path, size: tuple[int, int], scheme: str) -> Iterator[Opened]:
    """The report, opened from the disk."""
    wide, high = size
    options: dict[str, Any] = {"viewport": {"width": wide, "height": high}, "color_scheme": scheme}
    context = browser.new_context(**options)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(report.as_uri())
    yield found
    context.close()
