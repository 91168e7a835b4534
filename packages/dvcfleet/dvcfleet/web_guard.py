"""Guard a loopback server against other web pages: a browser sends requests for any page that finds its port.

A page cannot forge `Host`, `Origin` and `Sec-Fetch-...`, which the browser writes. Prefect's server also asks for a
secret, which programs have, and its pages in a browser of this user.
"""

import base64
import hmac
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

_NAMES = ("127.0.0.1", "localhost", "[::1]")
_OWN_FETCHES = (b"same-origin", b"none")  # of one of the server's own pages; by the user, who typed the address
# What tells that the server is up, as for Prefect.
_OPEN = ("/api/health", "/api/ready")
# Prefect's pages keep what was typed into their log-in form under this name; no other server's pages can read it.
# The cookie holds nothing: it tells that the page's storage has the secret, so that Prefect's own page comes next.
_PAGE = """<!doctype html>
<html lang="en">
<title>Prefect</title>
<body>
<script>
  localStorage.setItem("prefect-password", "{secret}")
  document.cookie = "{cookie}; max-age=10; path=/; samesite=lax"
  if (document.cookie.includes("{cookie}")) location.reload()
  else document.body.textContent = "Prefect's pages open here once this browser takes cookies."
</script>
"""


class Guard:
    """An ASGI application that passes requests of its own pages and of programs on to `app`, and refuses all others."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 403 to a foreign Host or Origin, and to what another page embeds, fetches or posts."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        if why := refusal(scope):
            return await _refuse(scope, send, why)

        async def send_apart(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_kept_apart(scope["server"][1])]
            await send(message)

        return await self._app(scope, receive, send_apart)


def refusal(scope: Scope) -> str | None:
    """Return why a request is refused; None if it is not."""
    hosts, origins, fetched = [], [], {}
    for name, value in scope["headers"]:
        if name == b"host":
            hosts.append(value)
        elif name == b"origin":
            origins.append(value)
        elif name.startswith(b"sec-fetch-"):
            fetched[name] = value
    own_hosts, own = _own(scope["server"][1])
    if len(hosts) != 1 or hosts[0] not in own_hosts:
        return "its Host is not this server's"
    if origins:
        return None if own.issuperset(origins) else "its Origin is not one of this server's own pages"
    if fetched.get(b"sec-fetch-site", b"none") in _OWN_FETCHES:
        return None
    # A link on another page leads here: the browser shows the answer in a window, and only to the user.
    is_link = (fetched.get(b"sec-fetch-mode"), fetched.get(b"sec-fetch-dest")) == (b"navigate", b"document")
    return None if is_link and scope.get("method") == "GET" else "another site asks for it"


def own_origins(port: int) -> list[str]:
    """Return the origins of pages on a loopback server at a port."""
    return [f"http://{name}:{port}" for name in _NAMES] + ([f"http://{name}" for name in _NAMES] if port == 80 else [])


@lru_cache(maxsize=8)
def _own(port: int) -> tuple[frozenset[bytes], frozenset[bytes]]:
    origins = own_origins(port)
    return frozenset(each.removeprefix("http://").encode() for each in origins), frozenset(map(str.encode, origins))


@lru_cache(maxsize=8)
def _kept_apart(port: int) -> Headers:
    """Return headers that keep other pages from embedding the server's, and its pages from other servers."""
    policy = f"frame-ancestors 'self'; connect-src 'self' blob: data: {' '.join(own_origins(port)[:2])}"
    return [
        (b"content-security-policy", policy.encode()),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]


async def answer(send: Send, status: HTTPStatus, text: str, kind: str) -> None:
    """Send a whole answer, which no cache keeps."""
    body = text.encode()
    headers = {"content-type": f"{kind}; charset=utf-8", "content-length": str(len(body)), "cache-control": "no-store"}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def _refuse(scope: Scope, send: Send, why: str) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008, "reason": why})
    return await answer(send, HTTPStatus.FORBIDDEN, f"refused: {why}\n", "text/plain")


class Access:
    """An ASGI application that asks for the secret of `app`, Prefect's server, before that answers on its API.

    It gives the secret to Prefect's pages. Websockets are left to Prefect, whose first message brings the secret.
    """

    def __init__(self, app: App, secret: str) -> None:
        self._app = app
        self._secret = base64.b64encode(secret.encode()).decode()
        self._authorization = f"Basic {self._secret}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with 401 without the secret, and with a page that stores it in the browser where that has none yet."""
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            headers = dict(scope["headers"])
            given = headers.get(b"authorization", b"")
            if scope["path"].startswith("/api"):
                if scope["path"] not in _OPEN and not hmac.compare_digest(given, self._authorization):
                    text = '{"exception_message": "Unauthorized"}'  # as Prefect's own answer
                    return await answer(send, HTTPStatus.UNAUTHORIZED, text, "application/json")
            elif b"text/html" in headers.get(b"accept", b""):
                cookie = f"dvcfleet-{scope['server'][1]}=1"
                if cookie.encode() not in headers.get(b"cookie", b"") and is_asked_by_own_user(scope):
                    page = _PAGE.format(secret=self._secret, cookie=cookie)
                    return await answer(send, HTTPStatus.OK, page, "text/html")
        return await self._app(scope, receive, send)


def is_asked_by_own_user(scope: Scope) -> bool:
    """Tell whether a process of this user, or of root, is at the other end of a connection over loopback."""
    return _owner(tuple(scope["client"]), tuple(scope["server"])) in (0, os.getuid())


def _owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    local, remote = (_as_in_proc(*end) for end in (client, server))
    for table in filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))):
        for line in table.read_text(encoding="utf-8").splitlines()[1:]:
            columns = line.split()
            if columns[1].endswith(local) and columns[2].endswith(remote):
                return int(columns[7])
    return None


def _as_in_proc(host: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
