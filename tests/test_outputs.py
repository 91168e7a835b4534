"""What is written appears whole, is of one writer, and is on the disk when it has its name."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from merganser.errors import InputError
from merganser.outputs import new_folder, one_writer, replacing, write_whole
from tests.tiny import ROOT, environment

WRITER = """
import sys, time
from pathlib import Path
from merganser.outputs import new_folder

with new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("of a killed writer")
    print("writing", flush=True)
    time.sleep(600)
"""


def at_once(writers: list[Callable[[], None]]) -> list[BaseException | None]:
    """Run functions in threads that begin together; return what each raised."""
    start, raised = threading.Barrier(len(writers)), [None] * len(writers)

    def run(place: int) -> None:
        start.wait()
        try:
            writers[place]()
        except BaseException as error:
            raised[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_of_writers_of_one_folder_one_is_done_and_the_others_are_refused(tmp_path: Path) -> None:
    def write(out: Path, own: int) -> None:
        with new_folder(out) as folder:
            (folder / "first").write_text(str(own))
            time.sleep(0.002 * own)
            (folder / "second").write_text(str(own))

    for trial in range(6):
        out = tmp_path / str(trial) / "out"
        raised = at_once([lambda out=out, own=own: write(out, own) for own in range(4)])
        assert sum(error is None for error in raised) == 1
        winner = str(raised.index(None))
        assert {path.name: path.read_text() for path in out.iterdir()} == {"first": winner, "second": winner}
        for error in filter(None, raised):
            assert isinstance(error, InputError)
            assert f"process {os.getpid()} is writing it" in str(error) or "exists already" in str(error)
        assert list(out.parent.iterdir()) == [out]


def test_a_writer_is_named_while_it_lives_and_what_it_left_goes_once_it_was_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "writing\n"
        (tmp_path / "link").symlink_to(out)  # another name of the same place
        for name in ("out", "link"):
            said = f"{name}: process {writer.pid} is writing it"
            with pytest.raises(InputError, match=said), new_folder(tmp_path / name):
                pass
        writer.send_signal(signal.SIGKILL)
    (tmp_path / "link").unlink()
    assert not out.exists()
    assert any(tmp_path.glob(".out.partial*/half"))
    with new_folder(out) as folder:
        (folder / "whole").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["out", "out/whole"]


def write_late(out: Path) -> None:
    """Write a folder whose name somebody takes meanwhile."""
    with new_folder(out) as folder:
        (folder / "ours").touch()
        out.mkdir()
        (out / "theirs").touch()


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    full, file, pipe = tmp_path / "full", tmp_path / "file", tmp_path / "pipe"
    full.mkdir()
    (full / "kept").touch()
    file.write_text("kept")
    os.mkfifo(pipe)
    for taken in (full, file, pipe):
        with pytest.raises(InputError, match="exists already"), new_folder(taken):
            pass
    with pytest.raises(InputError, match="late: exists already"):
        write_late(tmp_path / "late")
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "kept", "file", "pipe", "late", "theirs"}
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "ours").touch()
    assert (tmp_path / "empty/ours").exists()


def test_where_nothing_can_be_written_is_said_in_one_line() -> None:
    said = r"^/proc/x: cannot be written \(.*\); name another place$"
    with pytest.raises(InputError, match=said), new_folder(Path("/proc/x")):
        pass


def test_a_new_folder_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with new_folder(tmp_path / "above/out") as folder:
        (folder / "inner").mkdir()
        for name in ("file", "inner/file"):
            (folder / name).write_text("x")
    assert {path.removeprefix(str(folder)) for path in synced[:4]} == {"", "/file", "/inner", "/inner/file"}
    assert synced[4:] == [str(tmp_path / "above"), str(tmp_path)]


def test_of_writers_of_one_file_each_writes_it_whole(tmp_path: Path) -> None:
    def write(own: int) -> None:
        with replacing(tmp_path / "file") as file:
            for _ in range(64):
                file.write(bytes([own]) * 4096)

    (tmp_path / ".file.partial").write_bytes(b"of a killed writer" * 10**5)
    for _ in range(3):
        assert at_once([lambda own=own: write(own) for own in range(4)]) == [None] * 4
        content = (tmp_path / "file").read_bytes()
        assert content == content[:1] * 64 * 4096
        assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_text_is_written_whole_by_one_process_or_into_what_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "table.tex"
    path.write_text("before")
    with one_writer(path), pytest.raises(InputError, match=f"process {os.getpid()} is writing it"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    write_whole(path, "after")
    assert path.read_text() == "after"
    os.mkfifo(tmp_path / "pipe")
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        write_whole(tmp_path / "pipe", "read")
        assert reader.read() == "read"
