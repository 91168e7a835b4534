"""A disk that fills up during a run: the run says so; with room again the same command ends well."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dvcfleet.errors import UserError
from dvcfleet.terminal.failures import failure_of
from tests.dvcfleet.toy import Toy
from tests.faults.injection import ROOT
from tests.faults.whole import assert_cache_is_whole, content
from tests.support import python

# Each output is larger than what is left free somewhere along the way.
GROWING = """
stages:
  part:
    foreach: ${parts}
    do:
      cmd: head -c 300000 /dev/zero | tr '\\\\0' ${key} > ${key}.part
      deps: [source]
      outs: ["${key}.part"]
  all:
    cmd: cat *.part | md5sum > all.txt
    deps: [a.part, b.part, c.part, d.part]
    outs: [all.txt]
"""
FILES = {"source": "s", "params.yaml": "parts: {a: 1, b: 1, c: 1, d: 1}\n"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, leave: int) -> None:
    """Leave only so many bytes."""
    stat = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(max(0, stat.f_bavail * stat.f_frsize - leave)))


@pytest.mark.slow
@pytest.mark.parametrize("links", [False, pytest.param(True, marks=pytest.mark.drill)])
@pytest.mark.usefixtures("toy")
def test_a_full_disk_is_named_and_what_is_done_is_kept(small_disk: Path, links: bool, tmp_path: Path) -> None:
    expected = Toy(tmp_path / "roomy", GROWING, FILES)
    assert expected.run()[0] == 0
    seen = 0
    for number, leave in enumerate((0, 400_000, 1_000_000)):
        toy = Toy(small_disk / f"toy{number}", GROWING, FILES)
        if links:
            toy.write(".dvc/config", '[cache]\n    type = "hardlink,symlink"\n')
        fill(small_disk, leave)
        code, text = toy.run(workers=2)
        assert "Traceback" not in text
        if code:
            seen += 1
            assert "No space left on device" in text, text
            assert "run the same command again" in text, text
        (small_disk / "filler").unlink()
        code, text = toy.run(workers=2)
        assert code == 0, text
        assert content(toy.path) == content(expected.path)
        assert_cache_is_whole(toy.path)
        assert toy.settled()
        subprocess.run(["rm", "-rf", str(toy.path)], check=True)
    assert seen >= 2


@pytest.mark.usefixtures("toy")
def test_a_disk_without_room_for_files_is_named_whatever_space_is_free(small_disk: Path) -> None:
    toy = Toy(small_disk / "toy", GROWING, FILES)
    toy.write(".dvc/config", '[cache]\n    type = "hardlink,symlink"\n')
    before = os.statvfs(small_disk).f_favail
    for room in (0, 1, 20):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={inodes(small_disk, room)}", str(small_disk)], check=True)
        code, text = said(toy)
        assert code, text
        assert "more files: remove some" in text, text
        assert "Traceback" not in text
    subprocess.run(["mount", "-o", f"remount,nr_inodes={inodes(small_disk, before)}", str(small_disk)], check=True)
    code, text = toy.run()
    assert code == 0, text
    assert_cache_is_whole(toy.path)


def inodes(disk: Path, room: int) -> int:
    """Return how many files a disk must take for so many to have room."""
    stat = os.statvfs(disk)
    return stat.f_files - stat.f_ffree + room


def said(toy: Toy) -> tuple[int, str]:
    """Run, and return the exit code and the text, of a refusal too."""
    try:
        return toy.run()
    except (OSError, UserError) as error:
        return 2, failure_of(error).message


@pytest.mark.slow
def test_a_stage_without_room_says_so_in_a_line() -> None:
    code = "from merganser.tasks.stage import run_main; run_main(lambda _: open('/dev/full', 'w').write('x' * 100_000))"
    ended = subprocess.run([*python(), "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("no space left on the disk of ")
    assert len(ended.stderr.splitlines()) == 1
