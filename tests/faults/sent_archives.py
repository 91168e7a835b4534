"""Archives as somebody may send them: any tree in the bundle, any member, with digests that are right."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.archive_form import write_archive

LINK, SUBMODULE, FILE = "120000", "160000", "100644"
STAGE = "stages:\n  a:\n    cmd: touch ran\n    outs: [{out}]\n"
LOCK = "schema: '2.0'\nstages:\n  a:\n    cmd: touch ran\n    outs:\n    - path: {out}\n      hash: md5\n      md5: {md5}\n      size: 5\n"
EVIL = b"evil\n"


@dataclass(frozen=True)
class Link:
    """A link in git's tree."""

    target: str


@dataclass(frozen=True)
class Submodule:
    """A commit of another repository in git's tree."""


Entry = str | bytes | Link | Submodule | None  # None: not there, of what every archive here has


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
    scratch.mkdir(parents=True)
    _git(scratch, "init", "-q", "--bare", "-b", "comparison", "repo")
    repo, base = scratch / "repo", {".dvc/config": "", **stage("out.txt")}
    head = _commit(repo, base | {**(sent.tree if sent.committed is None else sent.committed)})
    for ref, commit in (("heads/comparison", head), ("archive/workspace", _commit(repo, base | {**sent.tree}))):
        _git(repo, "update-ref", f"refs/{ref}", commit)
    bundle = scratch / "bundle"
    _git(repo, "bundle", "create", "-q", str(bundle), "refs/heads/comparison", "refs/archive/workspace")
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
    return _git(repo, "-c", "user.name=T", "-c", "user.email=t@x", "commit-tree", "-m", "x", _tree(repo, entries))


def _tree(repo: Path, entries: Mapping[str, Entry]) -> str:
    """Write a tree by `git mktree`, which takes any name."""
    lines, folders = [], dict[str, dict[str, Entry]]()
    for name, entry in entries.items():
        first, _, rest = name.partition("/")
        if entry is None:
            continue
        if rest:
            folders.setdefault(first, {})[rest] = entry
        elif isinstance(entry, Submodule):
            lines.append(f"{SUBMODULE} commit {'1' * 40}\t{first}")
        else:
            mode = LINK if isinstance(entry, Link) else FILE
            lines.append(f"{mode} blob {_blob(repo, entry.target if isinstance(entry, Link) else entry)}\t{first}")
    lines += [f"040000 tree {_tree(repo, inside)}\t{first}" for first, inside in folders.items()]
    return _git(repo, "mktree", "-z", "--missing", given="".join(f"{line}\0" for line in lines).encode())


def _blob(repo: Path, content: str | bytes) -> str:
    return _git(repo, "hash-object", "-w", "--stdin", given=content.encode() if isinstance(content, str) else content)


def _git(folder: Path, *args: str, given: bytes = b"") -> str:
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(folder), *args]
    done = subprocess.run(command, input=given, capture_output=True, check=True, env=environment)
    return os.fsdecode(done.stdout).strip()
