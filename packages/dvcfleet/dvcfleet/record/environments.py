"""The environments of stages (Python, packages, machine), and uncommitted changes as patches, next to the ledger.

Each text is stored once, under its sha256, by which the ledger's lines name it. A patch restores the code by `git
apply` on the commit.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json, write_durably
from dvcfleet.errors import some
from dvcfleet.git import GitError, git, git_if_any
from dvcfleet.terminal.secrets import masked


def keep(path: Path, content: bytes) -> None:
    """Write a text under its digest, unless it is there or the disk is full."""
    if not is_intact(path):
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            write_durably(path, content)


def sha256(content: bytes) -> str:
    """Return the digest by which a line names a text, or the line before."""
    return hashlib.sha256(content).hexdigest()


def is_intact(path: Path) -> bool:
    """Tell whether a file exists with the bytes of the digest in its name."""
    try:
        return sha256(path.read_bytes()) == path.stem
    except OSError:
        return False


CHANGES = "changes"
# What git neither tracks nor ignores is code by its suffix: else it is data, which dvc.lock has, or may be a secret.
_CODE = ("py", "pyx", "ipynb", "sh", "R", "jl", "c", "cc", "cpp", "cu", "h", "hpp", "rs")
_LARGEST = 16 * 2**20  # bytes of such code: more is somebody's library, such as an environment
_NOT_LOCKS = ":(exclude,glob)**/dvc.lock"  # which a run changes


def current_commit(root: Path) -> tuple[str | None, bool | None]:
    """Return git's current commit, and whether tracked files but dvc.lock differ from it; None if there is none."""
    head = git_if_any(root, "rev-parse", "HEAD")
    if head is None:
        return None, None
    return head.strip(), git_if_any(root, "diff", "--quiet", "HEAD", "--", ".", _NOT_LOCKS) is None


def keep_changes(folder: Path, dirty: bool) -> str | None:
    """Store the uncommitted changes of the code around a state folder as a patch; return its digest.

    `dirty`: whether tracked files differ. Untracked code that git does not ignore is in the patch as new files; if
    there is too much of it, the patch's first line says so. None: no changes, a git error, or a full disk.
    """
    with suppress(GitError, OSError):
        root, left_out = folder.parent, b""
        unknown = unknown_code(root)
        if sum((root / name).stat().st_size for name in unknown) > _LARGEST:
            left_out = f"left out, neither tracked nor ignored by git: {some(unknown)}\n".encode()
            unknown = []
        if dirty or unknown or left_out:
            patch = left_out + _patch(root, folder, unknown)
            keep(changes_file(folder, sha256(patch)), patch)
            return sha256(patch)
    return None


def changes_file(folder: Path, digest: str) -> Path:
    """Return the path of a patch."""
    return folder / CHANGES / f"{digest}.patch"


def unknown_code(root: Path) -> list[str]:
    """List code files that git neither tracks nor ignores."""
    patterns = [f":(glob)**/*.{suffix}" for suffix in _CODE]
    listed = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *patterns).split("\0")
    return [name for name in listed if name and (root / name).is_file()]


def _patch(root: Path, folder: Path, unknown: list[str]) -> bytes:
    """Return the difference from the commit; git's index is a copy, in which the unknown files are announced."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        index = Path(scratch) / "index"
        shutil.copy2(root / git(root, "rev-parse", "--git-path", "index").strip(), index)
        environment = os.environ | {"GIT_INDEX_FILE": str(index)}
        if unknown:
            add = ("--literal-pathspecs", "add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(root, *add, given="\0".join(unknown), environment=environment)
        names = ("--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/")
        diff = git(root, "diff", "--binary", *names, "HEAD", "--", ".", _NOT_LOCKS, environment=environment)
    return os.fsencode(diff)


ENVIRONMENTS = "environments"
# Says which image a container was made of, as `name@sha256:...`, where nothing in the container does.
IMAGE = "DVCFLEET_IMAGE"
_BLAS = re.compile(r'"blas": \{\s*"name": r?"([^"]*)".*?"version": r?"([^"]*)"', re.S)
_MKL = re.compile(rb"\0(\d{8})\0Intel\(R\) (?:oneAPI )?Math Kernel Library Version")
_CUDA = re.compile(r"^cuda\b.*= '(.*)'$", re.M)


@cache
def environment() -> dict[str, Any]:
    """Describe the environment of commands: Python, every installed package, the machine, its GPUs and its container.

    `packages`: their versions; `files`: a sha256 over those of each package's own files, so that two builds of one
    version differ; `urls`: where packages came from that no index had.
    """
    packages: dict[str, Path] = {}
    for folder in sys.path:
        # By their folders' names: reading the metadata would take half a second.
        for info in sorted(Path(folder).glob("*.dist-info")):
            packages.setdefault(info.stem.rpartition("-")[0], info)
    packages = dict(sorted(packages.items()))
    files = {name: sha256(_own_files(path)) for name, path in _beside(packages, "RECORD")}
    urls = {
        name: json.loads(masked(path.read_text(encoding="utf-8")))
        for name, path in _beside(packages, "direct_url.json")
    }
    return {
        "python": platform.python_version(),
        "packages": {name: info.stem.rpartition("-")[2] for name, info in packages.items()},
        "files": files,
        "urls": urls,
        "blas": {name: " ".join(built) for name in ("numpy", "scipy") if (built := _found(_BLAS, name, "__config__"))}
        | _blas_of_torch(),
        "cuda": next(iter(_found(_CUDA, "torch", "version")), None),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _first_after(Path("/proc/cpuinfo"), "model name"),
        "processors": os.cpu_count(),
        "gpus": [
            _first_after(file, "Model") for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ],
        "gpu_driver": _first_after(Path("/proc/driver/nvidia/version"), "NVRM version"),
        "container": _container(),
    }


def _beside(packages: Mapping[str, Path], name: str) -> Iterator[tuple[str, Path]]:
    return ((package, info / name) for package, info in packages.items() if (info / name).is_file())


def _own_files(record: Path) -> bytes:
    """Return the lines of a package's list of files that do not depend on the place or tool of installation.

    Scripts name the environment's folder, the package's metadata folder names the installer, and installers compile
    modules.
    """
    told = f"{record.parent.name}/".encode()
    lines = record.read_bytes().splitlines()
    return b"\n".join(sorted([x for x in lines if x[:2] != b".." and x[-2:] != b",," and x[: len(told)] != told]))


def _found(pattern: re.Pattern[str], package: str, module: str) -> tuple[str, ...]:
    """Return a pattern's match in the file of an installed module, without importing it, which takes a second."""
    file = _installed(f"{package}/{module}.py")
    match = file and pattern.search(file.read_text(encoding="utf-8"))
    return match.groups() if match else ()


def _blas_of_torch() -> dict[str, str]:
    """Return the date of MKL's build where it is linked into torch, which is not imported either."""
    file = _installed("torch/lib/libtorch_cpu.so")
    with suppress(ValueError, struct.error):  # no library, or not a whole one
        match = next(filter(None, map(_MKL.search, _constants(file))), None) if file else None
        return {"torch": f"MKL of {match[1].decode()}"} if match else {}
    return {}


def _constants(path: Path) -> Iterator[bytes]:
    """Yield the sections of a library (ELF, 64 bits) that are neither code nor written to: its strings among them."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        (table,), (size, count) = struct.unpack_from("<Q", content, 40), struct.unpack_from("<HH", content, 58)
        for number in range(count):
            kind, flags, _, begin, length = struct.unpack_from("<4xIQQQQ", content, table + number * size)
            if (kind, flags) == (1, 2):
                yield content[begin : begin + length]


def _installed(name: str) -> Path | None:
    return next((path for folder in sys.path if (path := Path(folder, name)).is_file()), None)


def _container() -> str | None:
    """Return the image of the container around this process; None outside one, or if it is not known."""
    noted = Path("/run/.containerenv")  # Podman's; Docker says nothing in the container, Apptainer by a variable
    content = noted.read_text(encoding="utf-8") if noted.exists() else ""
    settings = dict(re.findall(r'^(\w+)="(.*)"$', content, re.M))
    podman = "@".join(settings[key] for key in ("image", "imageid") if settings.get(key))
    return os.environ.get(IMAGE) or podman or os.environ.get("APPTAINER_CONTAINER") or None


def _first_after(path: Path, key: str) -> str | None:
    """Return the value of the first line `key : value`."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def keep_environment(folder: Path, described: Mapping[str, Any]) -> str:
    """Write an environment's description under its digest, unless the disk is full; return the digest."""
    content = (json.dumps(described, indent=2, sort_keys=True) + "\n").encode()
    digest = sha256(content)
    keep(environment_file(folder, digest), content)
    return digest


def read_environment(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return an environment's description; None if it is lost. A damaged one of this process is written again."""
    path = environment_file(folder, digest)
    if not is_intact(path) and (not path.exists() or keep_environment(folder, environment()) != digest):
        return None
    return read_json(path) if is_intact(path) else None


def environment_file(folder: Path, digest: str) -> Path:
    """Return the path of an environment's description."""
    return folder / ENVIRONMENTS / f"{digest}.json"


def damaged_environments(folder: Path) -> list[Path]:
    """List descriptions of environments whose bytes differ from the digest in their names."""
    described = sorted((folder / ENVIRONMENTS).glob("[0-9a-f]" * 64 + ".*"))
    return [path for path in described if not is_intact(path)]
