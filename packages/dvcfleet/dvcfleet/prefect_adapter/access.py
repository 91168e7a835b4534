"""Who may use Prefect's server: programs that have its secret, and its pages in a browser of this user."""

import base64
import hmac
import os
import socket
import sys
from http import HTTPStatus
from pathlib import Path

from dvcfleet.web_guard import App, Receive, Scope, Send, answer

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
