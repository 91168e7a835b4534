"""What is kept of what stages print, `merganser logs`, and the signs of life of a run."""

import threading
import time
from pathlib import Path

import pytest

from dvcfleet import heartbeat
from dvcfleet.errors import UserError
from dvcfleet.heartbeat import Heartbeat, signs
from dvcfleet.logs import output_of
from dvcfleet.worker import output
from dvcfleet.worker.output import Lines, log_path, logged
from tests.dvcfleet.cluster import wait_until
from tests.dvcfleet.toy import Make

TALKS = """
stages:
  talks@en:
    cmd: echo one $(cat source); echo two >&2; touch said; while [ -e wait ]; do sleep 0.1; done; echo three > out
    deps: [source]
    outs: [out]
"""


def text_of(stage: str, repo: Path, follow: bool = False) -> str:
    return b"".join(output_of(stage, repo, follow)).decode()


def test_a_stages_output_is_kept_of_the_latest_run_only(toy: Make) -> None:
    talking = toy(TALKS.replace("@en", ""), {"source": "1"})
    assert talking.run()[0] == 0
    talking.write("source", "2")
    assert talking.run()[0] == 0
    (talking.path / "sub").mkdir()
    shown = text_of("talks", talking.path / "sub")
    assert shown.splitlines()[1:] == ["one 2", "two"]
    assert shown.startswith("> echo one")
    assert talking.settled()
    with pytest.raises(UserError, match='did you mean "talks"'):
        text_of("talk", talking.path)


def test_a_follower_gets_all_until_the_stage_ends(toy: Make) -> None:
    talking = toy(TALKS.replace("@en", "").replace("echo three", "echo last; echo three"), {"source": "1", "wait": ""})
    followed: list[str] = []

    def follow() -> None:
        wait_until((talking.path / "said").exists)
        end = threading.Timer(1.0, (talking.path / "wait").unlink)
        end.start()
        followed.append(text_of("talks", talking.path, follow=True))
        followed.append("ended" if end.finished.is_set() else "did not wait")

    follower = threading.Thread(target=follow)
    follower.start()
    talking.run()
    follower.join(30)
    assert followed[0].splitlines()[1:] == ["one 1", "two", "last"]
    assert followed[1] == "ended"


def test_a_full_disk_does_not_fail_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(output, "_opened", lambda _path: output.FileIO("/dev/full", "a"))
    with logged(Path("/dev/shm/none.log"), lines.append) as write:
        write("heard all the same\n")
    assert lines == ["heard all the same\n"]


def test_names_of_logs_stay_in_their_folder(tmp_path: Path) -> None:
    for name in ("../../x", "sub/dvc.yaml:a@b", "x" * 300, "é" * 100):
        path = log_path(tmp_path, name)
        assert path.parent == tmp_path / ".dvcfleet/logs"
        assert len(path.name) < 250


def test_a_progress_bar_is_handed_on_now_and_then_and_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    lines = Lines(heard.append)
    for number in range(1000):
        lines.feed(f"\r{number / 10:.0f}%".encode() + b" " * 100)
    lines.pass_on()
    assert heard == []
    assert len(lines._rest) < 300
    monkeypatch.setattr(output, "BAR_S", 0.0)
    lines.feed(b"\r99.9%\r")
    lines.pass_on()
    assert len(heard) == 1
    lines.feed(b"100%\nend")
    lines.pass_on()
    assert heard[1:] == ["100%\n"]
    assert lines.last()[-2:] == ("100%", "end")


def test_a_long_line_without_an_end_is_handed_on_in_parts() -> None:
    heard: list[str] = []
    lines = Lines(heard.append)
    for _ in range(100):
        lines.feed(b"x" * 10_000)
        assert len(lines._rest) < 100_000
    lines.last()
    assert "".join(heard).rstrip("\n") == "x" * 1_000_000
    assert max(map(len, heard)) < 200_000


@pytest.mark.parametrize("size", [1, 7, 1000, 65536, 10_000_000])
def test_output_comes_whole_in_blocks_and_masked_however_it_is_cut(size: int) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "QUJD\n" * 40 + "-----END PRIVATE KEY-----\n"
    said = "é" * 3000 + "\n" + key + "and " * 40_000 + "--token abcdefgh " + "é, " * 40_000 + "\npassword=x y\n"
    if size < 1000:
        said = said.replace("and " * 40_000, "and " * 40).replace("é, " * 40_000, "é, ")
    heard: list[str] = []
    lines = Lines(heard.append)
    data = said.encode()
    for start in range(0, len(data), size):
        lines.feed(data[start : start + size])
    last = lines.last()
    masks = said.replace(key, "***\n" * 42).replace("abcdefgh", "***").replace("password=x", "password=***")
    assert "".join(heard) == masks
    assert last[-1] == "password=*** y"
    assert max(map(len, heard)) <= 2 * output.BLOCK_BYTES + output._LINE_LIMIT + size


def test_what_is_printed_slowly_is_passed_on_soon() -> None:
    heard: list[str] = []
    lines = Lines(heard.append)
    assert lines.due_s() is None
    lines.feed(b"a\n")
    due = lines.due_s()
    assert due is not None
    assert 0 < due <= output.BLOCK_S
    lines.pass_on()
    assert (heard, lines.due_s()) == (["a\n"], None)


def test_signs_come_at_growing_intervals_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.1)
    monkeypatch.setattr(heartbeat, "LONGEST_S", 0.4)
    beats: list[float] = []
    with Heartbeat(lambda: beats.append(time.monotonic())) as beating:
        started = time.monotonic()
        time.sleep(2.0)
        quiet = list(beats)
        for _ in range(20):
            beating.restart()
            time.sleep(0.01)
        while_said = len(beats) - len(quiet)
    between = [after - before for before, after in zip([started, *quiet], quiet, strict=False)]
    assert between[0] < between[1] < between[2]
    assert 4 <= len(quiet) <= 7  # after 0.1, 0.3, 0.7, 1.1, 1.5, 1.9 s
    assert while_said <= 1


def test_a_sign_says_what_runs_for_how_long_and_its_last_line(tmp_path: Path) -> None:
    with logged(log_path(tmp_path, "train"), lambda text: None) as write:
        write("epoch 3: loss 0.1\n")
        write("\n")
    began = {"train": 0.0, "b": 7100.0, "c": 7190.0, "d": 7195.0, "e": 7199.0}
    assert list(signs(tmp_path, began, 7200.0)) == [
        "train has run for 2.0 h: epoch 3: loss 0.1",
        "b has run for 2 min",
        "c has run for 10 s",
        "d has run for 5 s",
        "and 1 more stages run",
    ]


def test_a_long_quiet_run_shows_what_its_stage_printed_last(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.5)
    talking = toy("stages: {a: {cmd: echo epoch 3; sleep 3; touch out, deps: [source], outs: [out]}}", {"source": ""})
    code, text = talking.run()
    assert code == 0
    assert "a has run for" in text
    assert ": epoch 3\n" in text
