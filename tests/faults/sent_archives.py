"""Archives as somebody may send them: any tree in the bundle, any member, with digests that are right."""

import hashlib
import json
import os
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from merganser.flows.evidence.archive.form import write_archive

LINK, SUBMODULE, FILE, FOLDER = "120000", "160000", "100644", "40000"
STAGE = "stages:\n  a:\n    cmd: touch ran\n    outs: [{out}]\n"
LOCK = (
    "schema: '2.0'\nstages:\n  a:\n    cmd: touch ran\n    outs:\n"
    "    - path: {out}\n      hash: md5\n      md5: {md5}\n      size: 5\n"
)
EVIL = b"evil\n"


@dataclass(frozen=True)
class Link:
    """A link in git's tree."""

    target: str


@dataclass(frozen=True)
class Submodule:
    """A commit of another repository in git's tree."""


@dataclass(frozen=True)
class Trees:
    """A folder of ten folders of ten folders and so on: a few hundred bytes in git's store, 100 million files."""


Entry = str | bytes | Link | Submodule | Trees | None  # None: not there, of what every archive here has


@dataclass(frozen=True)
class Sent:
    """What an archive holds: `tree`, the code in its bundle; `committed`, the commit's if it is another; members."""

    tree: Mapping[str, Entry] = field(default_factory=dict)
    committed: Mapping[str, Entry] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    objects: tuple[bytes, ...] = ()


def md5_of(content: bytes) -> str:
    """Return the name of an object: of a listing with the suffix `.dir`."""
    return hashlib.md5(content).hexdigest() + ".dir" * content.startswith(b"[")


def listing(*names: str, md5: str = hashlib.md5(EVIL).hexdigest()) -> bytes:
    """Give DVC's listing of a folder with these files."""
    return json.dumps([{"md5": md5, "relpath": name} for name in names]).encode()


def stage(out: str, content: bytes = EVIL) -> dict[str, Entry]:
    """Give a dvc.yaml and a dvc.lock whose one stage wrote an output of this content."""
    return {"dvc.yaml": STAGE.format(out=json.dumps(out)), "dvc.lock": LOCK.format(out=out, md5=md5_of(content))}


def send(sent: Sent, path: Path, scratch: Path) -> Path:
    """Write such an archive."""
    repo, base = scratch / "repo", {".dvc/config": "", **stage("out.txt")}
    (repo / "refs").mkdir(parents=True)
    (repo / "HEAD").write_text("ref: refs/heads/comparison\n")
    head = _commit(repo, base | {**(sent.tree if sent.committed is None else sent.committed)})
    refs = {"refs/heads/comparison": head, "refs/archive/workspace": _commit(repo, base | {**sent.tree})}
    (repo / "packed-refs").write_text("".join(f"{commit} {ref}\n" for ref, commit in refs.items()))
    bundle = scratch / "bundle"
    command = ["git", "-C", str(repo), "bundle", "create", "-q", str(bundle), *refs]
    subprocess.run(command, check=True, env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull})
    members = {"code.bundle": bundle}
    contents = {f"files/{name}": content for name, content in sent.files.items()}
    for content in sent.objects:
        name = md5_of(content)
        contents[f"objects/{name[:2]}/{name[2:]}"] = content
    for number, (name, content) in enumerate(contents.items()):
        members[name] = scratch / str(number)
        members[name].write_bytes(content)
    with path.open("wb") as file:
        write_archive(file, members)
    return path


def _commit(repo: Path, entries: Mapping[str, Entry]) -> str:
    who = "T <t@x> 0 +0000"
    text = f"tree {_tree(repo, entries)}\nauthor {who}\ncommitter {who}\n\nx\n"
    return _object(repo, "commit", text.encode())


def _tree(repo: Path, entries: Mapping[str, Entry]) -> str:
    """Write a tree as git stores it, which then has any name."""
    found, folders = dict[str, tuple[str, str]](), dict[str, dict[str, Entry]]()
    for name, entry in entries.items():
        first, _, rest = name.partition("/")
        if rest and entry is not None:
            folders.setdefault(first, {})[rest] = entry
        elif isinstance(entry, Submodule):
            found[first] = SUBMODULE, "1" * 40
        elif isinstance(entry, Trees):
            found[first] = FOLDER, _trees(repo)
        elif isinstance(entry, Link):
            found[first] = LINK, _object(repo, "blob", entry.target.encode())
        elif entry is not None:
            found[first] = FILE, _object(repo, "blob", entry.encode() if isinstance(entry, str) else entry)
    found |= {first: (FOLDER, _tree(repo, inside)) for first, inside in folders.items()}
    order = sorted(found, key=lambda name: f"{name}/" if found[name][0] == FOLDER else name)
    lines = (f"{found[name][0]} {name}\0".encode() + bytes.fromhex(found[name][1]) for name in order)
    return _object(repo, "tree", b"".join(lines))


def _trees(repo: Path) -> str:
    mode, name = FILE, _object(repo, "blob", b"")
    for _ in range(8):
        line = bytes.fromhex(name)
        mode, name = FOLDER, _object(repo, "tree", b"".join(f"{mode} {n}\0".encode() + line for n in range(10)))
    return name


def _object(repo: Path, kind: str, content: bytes) -> str:
    """Write an object into git's store; return its name."""
    whole = f"{kind} {len(content)}\0".encode() + content
    name = hashlib.sha1(whole).hexdigest()
    path = repo / "objects" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zlib.compress(whole))
    return name
