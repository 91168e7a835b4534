"""Files that are replaced whole, also when several threads or processes replace one at once."""

import fcntl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dvcfleet.disk import locked_folder, sync_then_write, write_durably

ROOT = Path(__file__).parents[2]
WRITERS, TIMES = 8, 20


def write_often(path: Path, mark: str) -> None:
    for _ in range(TIMES):
        write_durably(path, mark * 50_000)


def test_threads_that_replace_one_file_at_once_leave_one_whole_text_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda number: write_often(path, str(number)), range(WRITERS)))
    text = path.read_text()
    assert len(text) == 50_000
    assert len(set(text)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_processes_that_replace_one_file_at_once_all_end_well(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    code = "import sys; from tests.dvcfleet.test_disk import *; write_often(Path(sys.argv[1]), sys.argv[2])"
    processes = [subprocess.Popen([sys.executable, "-c", code, path, str(number)], cwd=ROOT) for number in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(set(path.read_text())) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_writers_of_several_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    def write(texts: dict[Path, str]) -> None:
        for _ in range(TIMES):
            sync_then_write([tmp_path], texts)

    threads = [threading.Thread(target=write, args=(texts,)) for texts in ({one: "a", two: "a"}, {two: "b", one: "b"})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert one.read_text() == two.read_text()


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock.new").write_text("half of a longer text")
    write_durably(tmp_path / "dvc.lock", "whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("dvc.lock", "whole")]


def test_on_a_file_system_without_locks_writers_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "history.jsonl"
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda number: write_often(path, str(number)), range(WRITERS)))
    assert len(set(path.read_text())) == 1
    assert list(tmp_path.iterdir()) == [path]
    with locked_folder(tmp_path):
        assert path.exists()


def test_one_thread_at_a_time_is_in_a_locked_folder(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def enter(_: int) -> None:
        with locked_folder(tmp_path):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(enter, range(200)))
    assert most == [1]
