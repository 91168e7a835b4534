"""Damage to the files that a repository's tools keep: each file in each way, and what the commands then say and do.

`python -m tests.faults.damaged REPOSITORY FOLDER [--sample]` tries them in a finished repository, or each way in one
file, prints what is wrong and the count, and exits with 1 if anything is. The commands run in forks of one process that
has imported what they import; each gets a copy of the repository at one place, so that DVC's databases, which it keeps
by the repository's path, are those of the copy. PREFECT_API_URL names a server for the runs.
"""

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import os
import random
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.faults.whole import entries, is_pure

COMMANDS = (("status",), ("run", "--workers", "2"), ("lineage", "verify"))
CODES = (0, 1, 2, 75)
MODULES = "modules.txt"  # which a command imported
# Files that are there only at times: while a run is at work, or after one that was killed.
AT_TIMES = ("journal", "at-work", "run.json")


def _write(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        fresh(path).write_bytes(content)

    return damage


def fresh(path: Path) -> Path:
    """Take a file away that may be a link into DVC's cache, or not be there; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def _half(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b'{"name": "amber-fox", "entry": {"cmd": "echo"}}\n'
    fresh(path).write_bytes(content[: len(content) // 2])


def _random(path: Path) -> None:
    """Put random bytes in the place of all of a small file, of the middle of a large one."""
    content = path.read_bytes() if path.exists() else bytes(100)
    start = len(content) // 2 if len(content) > 100_000 else 0
    noise = random.Random(0).randbytes(min(len(content), 20_000))
    fresh(path).write_bytes(content[:start] + noise + content[start + len(noise) :])


def _folder(path: Path) -> None:
    fresh(path).mkdir()


def _unreadable(path: Path) -> None:
    if not path.exists():
        path.write_text("{}\n")
    path.chmod(0)


WAYS: dict[str, Callable[[Path], None]] = {
    "empty": _write(b""),
    "half": _half,
    "NULs": lambda path: _write(bytes(path.stat().st_size if path.exists() else 100))(path),
    "random": _random,
    "other JSON": _write(b'{"name": 5, "entry": [1], "run_id": {}, "numbers": {"a": 1}}\n'),
    "a JSON list": _write(b"[1, 2]\n"),
    "folder": _folder,
    "no permission": _unreadable,
}


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    command: str
    code: int
    text: str


def try_out(repo: Path, place: Path, path: str, way: str) -> list[Said]:
    """Damage a file of a copy of a repository at `place`, and run the commands there; return what each said.

    `path`: from the folder with the repository and DVC's databases.
    """
    subprocess.run(["rm", "-rf", str(place)], check=True)
    subprocess.run(["cp", "-a", str(repo), str(place)], check=True)
    WAYS[way](place / path)
    return [_in_fork(place, command, is_mighty=way != "no permission") for command in COMMANDS]


def _in_fork(place: Path, command: tuple[str, ...], is_mighty: bool = True) -> Said:
    output = place / "output.txt"
    process = os.fork()
    if not process:
        _become(place, command, is_mighty, output)
    _, status = os.waitpid(process, 0)
    return Said(" ".join(command), os.waitstatus_to_exitcode(status), output.read_text(errors="replace"))


def _become(place: Path, command: tuple[str, ...], is_mighty: bool, output: Path) -> None:
    """Be the command line, and end."""
    code = 99
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if not is_mighty:
            obey_permissions()
        os.chdir(place / "repo")
        sys.argv = ["merganser", *command]
        from merganser.flows.commands.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            (place / MODULES).write_text("\n".join(sys.modules))
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def obey_permissions() -> None:
    """Give up what lets root read and write what it has no permission to, for this process and those it starts."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)  # the version of the call; no capability
    if libc.prctl(28, 3, 0, 0, 0) or libc.capset(header, none):  # 28, 3: programs that it starts get none back
        raise OSError(ctypes.get_errno(), "the capabilities of root cannot be given up")


def files_of(place: Path) -> list[str]:
    """List the files to damage, one of each kind, from the folder with the repository and DVC's databases."""
    repo = place / "repo"
    cache = repo / ".dvc/cache/files"
    state = [*(repo / ".dvcfleet").glob("*"), *(repo / ".dvcfleet/environments").glob("*")]
    found = [
        *(path for path in state if path.is_file()),
        *(repo / ".dvcfleet" / name for name in AT_TIMES),
        *sorted((repo / ".dvcfleet/logs").glob("*"))[:1],
        *(path for path in (repo / ".dvc/tmp").glob("*") if path.is_file()),
        *(repo / name for name in (".dvc/config", "dvc.lock", "params.yaml", "mlflow.db") if (repo / name).exists()),
        *sorted(cache.glob("md5/*/*.dir"))[:1],
        *[path for path in sorted(cache.glob("md5/*/*")) if path.suffix != ".dir"][:1],
        *[path for path in sorted((repo / ".dvc/cache/runs").glob("*/*/*")) if path.is_file()][:1],
        *sorted(repo.glob("mlartifacts/**/index.html"))[:1],
        *sorted((place / "site").glob("**/*.db")),
    ]
    return [str(path.relative_to(place)) for path in dict.fromkeys(found)]


def faults(path: str, said: list[Said], place: Path, before: dict[str, str]) -> Iterator[str]:
    """Say what is wrong with what the commands said of a damaged file, or left behind."""
    named, names = False, [path, *links_of(place, path)]
    for each in said:
        named = named or any(is_named(name, each.text) for name in names)
        if "Traceback" in each.text:
            yield f"{each.command}: a traceback ({each.text.strip().splitlines()[-1]})"
        elif each.code not in CODES:
            yield f"{each.command}: exit code {each.code}"
        elif each.code and not named:
            yield f"{each.command}: exit code {each.code}, and it does not name the file: {each.text.strip()[:300]}"
    if said[-1].code == 0:
        after = contents(place / "repo")
        differing = [name for name, digest in before.items() if after.get(name, digest) != digest]
        # What is of no result of the comparison's may be anything, as long as the commands go on.
        if lies := [
            name for name in differing if name.startswith(("data/", "mlartifacts/", ".dvc/cache/", "dvc.lock"))
        ]:
            yield f"lineage verify finds nothing, and these are not what they were: {', '.join(lies[:3])}"


def links_of(place: Path, path: str) -> list[str]:
    """List the outputs that are hard links to a file of DVC's cache: to damage one is to damage all."""
    damaged = place / path
    if not damaged.is_file() or "/.dvc/cache/files/" not in f"/{path}":
        return []
    files = (file for file in (place / "repo/data").rglob("*") if file.is_file())
    return [str(file.relative_to(place)) for file in files if file.samefile(damaged)]


def is_named(path: str, text: str) -> bool:
    """Tell whether a text names a file, or the folder of DVC's or of the state that it is in."""
    folder = Path(path).parent.name
    return Path(path).name in text or (folder != "repo" and folder in text)


def contents(repo: Path) -> dict[str, str]:
    """Return the digest of each file that holds a result or evidence of one, by its path.

    Of dvc.lock only the outputs count that are pure functions of their stages' inputs, where others are among them.
    """
    folders = ("data", "mlartifacts", ".dvc/cache/files")
    files = [file for folder in folders for file in (repo / folder).rglob("*") if file.is_file()]
    names = {str(file.relative_to(repo)): file for file in (*files, repo / "dvc.lock") if file.is_file()}
    found = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in names.items() if is_pure(name)}
    outs = [(stage, out) for stage, entry in entries(repo).items() for out in entry.get("outs", ())]
    if any(not is_pure(out["path"]) for _, out in outs):
        found.pop("dvc.lock", None)
    return found | {f"dvc.lock {stage}: {out['path']}": out["md5"] for stage, out in outs if is_pure(out["path"])}


def prepare(repository: Path, folder: Path) -> tuple[Path, Path]:
    """Copy a finished repository to the place where the commands run, and keep a copy; return copy and place.

    What the commands import there, this process imports too: the forks begin with it.
    """
    kept, place = folder / "kept", folder / "place"
    place.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(repository), str(place / "repo")], check=True)
    for name in ("SITE_CACHE", "SYSTEM_CONFIG", "GLOBAL_CONFIG"):
        os.environ[f"DVC_{name}_DIR"] = str(place / name.partition("_")[0].lower())
    if (place / "repo/mlflow.db").exists():  # its artifacts are at a path
        subprocess.run(["rm", "-rf", "mlflow.db", "mlartifacts"], cwd=place / "repo", check=True)
    for command in COMMANDS:
        done = _in_fork(place, command)
        assert done.code == 0, done
        for name in (place / MODULES).read_text().split():
            with contextlib.suppress(Exception):  # one that its package makes, or removes
                importlib.import_module(name)
    subprocess.run(["cp", "-a", str(place), str(kept)], check=True)
    return kept, place


def main() -> int:
    """Try all, or each way in one file; return 1 if something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("repository", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", action="store_true", help="each way in one file")
    parser.add_argument("--only", default="", help="a part of the files' paths")
    parser.add_argument("--way", help="one way")
    given = parser.parse_args()
    for name in (
        "merganser.flows.commands.cli",
        "dvcfleet.run",
        "dvcfleet.prefect_adapter.flow",
        "merganser.flows.evidence.mlflow_audit",
    ):
        __import__(name)
    kept, place = prepare(given.repository, given.folder)
    before = contents(kept / "repo")
    ways = [given.way] if given.way else list(WAYS)
    tried = wrong = 0
    paths = [path for path in files_of(kept) if given.only in path]
    spread = [paths[round(number * (len(paths) - 1) / (len(ways) - 1 or 1))] for number in range(len(ways))]
    for path, way in zip(spread, ways, strict=True) if given.sample else product(paths, ways):
        found = list(faults(path, try_out(kept, place, path, way), place, before))
        tried, wrong = tried + 1, wrong + bool(found)
        for line in found:
            print(f"{path}, {way}: {line}", flush=True)
    print(f"{tried} damaged files tried, {wrong} wrong", flush=True)
    return int(wrong > 0 or not tried)


if __name__ == "__main__":
    sys.exit(main())
