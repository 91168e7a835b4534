"""Run a repository of somebody else's in a container: another user's files, mounted, and no git or one that refuses.

The container is a root file system of its own in namespaces of its own (`unshare`, `chroot`): of this system's
programs it has a shell and a few more. Each repository is run by `dvc repro` and by `dvcfleet run`, to the same bytes.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.drills.versions import ENDS, make_environment
from tests.dvcfleet.twins import OURS, THEIRS, Twins, left

ROOT = Path(__file__).parents[2]
PROGRAMS = ("sh", "bash", "env", "cp", "cat", "mkdir", "tr")
USER = 1234
STAGES = """
stages:
  copy:
    cmd: cp source copied
    deps: [source]
    outs: [copied]
  count:
    cmd: cat copied copied > twice; cp copied size.json
    deps: [copied]
    outs: [twice]
    metrics: [{size.json: {cache: false}}]
  shout:
    cmd: mkdir shouted; tr a-z A-Z < copied > shouted/text
    deps: [copied]
    params: [word]
    outs: [shouted]
"""
FILES = {"dvc.yaml": STAGES, "source": "1\n", "params.yaml": "word: x\n"}
SCRIPT = r"""
set -e
mount -t tmpfs -o mode=755 none {root}
cd {root}
mkdir -p usr/bin usr/lib usr/lib64 etc proc dev tmp home{places}
ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64
chmod 1777 tmp home
mount --rbind /dev dev
mount -t proc none proc
cp -L /etc/ld.so.cache etc; echo 127.0.0.1 localhost > etc/hosts
printf 'root:x:0:0::/home:/bin/sh\nuser:x:{user}:{user}::/home:/bin/sh\n' > etc/passwd
mount --rbind /usr/lib usr/lib
mount --rbind /usr/lib64 usr/lib64
for place in{places}; do mount --rbind /$place $place; done
for program in {programs}; do cp -L $(command -v $program) usr/bin; done
exec chroot --userspec={user}:{user} {root} /bin/sh -c {command}
"""


@dataclass(frozen=True)
class Container:
    """Which user runs in a container, whose the files are, and whether there is git."""

    user: int
    owner: int
    git: bool

    def __str__(self) -> str:
        return f"user {self.user}, files of user {self.owner}, {'with' if self.git else 'without'} git"

    def run(self, folder: Path, repository: Path, python: Path, arguments: Sequence[str]) -> str:
        """Run a module of Python's in the repository; return what it prints."""
        root = folder / "root"
        root.mkdir(exist_ok=True)
        prefixes = {Path(sys.base_prefix), python.parent.parent, ROOT, folder / "mounted"}
        environment = {
            "PATH": f"{python.parent}:/usr/bin",
            "HOME": "/home",
            "PYTHONPATH": PYTHONPATH,
            "DVC_SITE_CACHE_DIR": "/home/site",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        words = [*(f"{name}={value}" for name, value in environment.items()), str(python), "-m", *arguments]
        inside = f"cd {shlex.quote(str(repository))} && exec env -i {shlex.join(words)}"
        script = SCRIPT.format(
            root=root,
            places="".join(f" {str(path).lstrip('/')}" for path in sorted(prefixes)),
            programs=" ".join((*PROGRAMS, *(("git",) if self.git else ()))),
            user=self.user,
            command=shlex.quote(inside),
        )
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"]},
            cwd="/",
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{self}: {shlex.join(arguments)} ended with {done.returncode}:\n{said}"
        return said


CONTAINERS = (Container(0, USER, git=False), Container(0, USER, git=True), Container(USER, 0, git=False))


def drill(folder: Path, sample: bool) -> None:
    """Run it in each container with this environment's DVC and Prefect, and with the oldest and the newest."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("chroot"):
        pytest.skip("it takes root, unshare and chroot")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    pythons = {"installed": Path(sys.prefix) / "bin/python"}
    if not sample:
        pythons |= {end: make_environment(folder / "mounted" / end, end) for end in ENDS}
    for number, (end, python) in enumerate(pythons.items()):
        for container in CONTAINERS[: 1 if sample else None]:
            try_in(container, folder, folder / f"mounted/{number}-{container.user}-{container.git}", python)
            print(f"{container}, {end} DVC and Prefect: the same as dvc repro", flush=True)


def try_in(container: Container, folder: Path, place: Path, python: Path) -> None:
    """Run the repository by both, and compare what they leave."""
    place.parent.mkdir(exist_ok=True)
    twins = Twins(place, FILES)
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org"]
    for side in (OURS, THEIRS):
        for command in (["add", "--all"], ["commit", "-qm", "start"]):
            subprocess.run([*git, *command], cwd=twins.at(side), check=True)
    subprocess.run(["chown", "-R", f"{container.owner}:{container.owner}", str(place)], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(place)], check=True)
    container.run(folder, twins.at(THEIRS), python, ["dvc", "repro"])
    said = container.run(folder, twins.at(OURS), python, ["dvcfleet", "run", "--workers", "2"])
    assert "3 done" in said, said
    words = "git refuses (detected dubious ownership" if container.git else "git is not installed"
    assert words in said, said
    theirs, ours = left(twins.at(THEIRS)), left(twins.at(OURS))
    assert theirs == ours, {name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)}
    assert "nothing to do" in container.run(folder, twins.at(OURS), python, ["dvcfleet", "run"])
