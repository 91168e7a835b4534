"""A hub on this machine: enough of the Hugging Face hub's API to list and download repositories at a commit."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from merganser.hashes import sha256_of

TOKEN = "hf_of_one_who_accepted"
COMMIT = "0123456789abcdef0123456789abcdef01234567"  # of a hub whose repositories tests pin before it is there
PARQUET = "refs/convert/parquet"  # the branch of what the hub itself made of a data set; here it is main
POLL_S = 0.02  # after which a server sees that it is to end
LARGE = (".safetensors", ".bin", ".parquet")  # kept by their sha256, as the hub keeps large files


@dataclass
class Hub:
    """Repositories by kind and name, as their branch main has them.

    The commit follows from the content, so that no client takes one content for another's, unless `heads` names one, or
    `pinned` one for all.
    `earlier` has other commits by repository and commit; `asked` lists what was asked, `spoilt` the files sent with a
    byte changed. Large files are sent from another place, as the hub does it; listings come in pages of `page` entries.
    Files of `gated` repositories are for who brings TOKEN, and `refused` answers 403 to everybody.
    """

    folders: dict[str, Path]  # "models/org/name", "models/name" or "datasets/org/name"
    pinned: str = ""
    url: str = ""
    asked: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # bytes of each file's content
    spoilt: set[str] = field(default_factory=set)
    heads: dict[str, str] = field(default_factory=dict)
    earlier: dict[tuple[str, str], Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    page: int = 1000
    _commits: dict[Any, str] = field(default_factory=dict)

    def split(self, path: str) -> tuple[str, str]:
        """Split a path into the name of a repository, of one part or two, and the rest."""
        parts = path.split("/")
        count = 3 if "/".join(parts[:3]) in self.folders else 2 if "/".join(parts[:2]) in self.folders else 3
        return "/".join(parts[:count]), "/".join(parts[count:])

    def find(self, repository: str, revision: str) -> tuple[Path | None, str]:
        """Return a repository's folder at a revision, None if there is none, and the commit."""
        head = self.heads.get(repository) or self.pinned or self.commit(repository)
        commit = head if revision == "main" else revision
        return self.folders.get(repository) if commit == head else self.earlier.get((repository, commit)), commit

    def commit(self, repository: str) -> str:
        """Return the commit that a repository's content has: 40 hexadecimal digits of its files' names and bytes."""
        folder = self.folders.get(repository)
        files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
        about = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
        if about not in self._commits:
            named = [f"{sha256_of(path)} {path.relative_to(folder)}\n" for path in files if folder]
            self._commits[about] = hashlib.sha1("".join(named).encode()).hexdigest()
        return self._commits[about]

    def entry(self, folder: Path, path: Path) -> dict[str, Any]:
        """Describe a file or folder of a repository as the hub's tree does."""
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0}
        content = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git names it
        found = {"type": "file", "path": name, "oid": blob, "size": len(content)}
        if name.endswith(LARGE):
            found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return found


class Handler(BaseHTTPRequestHandler):
    """Answer the few requests the clients make."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes, and the second would wait 40 ms for the client

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        content = json.loads(body) if body.startswith("{") else parse_qs(body)
        self.answer(content.get("paths", []))

    def do_GET(self) -> None:
        self.answer([])

    def answer(self, paths: list[str]) -> None:
        """Find the repository and send what is asked of it."""
        path = unquote(urlsplit(self.path).path).strip("/").replace(PARQUET, "main")
        self.hub.asked.append(path)
        if path.startswith("api/"):
            repository, rest = self.hub.split(path.removeprefix("api/"))
            self.describe(repository, rest.split("/") if rest else [], paths)
        elif path.startswith("store/"):
            self.send_file(*self.place(path.removeprefix("store/")), stored=True)
        else:
            self.send_file(*self.place(path))

    def place(self, path: str) -> tuple[str, str, str]:
        """Split the path of a file into its repository, revision and name: <repository>/resolve/<revision>/<name>."""
        repository, rest = self.hub.split(path if path.startswith("datasets/") else f"models/{path}")
        _, revision, name = rest.split("/", 2)
        return repository, revision, name

    def describe(self, repository: str, rest: list[str], paths: list[str]) -> None:
        """Send a repository's description, tree, or the description of some paths."""
        if repository not in self.hub.folders:
            return self.refuse("RepoNotFound")
        folder, commit = self.hub.find(repository, rest[1] if rest[1:] else "main")
        if folder is None:
            return self.refuse("RevisionNotFound")
        files = sorted(folder.rglob("*"))
        if rest[:1] == ["tree"]:
            under = folder / "/".join(rest[2:])
            deep = "recursive=true" in self.path.lower()
            shown = [path for path in files if (under in path.parents if deep else path.parent == under)]
            return self.send_page([self.hub.entry(folder, path) for path in shown])
        if rest[:1] == ["paths-info"]:
            return self.send_json([self.hub.entry(folder, folder / path) for path in paths if (folder / path).exists()])
        siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files if path.is_file()]
        name = repository.partition("/")[2]
        return self.send_json({"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def send_page(self, entries: list[Any]) -> None:
        """Send a page of a listing, with the address of the next one in the header."""
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        headers, end = {"Content-Type": "application/json"}, start + self.hub.page
        if end < len(entries):
            separator = "&" if "?" in self.path else "?"
            address = f"{self.hub.url}{self.path.partition('&cursor=')[0]}{separator}cursor={end}"
            headers["Link"] = f'<{address}>; rel="next"'
        self.send(200, json.dumps(entries[start:end]).encode(), headers)

    def send_file(self, repository: str, revision: str, name: str, stored: bool = False) -> None:
        """Send a file's content, or for HEAD only what the client checks; of a large one only where it is stored."""
        if repository not in self.hub.folders:
            return self.refuse("RepoNotFound")
        if repository in self.hub.refused:
            return self.send(403, b"", {})
        if repository in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}" and not stored:
            return self.send(401, b"", {"X-Error-Code": "GatedRepo"})
        folder, commit = self.hub.find(repository, revision)
        if folder is None:
            return self.refuse("RevisionNotFound")
        if not (folder / name).is_file():
            return self.refuse("EntryNotFound")
        entry = self.hub.entry(folder, folder / name)
        content = bytearray((folder / name).read_bytes())
        if name in self.hub.spoilt:
            content[-1] ^= 1
        etag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if "lfs" in entry and not stored:
            kept = {"X-Linked-Etag": headers.pop("ETag"), "X-Linked-Size": str(entry["size"])}
            path = urlsplit(self.path).path
            return self.send(302, b"", headers | kept | {"Location": f"{self.hub.url}/store{path}"})
        start, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = bytes(content[int(start) : int(last) + 1 if last else None])
        if self.command != "HEAD":
            self.hub.sent.append(len(part))
        return self.send(206 if "Range" in self.headers else 200, part, headers)

    def refuse(self, code: str) -> None:
        """Say what is missing, as the hub says it."""
        self.send(404, b"", {"X-Error-Code": code})

    def send_json(self, content: Any) -> None:
        """Send JSON."""
        self.send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Receiving(Handler):
    """Take an upload into the one repository, as the hub does: large files before the commit, by their hashes."""

    def do_POST(self) -> None:
        body, path = self.rfile.read(int(self.headers.get("Content-Length", 0))), self.path.partition("?")[0]
        if path.endswith("/info/lfs/objects/batch"):
            wanted = [each["oid"] for each in json.loads(body)["objects"]]
            places = {oid: {"upload": {"href": f"{self.hub.url}/upload/{oid}"}} for oid in wanted}
            self.send_json({"objects": [{"oid": oid, "size": 1, "actions": place} for oid, place in places.items()]})
        elif path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(LARGE) else "regular" for name in names}
            self.send_json({"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]})
        else:
            for line in body.splitlines() if path.endswith("/commit/main") else ():
                self.write(**json.loads(line))
            one = f"{self.hub.url}/org/one"
            self.send_json({"url": one, "commitUrl": f"{one}/commit/1", "commitOid": "1", "errors": [], "warnings": []})

    def do_PUT(self) -> None:
        self.stored(self.path.rpartition("/")[2]).write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        self.send(200, b"", {})

    @property
    def repository(self) -> Path:
        """Return the folder of the one repository."""
        return next(iter(self.hub.folders.values()))

    def stored(self, oid: str) -> Path:
        """Return where an uploaded large file lies until it is committed."""
        return self.repository.with_name(oid)

    def write(self, key: str, value: dict[str, Any]) -> None:
        """Write a line of a commit into the repository."""
        if key == "file":
            (self.repository / value["path"]).write_bytes(base64.b64decode(value["content"]))
        if key == "lfsFile":
            self.stored(value["oid"]).rename(self.repository / value["path"])


@contextmanager
def serve(folders: dict[str, Path], pinned: str = "", handler: type[Handler] = Handler) -> Iterator[Hub]:
    """Serve repositories on loopback while the block lasts, all at the commit `pinned` where one is named."""
    hub = Hub(folders, pinned)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[POLL_S], daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
