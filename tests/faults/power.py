"""A disk whose power can be cut: an ext4 file system on a loop device, which loses what was not synced."""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Of <linux/ext4.h>: stop at once, without writing the journal.
_EXT4_IOC_SHUTDOWN, _FLUSH, _NO_LOG_FLUSH = 0x8004587D, 0, 2
_CAP_SYS_ADMIN = 21  # of <linux/capability.h>: root in a container may lack it


def why_no_cuts() -> str | None:
    """Why no power can be cut on this machine; None if it can."""
    status = Path("/proc/self/status").read_text()
    may = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    if not may >> _CAP_SYS_ADMIN & 1:
        return "mounting a file system takes root, outside a container"
    missing = [name for name in ("mkfs.ext4", "mount", "umount") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)}"
    return None if Path("/dev/loop-control").exists() else "no loop devices"


class Disk:
    """A disk in a file, mounted at `path`."""

    def __init__(self, image: Path, path: Path) -> None:
        self._image, self.path = image, path
        path.mkdir(parents=True, exist_ok=True)
        _call("mount", "-o", "loop", image, path)

    def cut(self) -> None:
        """Cut the power, and come back with what had reached the disk."""
        self._shut_down(_NO_LOG_FLUSH)
        end_all_in(self.path)
        kept = self._image.with_suffix(".kept")
        _call("cp", "--sparse=always", self._image, kept)
        _call("umount", "-l", self.path)
        kept.replace(self._image)
        _call("mount", "-o", "loop", self._image, self.path)

    def fail(self) -> None:
        """Answer all that is asked of it with EIO, as a disk whose cable came off; what was written is on it."""
        self._shut_down(_FLUSH)

    def repair(self) -> None:
        """Answer again."""
        end_all_in(self.path)
        _call("umount", self.path)
        _call("mount", "-o", "loop", self._image, self.path)

    def _shut_down(self, how: int) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unmount it."""
        end_all_in(self.path)
        _call("umount", "-l", self.path)


@contextmanager
def new_disk(image: Path, path: Path, megabytes: int) -> Iterator[Disk]:
    """Make a disk and give it, mounted."""
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    _call("mkfs.ext4", "-q", image)
    with closed(Disk(image, path)) as disk:
        yield disk


@contextmanager
def copy_of(image: Path, copy: Path, path: Path) -> Iterator[Disk]:
    """Give a copy of a disk that is not mounted, mounted."""
    _call("cp", "--sparse=always", image, copy)
    with closed(Disk(copy, path)) as disk:
        yield disk


@contextmanager
def closed(disk: Disk) -> Iterator[Disk]:
    """Unmount a disk at the end of the block."""
    try:
        yield disk
    finally:
        disk.close()


def end_all_in(folder: Path) -> None:
    """Kill the processes whose current folder is in this one, as a power cut ends them."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "cwd")).is_relative_to(folder):
                os.kill(int(process.name), signal.SIGKILL)


def _call(*command: str | Path) -> None:
    subprocess.run([*command], check=True, stdout=subprocess.DEVNULL)
