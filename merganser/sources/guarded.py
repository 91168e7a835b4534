"""The hub's client with limits: answers come in time, have the stated size, and names stay inside the cache.

huggingface_hub uses an answer's headers as file names, waits as long as it is told to, and follows a listing to its
end, so that a hub could write anywhere, and make a command hang. Each hub's address has its own folder of downloads.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore2
import httpx2

from merganser.errors import InputError

PUBLIC_HUB = "https://huggingface.co"
OTHERS = "endpoints"  # in a cache: those of other addresses


def hub_cache() -> Path:
    """Return the folder of huggingface_hub's downloads from the address in HF_ENDPOINT."""
    from huggingface_hub import constants

    return _of_address(Path(constants.HF_HUB_CACHE))


def data_set_cache() -> Path:
    """Return the folder of `datasets`' files from the address in HF_ENDPOINT."""
    from datasets import config

    return _of_address(Path(config.HF_DATASETS_CACHE))


@contextmanager
def in_hub_cache() -> Iterator[None]:
    """Have `datasets` and other libraries without an option for it download to the folder of HF_ENDPOINT's address."""
    from huggingface_hub import constants

    before = constants.HF_HUB_CACHE
    constants.HF_HUB_CACHE = str(hub_cache())
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before


def _of_address(cache: Path) -> Path:
    """Return the public hub's cache unchanged, to share it with other programs, and a folder in it for other hubs."""
    address = os.environ.get("HF_ENDPOINT", "").rstrip("/") or PUBLIC_HUB
    if address == PUBLIC_HUB:
        return cache
    readable = re.sub(r"\W+", "-", address.partition("://")[2])[:60]
    return cache / OTHERS / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:12]}"


CONNECT_S = 30.0
ANSWER_S = 60.0  # for what a hub says of its files, whole; and for the head of any answer
WINDOW_S, WINDOW_BYTES = 60.0, 2**20  # of a file's content at least so much comes in so long
WAIT_S = 300.0  # the longest wait that a hub may ask for
PATIENCE_S = 600.0  # for a request that fails, redirects or is put off again and again, and for a listing's pages
PAGES = 1_000  # of a listing
SAID = 2**27  # bytes of an answer
UNTOLD = 2**30  # bytes of a file whose size the hub did not say
MARK = "merganser"  # where a request carries what it was asked for, over all redirects

_ETAG = re.compile(r'(W/)?"?[0-9A-Za-z_+=.-]{1,128}"?')
_COMMIT = re.compile(r"[0-9a-f]{40}")
_AT_COMMIT = re.compile(r"/resolve/([0-9a-f]{40})/")
_WAIT = re.compile(r";\s*t=(\d+)")
_lock = threading.Lock()
_installed: list[Any] = []


@dataclass
class HubRequest:
    """The purpose of a request, and its start time."""

    path: str
    is_said: bool  # what the hub says of its files, and no file
    size: int | None  # of the file, as the hub announced it
    since: float = field(default_factory=time.monotonic)


class _Here(threading.local):
    """The state of a thread's requests."""

    deadline: float | None = None  # for the next bytes
    failing: tuple[float, float] | None = None  # since when, and the last time
    listing: tuple[str, int, float] | None = None  # its path, how many pages, since when


_here = _Here()
_sizes: dict[str, int] = {}  # by path, of the files that were asked for


def guard() -> None:
    """Apply the limits to this process's client of the hub; a private hub gets plain requests alone."""
    from huggingface_hub import constants
    from huggingface_hub.utils import set_client_factory

    if os.environ.get("HF_ENDPOINT", PUBLIC_HUB).rstrip("/") != PUBLIC_HUB:
        constants.HF_HUB_DISABLE_XET = True  # a downloader of its own, that no limit here reaches
    with _lock:
        if not _installed:
            set_client_factory(_client)
            _installed.append(True)


def _client() -> Any:
    """Return huggingface_hub's own client with the limits."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _check_request],
        "response": [*hooks["response"], _check_response],
    }
    transports: list[Any] = [client._transport, *filter(None, client._mounts.values())]  # None: without a proxy
    try:
        for transport in transports:
            transport._pool._network_backend = _Network(transport._pool._network_backend)
    except AttributeError as error:  # none of these names is promised
        reason = f"httpx2 {httpx2.__version__} has no place for the limits on a hub's answers ({error})"
        raise InputError(f"{reason}, so no hub is asked; install an earlier version of it") from error
    return client


def _check_request(request: Any) -> None:
    """Start a request's clock, and ask for uncompressed bytes; refuse one that has failed for too long."""
    request.headers["Accept-Encoding"] = "identity"  # a compressed answer may have any size
    now = time.monotonic()
    if _here.failing is not None and now - _here.failing[1] > WAIT_S + ANSWER_S:
        _here.failing = None  # it was given up
    if _here.failing is not None and now - _here.failing[0] > PATIENCE_S:
        raise _refusal(f"{_told(request)}: the hub has asked to wait for {PATIENCE_S:g} s in all; try again later")
    asked = request.extensions.get(MARK)
    if asked is None:
        path = request.url.path
        asked = request.extensions[MARK] = HubRequest(path, path.startswith("/api/"), _sizes.get(path))
    _here.deadline = asked.since + ANSWER_S
    _here.failing = (now if _here.failing is None else _here.failing[0], now)  # until it is answered


def _check_response(response: Any) -> None:
    """Refuse an answer whose names could lead out of the cache, or that is too long; limit its content."""
    request, headers, asked = response.request, response.headers, response.request.extensions[MARK]
    _check_names(request, headers)
    _check_wait(request, headers)
    _check_redirect(request, headers)
    if response.status_code < 300 or response.status_code in (401, 403, 404):
        _here.failing = None
    if asked.is_said:
        _check_page(request, asked, headers)
    length = _number(request, headers, "Content-Length")
    if request.method == "HEAD":
        linked = _number(request, headers, "X-Linked-Size")
        size = linked if linked is not None else None if response.is_redirect else length
        if size is not None:
            _sizes[asked.path] = size
        return
    if headers.get("Content-Encoding", "identity") != "identity":
        raise _refusal(
            f"{_told(request)}: the hub compresses its answer, although it was asked not to; nothing was kept"
        )
    is_file = not asked.is_said and response.status_code == 200
    if is_file and None not in (asked.size, length) and length != asked.size:
        raise _refusal(f"{_told(request)}: the hub announced {asked.size} bytes, and sends {length}; nothing was kept")
    response.stream = _Bounded(response, asked, _most(asked, length))


def _most(asked: HubRequest, length: int | None) -> int:
    if asked.is_said:
        return SAID
    return next((size for size in (length, asked.size) if size is not None), UNTOLD)


def _check_names(request: Any, headers: Mapping[str, str]) -> None:
    """Refuse headers that huggingface_hub would turn into unsafe file names."""
    for name in ("ETag", "X-Linked-Etag"):
        value = headers.get(name)
        if value is None or "/resolve/" not in request.url.path:
            continue
        if not _ETAG.fullmatch(value) or not value.removeprefix("W/").strip('".'):
            raise _refusal(f"{_told(request)}: the hub answers with {name} {value[:80]!r}, which is not a file's hash")
    commit = headers.get("X-Repo-Commit")
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise _refusal(f"{_told(request)}: the hub answers with {commit[:80]!r}, which is not a commit")
    at = _AT_COMMIT.search(request.url.path)
    if commit is not None and at is not None and at[1] != commit:
        raise _refusal(f"{_told(request)}: the hub answers with another commit, {commit}")


def _check_wait(request: Any, headers: Mapping[str, str]) -> None:
    waits = [headers.get("Retry-After", ""), *_WAIT.findall(headers.get("ratelimit", ""))]
    for wait in waits:
        if wait.strip().isdecimal() and (len(wait) > 9 or int(wait) > WAIT_S):
            raise _refusal(f"{_told(request)}: the hub asks to wait {wait[:20]} s; try again after that")


def _check_redirect(request: Any, headers: Mapping[str, str]) -> None:
    """Refuse a redirect to anything but a web server's address."""
    told = headers.get("Location", "")
    try:
        address = urlsplit(urljoin(str(request.url), told))
        leads = address.scheme in ("http", "https") and address.hostname and (address.port or 0) >= 0
    except ValueError:
        leads = False
    if not leads:
        raise _refusal(f"{_told(request)}: the hub redirects to {told[:80]!r}, which is no address of a web server")


def _check_page(request: Any, asked: HubRequest, headers: Mapping[str, str]) -> None:
    if 'rel="next"' not in headers.get("Link", ""):
        _here.listing = None
        return
    path, pages, since = _here.listing or (asked.path, 0, asked.since)
    if path != asked.path:
        pages, since = 0, asked.since
    _here.listing = (asked.path, pages + 1, since)
    if pages + 1 > PAGES or time.monotonic() - since > PATIENCE_S:
        raise _refusal(f"{_told(request)}: the hub's listing has no end: {pages + 1} pages so far")


def _number(request: Any, headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.strip().isdecimal() or len(value) > 18:
        raise _refusal(f"{_told(request)}: the hub answers with {name} {value[:40]!r}, which is not a size")
    return int(value)


def _refusal(message: str) -> InputError:
    """Return the error for an answer; its request is not repeated."""
    _here.deadline = _here.failing = _here.listing = None
    return InputError(message)


def _told(request: Any) -> str:
    return str(request.url.copy_with(query=None, username=None, password=None))


class _Bounded(httpx2.SyncByteStream):
    """The content of an answer, limited in time and size."""

    def __init__(self, response: Any, asked: HubRequest, most: int) -> None:
        self.inner, self.request, self.asked, self.most = response.stream, response.request, asked, most

    def __iter__(self) -> Iterator[bytes]:
        total, since, start = 0, 0, time.monotonic()
        pieces = iter(self.inner)
        while True:
            _here.deadline = self.asked.since + ANSWER_S if self.asked.is_said else start + WINDOW_S
            piece = next(pieces, None)
            if piece is None:
                return
            total += len(piece)
            if total > self.most:
                raise _refusal(f"{_told(self.request)}: the hub sends more than {self.most} bytes; nothing was kept")
            if total - since >= WINDOW_BYTES:
                since, start = total, time.monotonic()
            yield piece

    def close(self) -> None:
        _here.deadline = None
        self.inner.close()


class _Through:
    """Delegate to an inner object everything that a class does not define."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Network(_Through):
    """A network stream whose reads end at the deadline of the thread's request, however slowly bytes arrive."""

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *given: Any, **options: Any) -> Any:
        seconds = CONNECT_S if timeout is None else min(timeout, CONNECT_S)
        return _Stream(self.inner.connect_tcp(host, port, seconds, *given, **options))


class _Stream(_Through):
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = _here.deadline
        if deadline is None:
            return bytes(self.inner.read(max_bytes, timeout=timeout))
        left = deadline - time.monotonic()
        if left > 0 and (timeout is None or timeout > left):
            try:
                return bytes(self.inner.read(max_bytes, timeout=left))
            except httpcore2.ReadTimeout:
                left = 0
        if left <= 0:
            raise _refusal("the hub answers too slowly; try again later, or ask another hub by HF_ENDPOINT")
        return bytes(self.inner.read(max_bytes, timeout=timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.inner.write(buffer, timeout=CONNECT_S if timeout is None else timeout)

    def start_tls(self, *given: Any, **options: Any) -> Any:
        return _Stream(self.inner.start_tls(*given, **options))
