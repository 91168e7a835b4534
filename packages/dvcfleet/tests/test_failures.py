"""The one place where every command ends: which line and exit code each kind of error gives."""

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from dvc.exceptions import DvcException
from prefect.exceptions import PrefectHTTPStatusError

from dvcfleet.errors import BUSY_EXIT_CODE, BusyError, FailedError, SkippedError, UserError
from dvcfleet.terminal.failures import failure_of


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def refused_by_prefect() -> None:
    request = httpx.Request("POST", "http://127.0.0.1:4200/api/flow_runs/")
    httpx_error = httpx.HTTPStatusError("500 Internal Server Error", request=request, response=httpx.Response(500))
    raise PrefectHTTPStatusError.from_httpx_error(httpx_error)


KNOWN = {
    "a mistake of the user's": (lambda path: UserError("params.yaml: no"), 2, "params.yaml: no"),
    "one that DVC finds": (lambda path: DvcException("dvc.yaml: no"), 2, "dvc.yaml: no"),
    "another run": (lambda path: BusyError("another run", "wait"), BUSY_EXIT_CODE, "another run; wait"),
    "a skipped run": (lambda path: SkippedError("skipped"), 0, "skipped"),
    "an interrupt": (lambda path: KeyboardInterrupt(), 130, "stopped"),
    "a reader that went away": (lambda path: BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
    "what a part of the engine says": (lambda path: FailedError("it did not start"), 1, "it did not start"),
    "no such file": (lambda path: raised(lambda: (path / "none").read_text()), 1, "/none: No such file or directory"),
    "a folder for a file": (lambda path: raised(path.read_text), 1, ": Is a directory: a folder is in the place of"),
    "a file for a folder": (lambda path: raised(lambda: Path("/dev/null/x").mkdir()), 1, "/dev/null/x: Not a direct"),
    "a disk that fails": (lambda path: OSError(errno.EIO, "Input/output error", str(path)), 1, "system's log"),
    "a full disk": (lambda path: OSError(errno.ENOSPC, "No space left on device", str(path)), 1, "free some space"),
    "too little memory": (lambda path: MemoryError(), 1, "not enough memory"),
    "too few threads": (lambda path: RuntimeError("can't start new thread"), 1, "raise the limit of processes"),
    "too few processes": (lambda path: OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), 1, "raise the limit of proce"),
    "no home": (lambda path: RuntimeError("Could not determine home directory."), 1, "set HOME to a writable folder"),
    "torch's": (lambda path: RuntimeError("[enforce] can't allocate memory: you tried 8 bytes"), 1, "not enough mem"),
    "a server that fails": (lambda path: raised(refused_by_prefect), 1, "Prefect's server refused a request"),
    "several at once": (lambda path: ExceptionGroup("two", [UserError("one"), UserError("two")]), 2, "one"),
    "what a caller knows": (lambda path: LookupError("x"), 1, "known: x"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_ends_in_its_own_words_and_exit_code(name: str, tmp_path: Path) -> None:
    make, code, words = KNOWN[name]
    failure = failure_of(make(tmp_path), known=lambda error: f"known: {error}" if type(error) is LookupError else None)
    assert (failure.code, words in failure.message) == (code, True), failure
    assert bool(failure.message) == bool(words)


@pytest.mark.parametrize("content", [b"", b"\0\0", b"{", b"\xff\xfe\x80"])
def test_a_damaged_file_is_named_by_the_code_that_read_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    failure = failure_of(raised(lambda: json.loads(path.read_text(encoding="utf-8"))))
    assert failure.code == 1
    assert failure.message.startswith(f"{path}: damaged, or of another format")


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    path.write_bytes(b"no database" * 100)

    def read() -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT * FROM sqlite_master")

    assert failure_of(raised(read)).message == f"{path}: file is not a database"


def test_what_nobody_foresaw_leaves_its_traceback_in_a_file_that_the_line_names(tmp_path: Path) -> None:
    failure = failure_of(raised(lambda: {}["gone"]), state_folder=lambda: tmp_path)
    (file,) = (tmp_path / "failures").iterdir()
    assert failure.code == 1
    assert failure.message == f"unexpected KeyError: 'gone'; its traceback is in {file}"
    assert "in raised\n    function()" in file.read_text()


def test_a_traceback_goes_to_a_temporary_folder_where_the_state_folder_takes_none(tmp_path: Path) -> None:
    (tmp_path / "failures").touch()
    message = failure_of(raised(lambda: {}["gone"]), state_folder=lambda: tmp_path).message
    assert "KeyError" in Path(message.rpartition(" ")[2]).read_text()


def test_only_the_last_twenty_tracebacks_are_kept(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    for number in range(30):
        (tmp_path / f"failures/20200101-0000{number}.txt").touch()
    failure_of(raised(lambda: {}["gone"]), state_folder=lambda: tmp_path)
    assert len(list((tmp_path / "failures").iterdir())) == 20


@pytest.mark.parametrize("raising", ["print('x' * 100_000)", "print('x'); raise SystemExit(0)"])
def test_output_that_cannot_be_written_is_said_in_one_line(raising: str) -> None:
    script = f"from dvcfleet.terminal.failures import boundary\nwith boundary(): {raising}"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("No space left on device")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_wants_no_more_is_no_error_to_speak_of() -> None:
    script = (
        "from dvcfleet.terminal.failures import boundary\nwith boundary(): [print('x' * 1000) for _ in range(10_000)]"
    )
    done = subprocess.run(
        f'{sys.executable} -c "{script.replace(chr(10), chr(10))}" | head -1',
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
