"""The start page, the report and the docs in a real browser: at a desk and on a phone, light and dark.

The screenshots of all are in `build/screenshots`.
"""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page

from merganser.flows.pages.start_page import start_page
from tests.flows.chromium import MARKS, chromium
from tests.support import python
from tests.tiny import ROOT

SCREENSHOTS = ROOT / "build/screenshots"
PAGES = {
    "start": "",
    "report": "report/",
    "docs": "docs/",
    "methods": "docs/methods/spectral.html",
    "table": "docs/methods/index.html",
}
VIEWS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
# The lightness of the page's own background, from 0 to 255.
LIGHTNESS = """() => {
  const colours = [document.body, document.documentElement].map(each => getComputedStyle(each).backgroundColor)
  const seen = colours.find(each => !each.endsWith(", 0)"))
  return Math.max(...seen.match(/\\d+/g).slice(0, 3).map(Number))
}"""

pytestmark = MARKS


@pytest.fixture(scope="module")
def site(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the pages of a finished comparison, with the docs."""
    root = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("pages") / "tiny", symlinks=True))
    command = [*python(), "-m", "mkdocs", "build", "-f", str(ROOT / "mkdocs.yml"), "-d", str(root / "build/site")]
    subprocess.run(command, check=True, capture_output=True)
    services = {"Prefect": "http://127.0.0.1:1", "MLflow": "http://127.0.0.1:2"}
    server = uvicorn.Server(uvicorn.Config(start_page(root, services), log_level="warning"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def wrong(browser: Browser) -> list[str]:
    """What a page complained of: errors on the console, what it could not load, and what it asked others for."""
    return []


def opened(browser: Browser, address: str, width: int, scheme: Any, wrong: list[str]) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    here = address[: address.index("/", 8)]
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("response", lambda response: response.status >= 400 and wrong.append(f"{response.status} {response.url}"))
    page.on("request", lambda request: request.url.startswith((here, "data:")) or wrong.append(request.url))
    page.goto(address)
    return page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_width_and_scheme_and_complains_of_nothing(
    browser: Browser, site: str, wrong: list[str], name: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width, scheme in VIEWS:
        page = opened(browser, site + PAGES[name], width, scheme, wrong)
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"
        lightness = page.evaluate(LIGHTNESS)
        assert lightness < 80 if scheme == "dark" else lightness > 200, f"{name}, {scheme}: background {lightness}"
        page.close()
    assert wrong == []


def test_the_mean_column_of_the_report_is_in_view_on_a_phone(browser: Browser, site: str, wrong: list[str]) -> None:
    page = opened(browser, f"{site}report/", 390, "light", wrong)
    box = page.locator("table.scores thead th", has_text="mean").first.bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_a_search_in_the_docs_finds_a_method(browser: Browser, site: str, wrong: list[str]) -> None:
    page = opened(browser, f"{site}docs/", 1280, "light", wrong)
    page.locator("input[name=query]").fill("tsv_m")
    page.locator(".md-search-result__link").first.wait_for()
    assert wrong == []
