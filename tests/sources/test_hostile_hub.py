"""A hub that trickles, loops, or answers with names, hashes and sizes of its own making: one message, in time."""

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

from merganser.errors import InputError
from merganser.sources import guarded
from merganser.sources.fetching import fetch_checkpoint
from merganser.sources.following import follow, look
from merganser.sources.named import fetch_named
from merganser.sources.pointers import HubPointer
from merganser.tasks.stage import end_well
from tests.hostile_hub import Answer, serve_hostile
from tests.hub import COMMIT
from tests.support import each
from tests.tiny_clip import write_clip

LONGEST_S = 20.0  # that a test waits for what the limits below end within a second


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a model to serve, with the client's cache in a folder of its own."""
    write_clip(tmp_path / "repo", "open_clip_model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "inner/cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


@contextmanager
def hostile(place: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Iterator[Path]:
    """Serve the model so; give the pointer to it."""
    pointer = place / "pointer.yaml"
    pointer.write_text(f"{{hub: org/clip, revision: '{COMMIT}'}}")
    with serve_hostile({"models/org/clip": place / "repo"}, COMMIT, **how) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield pointer


def files_outside(place: Path) -> set[str]:
    """Name what lies neither in the cache, nor in what the test itself made."""
    own = ("inner/cache", "repo", "out", "pointer.yaml")
    return {
        name
        for path in place.rglob("*")
        if not (name := str(path.relative_to(place))).startswith(own) and name != "inner"
    }


def refused(place: Path, pointer: Path, said: str) -> None:
    """Fetch the model; hold that it ends soon, with one message, and that nothing lies outside of the cache."""
    start, out = time.monotonic(), place / "out"
    out.mkdir(exist_ok=True)
    with pytest.raises(InputError, match=said) as raised:
        fetch_checkpoint(pointer, out)
    assert time.monotonic() - start < LONGEST_S
    assert "\n" not in str(raised.value)
    assert files_outside(place) == set()
    assert list(out.iterdir()) == []


def heads(**headers: str) -> Callable[[Answer], None]:
    """Change the headers of what is said of a file."""

    def change(answer: Answer) -> None:
        if "/resolve/" in answer.path and answer.method == "HEAD":
            answer.headers |= {name.replace("_", "-"): value for name, value in headers.items()}

    return change


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"X_Linked_Etag": '"../../../owned"', "ETag": '"../../../owned"'}, "which is not a file's hash"),
        ({"X_Linked_Etag": '"/tmp/owned"'}, "which is not a file's hash"),
        ({"X_Linked_Etag": '".."'}, "which is not a file's hash"),
        ({"X_Linked_Etag": '"' + "a" * 300 + '"'}, "which is not a file's hash"),
        ({"X_Repo_Commit": "../../../owned"}, "'../../../owned', which is not a commit"),
        ({"X_Repo_Commit": "f" * 40}, "answers with another commit"),
        ({"X_Linked_Size": "-5"}, "'-5', which is not a size"),
        ({"X_Linked_Size": "9" * 30}, "which is not a size"),
        ({"X_Linked_Size": "\u00b2"}, "'\u00b2', which is not a size"),
        ({"X_Linked_Size": "9" * 17}, "org/clip cannot be downloaded: The file is too large"),
    ],
)
def test_names_hashes_and_sizes_of_the_hubs_own_making_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], said: str
) -> None:
    with hostile(place, monkeypatch, change=heads(**headers)) as pointer:
        refused(place, pointer, said)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x/y", "http://[::1", "http://127.0.0.1:99999/x"])
def test_a_redirect_to_what_is_no_web_server_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    def change(answer: Answer) -> None:
        if "/resolve/" in answer.path:
            answer.status, answer.headers["Location"] = 302, address

    with hostile(place, monkeypatch, change=change) as pointer:
        refused(place, pointer, "which is no address of a web server")


def test_a_wait_that_is_no_number_is_not_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "out").mkdir()
    with hostile(place, monkeypatch, change=heads(Retry_After="\u00b2")) as pointer:
        fetch_checkpoint(pointer, place / "out")


def listing(change: Callable[[dict[str, Any]], object]) -> Callable[[Answer], None]:
    """Change the first entry of a listing."""

    def changed(answer: Answer) -> None:
        if "/tree/" in answer.path:
            entries = json.loads(answer.body)
            for entry in entries:
                if entry["path"] == "open_clip_model.safetensors":
                    change(entry)
            answer.body = json.dumps(entries).encode()

    return changed


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"size": -1}, "the size .*, which no file has"),
        ({"size": 2**60, "lfs": {"oid": "0" * 64, "size": 2**60, "pointerSize": 1}}, "size 1152921504606846976, which"),
        ({"size": "many"}, "the size .*, which no file has"),
        ({"lfs": {"oid": "../../x", "size": 3, "pointerSize": 1}}, "'../../x', which is not a hash"),
        ({"lfs": {}}, "listing cannot be read"),
        ({"path": None}, "listing cannot be read"),
        ({"path": "model\0.safetensors"}, "which is not a plain name"),
    ],
)
def test_a_listing_of_no_files_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], said: str
) -> None:
    with hostile(place, monkeypatch, change=listing(lambda own: own.update(entry))) as pointer:
        refused(place, pointer, said)


@pytest.mark.parametrize(
    "name", ["../../owned.json", "/tmp/owned.json", "a\\..\\owned.json", "x" * 300 + ".json", "a\0.json"]
)
def test_names_of_files_that_lead_elsewhere_are_refused_or_left(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def change(answer: Answer) -> None:
        if "/tree/" in answer.path:
            entries = json.loads(answer.body)
            entry = {"type": "file", "path": name, "oid": "0" * 40, "size": 2}
            answer.body = json.dumps([*entries, entry]).encode()

    with hostile(place, monkeypatch, change=change) as pointer:
        (place / "out").mkdir()
        with suppress(InputError):  # where it is one that would be taken
            fetch_checkpoint(pointer, place / "out")
        assert files_outside(place) == set()
        assert not Path("/tmp/owned.json").exists()


def test_a_commit_that_is_none_is_pinned_nowhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(answer: Answer) -> None:
        if "/revision/" in answer.path or answer.path.endswith("/clip"):
            answer.body = json.dumps(json.loads(answer.body) | {"sha": "../../owned"}).encode()

    with hostile(place, monkeypatch, change=change) as pointer:
        pointer.write_text("{hub: org/clip, follow: main}")
        with pytest.raises(InputError, match=r"main is at '\.\./\.\./owned', which is not a commit"):
            follow(pointer, "model")
        with pytest.raises(InputError, match="which is not a commit"):
            look(pointer, HubPointer(hub="org/clip", follow="main"), "model")
        with pytest.raises(InputError, match="which is not a commit"):
            fetch_named("org/clip", None)
        assert pointer.read_text() == "{hub: org/clip, follow: main}"


@pytest.mark.parametrize("by", [1, -1])
def test_a_wrong_size_is_said_to_be_one(place: Path, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    size = (place / "repo/open_clip_model.safetensors").stat().st_size + by
    for change in (
        heads(X_Linked_Size=str(size)),
        listing(lambda own: own["lfs"].update(size=size) or own.update(size=size)),
    ):
        with hostile(place, monkeypatch, change=change):
            said = rf"(announced {size} bytes, and sends|bytes of {size}, does not match)"
            with pytest.raises(InputError, match=said) as raised:
                fetch_named("org/clip", COMMIT)
        assert "no such path" not in str(raised.value)


def test_an_answer_that_never_ends_is_cut_off(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "SAID", 2**20)
    with hostile(place, monkeypatch, endless=True) as pointer:
        refused(place, pointer, "sends more than 1048576 bytes")


@pytest.mark.parametrize(("part", "status"), [("/resolve/", 200), ("/resolve/", 404), ("/api/", 200)])
def test_a_compressed_answer_which_may_have_any_size_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, part: str, status: int
) -> None:
    asked = set()

    def change(answer: Answer) -> None:
        asked.add(answer.asks.get("Accept-Encoding"))
        if part in answer.path and answer.method == "GET":
            answer.status, answer.body = status, gzip.compress(answer.body)
            answer.headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(answer.body))}

    with hostile(place, monkeypatch, change=change) as pointer:
        refused(place, pointer, "compresses its answer, although it was asked not to")
    assert asked == {"identity"}


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the limits, for the tests."""
    for name in ("ANSWER_S", "WINDOW_S", "PATIENCE_S"):
        monkeypatch.setattr(guarded, name, 1.0)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 60)
    monkeypatch.setattr(constants, "DEFAULT_ETAG_TIMEOUT", 60)


@each("how", ({"trickle_s": 0.05}, {"slow_s": 0.01}))
def test_a_hub_that_trickles_ends_in_time(place: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, float]) -> None:
    quick(monkeypatch)
    with hostile(place, monkeypatch, **how) as pointer:
        refused(place, pointer, "the hub answers too slowly")


def test_a_listing_without_an_end_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "PAGES", 20)

    def change(answer: Answer) -> None:
        if "/tree/" in answer.path:
            answer.headers["Link"] = f'<{address}{answer.path}>; rel="next"'

    with hostile(place, monkeypatch, change=change) as pointer:
        address = os.environ["HF_ENDPOINT"]
        refused(place, pointer, "listing has no end: 21 pages so far")


def test_redirects_in_a_circle_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(answer: Answer) -> None:
        answer.status, answer.headers["Location"] = 302, answer.path

    said = r"org/clip@.*the hub does not answer \(TooManyRedirects\)"
    with hostile(place, monkeypatch, change=change), pytest.raises(InputError, match=said):
        fetch_named("org/clip", COMMIT)


@pytest.mark.parametrize("headers", [{"Retry-After": "1000000"}, {"ratelimit": '"api";r=0;t=999999'}])
def test_a_hub_that_asks_to_wait_for_days_is_not_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    def change(answer: Answer) -> None:
        answer.status = 429
        answer.headers |= headers

    with hostile(place, monkeypatch, change=change) as pointer:
        refused(place, pointer, r"the hub asks to wait [0-9]+ s; try again after that")


def test_a_hub_that_fails_again_and_again_is_given_up_in_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    def change(answer: Answer) -> None:
        answer.status = 503

    with hostile(place, monkeypatch, change=change) as pointer:
        refused(place, pointer, "the hub has asked to wait for 1 s in all; try again later")


@pytest.mark.parametrize(("status", "said"), [(500, "500 Internal Server Error"), (410, "410 Gone")])
def test_a_download_that_fails_ends_by_the_source_and_the_hubs_answer(
    place: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    def change(answer: Answer) -> None:
        answer.status = status if "/resolve/" in answer.path else answer.status

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with hostile(place, monkeypatch, change=change) as pointer, pytest.raises(SystemExit) as ended:
        end_well(lambda argv: fetch_checkpoint(pointer, place / "out") and None)
    assert re.match(rf"{pointer}: the hub does not send it: .*{said}.*run again", str(ended.value.code))


def test_a_client_that_has_no_place_for_the_limits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    client = httpx2.Client(transport=httpx2.WSGITransport(lambda environment, start: []))
    monkeypatch.setattr(_http, "default_client_factory", lambda: client)
    with pytest.raises(InputError, match="has no place for the limits on a hub's answers"):
        guarded._client()
