"""What a server on loopback answers, as a browser asks it in the name of one page or another."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dvcfleet import web_guard
from dvcfleet.guarded_uvicorn import NAME
from tests import PYTHONPATH
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
APP = """
async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await receive()
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
"""
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start an application by uvicorn's command, as MLflow starts its own."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "hello.py").write_text(APP)
    environment = os.environ | {"UVICORN_HTTP": NAME, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "uvicorn", "hello:app", "--port", "0", "--no-access-log"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=folder, env=environment, stderr=log) as process,
    ):
        running = re.compile(r"running on http://127\.0\.0\.1:(\d+) ")
        wait_until(lambda: running.search((folder / "log").read_text()))
        yield int(running.findall((folder / "log").read_text())[0])
        process.terminate()


def asked(port: int, method: str = "GET", **headers: str) -> int:
    named = {name.replace("_", "-"): value.replace("PORT", str(port)) for name, value in headers.items()}
    return httpx.request(method, f"http://127.0.0.1:{port}/", headers=named).status_code


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:PORT"},
        {"Host": "[::1]:PORT"},
        {"Origin": "http://127.0.0.1:PORT", "Sec_Fetch_Site": "same-origin"},
        {"Origin": "http://localhost:PORT", "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
    ],
)
def test_own_pages_and_programs_are_answered(port: int, headers: dict[str, str]) -> None:
    assert [asked(port, method, **headers) for method in ("GET", "POST")] == [200, 200]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "elsewhere.example:PORT"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.elsewhere.example:PORT"},
        {"Host": "127.0.0.1:PORT@elsewhere.example"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:PORT"},
        {"Origin": "http://127.0.0.1:PORT.elsewhere.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_what_another_page_asks_is_refused(port: int, headers: dict[str, str]) -> None:
    assert [asked(port, method, **headers) for method in ("GET", "POST", "OPTIONS")] == [403, 403, 403]


def test_a_link_leads_here_and_a_form_does_not(port: int) -> None:
    assert [asked(port, method, **LINK) for method in ("GET", "POST", "DELETE")] == [200, 403, 403]


def test_a_request_without_a_host_or_with_two_is_refused(port: int) -> None:
    def answer(request: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request.encode())
            return connection.recv(1000).split(b"\r\n")[0]

    host = f"Host: 127.0.0.1:{port}\r\n"
    assert answer(f"GET / HTTP/1.1\r\n{host}\r\n").endswith(b"200 OK")
    for wrong in ("GET / HTTP/1.0\r\n\r\n", f"GET / HTTP/1.1\r\n{host}Host: elsewhere.example\r\n\r\n"):
        assert answer(wrong).split()[1] in (b"400", b"403")


def test_a_page_is_framed_and_embedded_by_its_own_server_alone_and_asks_no_other(port: int) -> None:
    headers = httpx.get(f"http://127.0.0.1:{port}/").headers
    assert headers["content-security-policy"].startswith("frame-ancestors 'self'; connect-src 'self' ")
    assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"


def test_a_websocket_is_opened_by_own_pages_and_programs_alone(port: int) -> None:
    address = f"ws://127.0.0.1:{port}/"
    for own in ({}, {"Origin": f"http://127.0.0.1:{port}"}):
        with connect(address, additional_headers=own) as opened:
            assert opened.recv() == "hello"
    for foreign in ({"Origin": "http://elsewhere.example"}, {"Origin": "http://127.0.0.1:1"}):
        with pytest.raises(InvalidStatus, match="403"):
            connect(address, additional_headers=foreign)


def test_prefects_server_answers_own_pages_and_who_has_its_secret(prefect_api: str) -> None:
    auth = httpx.BasicAuth(*os.environ["PREFECT_API_AUTH_STRING"].split(":"))
    port = httpx.URL(prefect_api).port

    def status(headers: dict[str, str], auth: httpx.Auth | None = None) -> int:
        return httpx.post(f"{prefect_api}/flows/filter", json={}, headers=headers, auth=auth).status_code

    assert status({}, auth) == status({"Origin": f"http://localhost:{port}"}, auth) == 200
    assert status({}) == status({}, httpx.BasicAuth("dvcfleet", "guessed")) == 401
    for foreign in ({"Host": f"elsewhere.example:{port}"}, {"Origin": "http://elsewhere.example"}):
        assert status(foreign, auth) == 403


def test_no_spelling_of_the_apis_address_goes_round_the_secret(prefect_api: str) -> None:
    connection = HTTPConnection(prefect_api.split("/")[2])
    for path in (
        "/api/flows/filter",
        "//api/flows/filter",
        "/api//flows/filter",
        "/%61pi/flows/filter",
        "/x/../api/flows/filter",
    ):
        for method in ("POST", "GET", "HEAD", "PUT"):
            connection.request(method, path, "{}", {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (401, 404, 405), f"{method} {path}"


def test_prefects_server_allows_no_other_page_to_ask(prefect_api: str) -> None:
    asking = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "content-type"}
    answer = httpx.options(f"{prefect_api}/deployments/x", headers=asking | {"Origin": "http://elsewhere.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_prefects_events_are_streamed_to_who_has_its_secret(prefect_api: str) -> None:
    address = prefect_api.replace("http", "ws") + "/events/in"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, subprotocols=["prefect"], additional_headers={"Origin": "http://elsewhere.example"})
    answers = []
    for token in ("guessed", os.environ["PREFECT_API_AUTH_STRING"]):
        with connect(address, subprotocols=["prefect"]) as opened:
            opened.send(f'{{"type": "auth", "token": "{token}"}}')
            try:
                answers.append(opened.recv())
            except Exception as error:  # it closes the connection
                answers.append(type(error).__name__)
    assert answers == ["ConnectionClosedError", '{"type":"auth_success"}']


async def logged_in(client: Any, headers: list[tuple[bytes, bytes]], path: str = "/") -> str:
    """Ask for a page as a client does; return what is sent."""
    sent: list[bytes] = []

    async def prefect(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"Prefect's own"})

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": headers,
        "client": client[0],
        "server": client[1],
    }
    await web_guard.Access(prefect, "dvcfleet:opensesame")(scope, send, send)
    return b"".join(sent).decode()


@pytest.fixture
def connection() -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        yield client.getsockname(), server.getsockname()


def test_a_page_of_prefects_gets_the_secret_for_a_browser_of_this_user(connection: Any) -> None:
    port, accepts = connection[1][1], (b"accept", b"text/html,*/*")
    page = asyncio.run(logged_in(connection, [accepts], "/runs/flow-run/1"))
    assert "ZHZjZmxlZXQ6b3BlbnNlc2FtZQ==" in page
    marked = (b"cookie", f"dvcfleet-{port}=1".encode())
    for headers in ([accepts, marked], []):
        assert asyncio.run(logged_in(connection, headers)) == "Prefect's own"


def test_a_connection_of_nobody_gets_no_secret(connection: Any) -> None:
    nobody = (("127.0.0.1", 1), connection[1])
    assert asyncio.run(logged_in(nobody, [(b"accept", b"text/html")])) == "Prefect's own"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_this_machine_gets_no_secret() -> None:
    stays = "import socket, sys; there = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = ["/usr/bin/env", "python3", "-c", stays, str(server.getsockname()[1])]
        with subprocess.Popen(command, user=65534, stdin=subprocess.PIPE, env={"PATH": os.defpath}, cwd="/") as other:
            client = server.accept()[1]
            ends = (client, server.getsockname())
            assert web_guard._owner(*ends) == 65534
            assert asyncio.run(logged_in(ends, [(b"accept", b"text/html")])) == "Prefect's own"
            other.communicate()
