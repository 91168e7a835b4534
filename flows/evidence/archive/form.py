"""The form of an archive: a plain tar whose bytes follow from its files, so that any changed byte is found.

The members are regular files in order. Their headers have name, size and the executable flag, but no time and no user.
The last member, `SHA256SUMS`, has the digest of each, as `sha256sum -c` reads it.
"""

import hashlib
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from dvcfleet.lineage.steps import Finding
from merganser.errors import MALFORMED
from merganser.flows.evidence.archive.files import why_elsewhere, why_refused
from merganser.flows.evidence.findings import DifferenceKind

BUNDLE, FILES, OBJECTS, SUMS = "code.bundle", "files/", "objects/", "SHA256SUMS"
_END = bytes(2 * tarfile.BLOCKSIZE)
_CHUNK = 1 << 20
_OBJECT = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}(\.dir)?")
_ABOUT = "# an archive of merganser's; `sha256sum -c` checks its files; sha256 of the lines below: "


def write_archive(file: BinaryIO, members: Mapping[str, Path]) -> None:
    """Write files under the names of their members, and their digests."""
    digests: dict[str, str] = {}
    for name in sorted(members):
        with members[name].open("rb") as source:
            status = os.fstat(source.fileno())
            file.write(_header(name, status.st_size, bool(status.st_mode & 0o100)))
            digests[name], written = _hashed(source, status.st_size, file)
        if written != status.st_size:
            raise OSError(f"{members[name]}: became shorter while it was read")
        file.write(_padding(written))
    sums = _sums(digests)
    file.write(_header(SUMS, len(sums), False) + sums + _padding(len(sums)) + _END)


def check_form(path: Path) -> list[Finding]:
    """Read every byte of an archive; return differences from what was written, and forbidden members, by name."""
    with path.open("rb") as file:
        return list(_Reader(path, file).findings())


def read_members(path: Path) -> Iterator[tuple[str, int, bool, BinaryIO]]:
    """Yield name, size, executable flag and an open file of each member but SHA256SUMS; call `check_form` before."""
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.name != SUMS:
                file.seek(member.offset_data)
                yield member.name, member.size, member.mode == 0o755, file


def copy_bytes(source: BinaryIO, size: int, out: BinaryIO) -> None:
    """Copy so many bytes."""
    _hashed(source, size, out)


class _Reader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._name, self._file = path.name, file
        self._size = os.fstat(file.fileno()).st_size
        self._digests: dict[str, str] = {}
        self._sums = b""

    def findings(self) -> Iterator[Finding]:
        place = 0
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                for member in archive:
                    if member.offset != place or member.size < 0:
                        break
                    yield from self._member(member)
                    place = member.offset_data + member.size + len(_padding(member.size))
        except (tarfile.TarError, OSError, RecursionError, *MALFORMED) as error:
            yield self._damaged(self._name, f"no archive from byte {place} on ({error})")
            return
        if BUNDLE not in self._digests:
            yield self._damaged(BUNDLE, "it is not there")
        if self._at(place, len(_END) + 1) != _END:
            last = next(reversed(self._digests), "its begin")
            yield self._damaged(self._name, f"the bytes after {last}, from byte {place} on, are not an archive's")
        yield from self._compared()

    def _member(self, member: tarfile.TarInfo) -> Iterator[Finding]:
        if why := _refused(member):
            yield Finding(DifferenceKind.ARCHIVE_REFUSED, member.name, f"{why}; nothing of this archive is restored")
        elif member.name in self._digests:
            yield self._damaged(member.name, "it is there twice")
        elif self._at(member.offset, member.offset_data - member.offset) != _header(
            member.name, member.size, member.mode == 0o755
        ):
            yield self._damaged(member.name, "its header says more than a name and a size")
        self._file.seek(member.offset_data)
        self._digests[member.name], size = _hashed(self._file, member.size)
        padding = _padding(member.size)
        if size != member.size or self._at(member.offset_data + size, len(padding)) != padding:
            yield self._damaged(member.name, "its end was not written so")
        if member.name == SUMS:
            self._sums = self._at(member.offset_data, member.size)

    def _compared(self) -> Iterator[Finding]:
        """Compare the members with SHA256SUMS, and that file with its own digest."""
        own = {name: digest for name, digest in self._digests.items() if name != SUMS}
        if self._sums == _sums(own):
            return
        noted = _noted(self._sums)
        if noted is None:
            yield self._damaged(SUMS, "it is not there, or its lines are not those that were written")
            return
        for name in sorted(noted.keys() | own.keys()):
            if name not in own:
                yield self._damaged(name, "it is not there")
            elif own[name] != noted.get(name):
                message = f"its sha256 is {own[name]}, when it was written {noted.get(name, 'it was not there')}"
                yield self._damaged(name, message)

    def _at(self, place: int, size: int) -> bytes:
        self._file.seek(place)
        return self._file.read(size)

    def _damaged(self, name: str, message: str) -> Finding:
        return Finding(DifferenceKind.ARCHIVE_DAMAGED, name, message)


def _refused(member: tarfile.TarInfo) -> str:
    """Return why a member may not be restored; empty if it may."""
    if not member.isreg():
        return "a link, a device or a folder, and an archive has files only"
    if why := why_elsewhere(member.name):
        return why
    if member.name in (BUNDLE, SUMS):
        return ""
    if member.name.startswith(FILES):
        return why_refused(member.name.removeprefix(FILES))
    if member.name.startswith(OBJECTS) and _OBJECT.fullmatch(member.name.removeprefix(OBJECTS)):
        return ""
    return "no name that an archive has"


def _header(name: str, size: int, is_executable: bool) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o755 if is_executable else 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _sums(digests: Mapping[str, str]) -> bytes:
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    content = lines.encode("utf-8", "surrogateescape")
    return f"{_ABOUT}{hashlib.sha256(content).hexdigest()}\n".encode() + content


def _noted(sums: bytes) -> dict[str, str] | None:
    """Return the digests in SHA256SUMS by name; None if the file has another form than was written."""
    lines = sums.partition(b"\n")[2].decode("utf-8", "surrogateescape").split("\n")[:-1]
    noted = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    return noted if noted and _sums(noted) == sums else None


def _hashed(source: BinaryIO, size: int, out: BinaryIO | None = None) -> tuple[str, int]:
    """Read so many bytes and copy them to `out`; return their sha256 and their number."""
    digest, left = hashlib.sha256(), size
    while left and (chunk := source.read(min(left, _CHUNK))):
        digest.update(chunk)
        if out:
            out.write(chunk)
        left -= len(chunk)
    return digest.hexdigest(), size - left
