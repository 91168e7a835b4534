"""Pages of others that find the ports of `merganser ui`, in a real browser: they get nothing, and our own work."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Response

from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Toy
from tests.flows.chromium import MARKS, chromium
from tests.flows.test_ui import addresses, serving
from tests.support import python

pytestmark = MARKS

NAME = "elsewhere.example"  # whose address is this machine's
# What a page can ask of an address: each returns what it got.
ATTEMPTS = {
    "fetch": "fetch(at).then(answer => answer.text())",
    "fetch what it may not read": "fetch(at, {mode: 'no-cors'}).then(answer => answer.text())",
    "post": """fetch(at, {method: 'POST', body: '{"name": "intruder"}', headers: {'content-type': 'application/json'}})
        .then(answer => answer.text())""",
    "post what needs no question": """fetch(at, {method: 'POST', mode: 'no-cors', body: '{"name": "intruder"}'})
        .then(answer => answer.text())""",
    "patch": "fetch(at, {method: 'PATCH', body: '{}'}).then(answer => answer.text())",
    "image": """new Promise(done => { const image = new Image()
        image.onload = () => done('an image'); image.onerror = () => done(''); image.src = at })""",
    "script": """new Promise(done => { const script = document.createElement('script')
        script.onload = () => done('a script'); script.onerror = () => done(''); script.src = at
        document.head.append(script) })""",
    "websocket": """new Promise(done => { const socket = new WebSocket(at.replace('http', 'ws'), ['prefect'])
        socket.onopen = () => done('a socket'); socket.onerror = () => done('') })""",
}
FRAME = """at => new Promise(done => { const frame = document.createElement('iframe')
    frame.onload = () => done(); frame.src = at; document.body.append(frame) })"""
FORM = """([at, type]) => new Promise(done => { const frame = document.createElement('iframe'); frame.name = type
    document.body.append(frame)
    const form = document.createElement('form'), field = document.createElement('input')
    field.name = '{"name": "intruder", "x": "'; field.value = '"}'
    Object.assign(form, {action: at, method: 'POST', enctype: type, target: type})
    form.append(field); document.body.append(form); frame.onload = () => done(); form.submit() })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as started:
        yield started


@pytest.fixture(scope="module")
def other_port() -> Iterator[int]:
    """Serve an empty page of somebody else on another port, under whatever name."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Serve the pages of a repository that has been run, with its path."""
    chain = Toy(tmp_path_factory.mktemp("ran") / "toy", CHAIN, CHAIN_FILES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
    command = [*python(), "-m", "merganser.flows", "run"]
    subprocess.run(command, cwd=chain.path, env=environment | {"PYTHONPATH": PYTHONPATH}, check=True)
    with serving(chain.path, MLFLOW_TRACKING_URI=f"sqlite:///{chain.path}/mlflow.db") as process:
        yield addresses(process) | {"path": str(chain.path)}


def targets(pages: dict[str, str]) -> list[str]:
    """List what is worth asking for: the pages, and what changes something."""
    paths = {
        "Start": ["/", "/report/"],
        "Prefect": ["/", "/ui-settings", "/api/flows/", "/api/deployments/filter", "/api/events/in"],
        "MLflow": ["/", "/ajax-api/2.0/mlflow/experiments/create", "/api/2.0/mlflow/experiments/create"],
    }
    return [pages[name] + path for name, those in paths.items() for path in those]


def held(pages: dict[str, str]) -> tuple[Any, Any]:
    """Return what Prefect and MLflow know, as this user is told it."""
    (secret,) = Path(pages["path"]).glob(".dvcfleet/prefect/secret-*")
    auth = httpx.BasicAuth(*secret.read_text().split(":"))
    flows = httpx.post(f"{pages['Prefect']}/api/flows/filter", json={}, auth=auth).json()
    search = f"{pages['MLflow']}/api/2.0/mlflow/experiments/search"
    return sorted(flow["name"] for flow in flows), httpx.post(search, json={"max_results": 9}).json()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", NAME])
def test_a_page_on_another_port_gets_nothing_and_changes_nothing(
    browser: Browser, pages: dict[str, str], other_port: int, host: str
) -> None:
    before, answered = held(pages), list[str]()

    def note(response: Response) -> None:
        if str(other_port) not in response.url and response.status != 403:
            answered.append(f"{response.request.method} {response.url}: {response.status}")

    for at in targets(pages):
        page = browser.new_page()
        page.on("response", note)
        page.goto(f"http://{host}:{other_port}/")
        got = {kind: tried(page, script, at) for kind, script in ATTEMPTS.items()}
        assert set(got.values()) == {""}, f"{at}: {json.dumps(got)}"
        page.evaluate(FRAME, at)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            page.evaluate(FORM, [at, kind])
        page.close()
    assert answered == []
    assert held(pages) == before


def tried(page: Page, script: str, at: str) -> Any:
    return page.evaluate(f"at => ({script}).catch(() => '')", at)


def test_a_name_that_was_made_to_lead_here_gets_nothing(browser: Browser, pages: dict[str, str]) -> None:
    for at in targets(pages):
        page = browser.new_page()
        answer = page.goto(at.replace("127.0.0.1", NAME))
        assert answer
        assert (answer.status, answer.text().startswith("refused: its Host")) == (403, True)
        assert all(
            tried(page, ATTEMPTS[kind], "/api/flows/").startswith("refused") for kind in ("fetch", "post", "patch")
        )
        page.close()


def test_a_link_on_another_page_opens_ours_and_keeps_no_hold_of_it(
    browser: Browser, pages: dict[str, str], other_port: int
) -> None:
    page = browser.new_page()
    page.goto(f"http://{NAME}:{other_port}/")
    for at in (pages["Start"], pages["Prefect"], pages["MLflow"]):
        with page.expect_popup() as opening:
            page.evaluate("at => { window.opened = window.open(at) }", at)
        opening.value.wait_for_load_state()
        assert opening.value.title()
        assert page.evaluate("window.opened.closed")


def test_our_own_pages_lead_to_a_run_and_its_stages_without_a_password(browser: Browser, pages: dict[str, str]) -> None:
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(re.sub(r":\d+/.*|:.*", "", request.url.split("//")[-1])))
    page.goto(pages["Start"])
    name = page.locator("main a").first.inner_text()
    page.locator("main a").first.click()
    for words in (name, "Completed", "3 Task runs"):
        page.get_by_text(words).first.wait_for()
    assert page.locator("input[type=password]").count() == 0
    page.reload()
    page.get_by_text("3 Task runs").first.wait_for()
    page.goto(pages["Start"])
    page.get_by_role("link", name="MLflow").click()
    page.get_by_text("Experiments").first.wait_for()
    page.goto(pages["Start"].replace("127.0.0.1", "localhost"))
    assert page.title().endswith("Merganser")
    assert set(asked) <= {"127.0.0.1", "localhost"}


def test_prefects_pages_open_at_the_address_that_is_printed(browser: Browser, pages: dict[str, str]) -> None:
    for at in (pages["Prefect"], pages["Prefect"].replace("127.0.0.1", "localhost"), f"{pages['Prefect']}/v2/runs"):
        page = browser.new_context().new_page()
        page.goto(at)
        page.get_by_text("Completed").or_(page.get_by_text("Flow Runs")).first.wait_for()
        assert page.locator("input[type=password]").count() == 0
        page.context.close()
