"""What is kept of what stages print, `merganser logs`, and the signs of life of a run."""

import re
import threading
import time
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest

from dvcfleet import console, waiting
from dvcfleet.console import Heartbeat, describe_longest
from dvcfleet.errors import UserError
from dvcfleet.waiting import said_if_long
from dvcfleet.worker import output
from dvcfleet.worker.output import Lines, log_path, logging_to, output_of
from tests.dvcfleet.toy import Make, Printed
from tests.support import LIMIT_S, wait_until

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
    followed: list[bytes] = []

    def follow() -> None:
        wait_until((talking.path / "said").exists)
        for part in output_of("talks", talking.path, follow=True):
            followed.append(part)
            (talking.path / "wait").unlink(missing_ok=True)  # it ends only when it is followed

    follower = threading.Thread(target=follow)
    follower.start()
    talking.run()
    follower.join(LIMIT_S)
    assert b"".join(followed).decode().splitlines()[1:] == ["one 1", "two", "last"]


def test_a_full_disk_does_not_fail_a_stage(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "full.log"
    log.symlink_to("/dev/full")
    with logging_to(log, lines.append) as write:
        write("heard all the same\n")
    assert lines == ["heard all the same\n"]


def test_names_of_logs_stay_in_their_folder(tmp_path: Path) -> None:
    for name in ("../../x", "sub/dvc.yaml:a@b", "x" * 300, "é" * 100):
        path = log_path(tmp_path, name)
        assert path.parent == tmp_path / ".dvcfleet/logs"
        assert len(path.name) < 250


def test_a_progress_bar_is_handed_on_now_and_then_and_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "BAR_S", LIMIT_S)
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


def test_what_is_printed_slowly_is_passed_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "BLOCK_S", LIMIT_S)
    heard: list[str] = []
    lines = Lines(heard.append)
    assert lines.due_s() is None
    lines.feed(b"a\n")
    due = lines.due_s()
    assert due is not None
    assert 0 < due <= LIMIT_S
    lines.pass_on()
    assert (heard, lines.due_s()) == (["a\n"], None)


def test_signs_come_at_growing_intervals_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "FIRST_S", 0.1)
    monkeypatch.setattr(console, "LONGEST_S", 0.3)
    beats: list[float] = []
    started = time.monotonic()
    with Heartbeat(lambda: beats.append(time.monotonic())):
        wait_until(lambda: len(beats) >= 12)  # if they went on growing, that would take seven minutes
    # Each is due so long after the one before was; a busy machine may be late with any of them.
    due = accumulate((0.1, 0.2, 0.3, 0.3), initial=started)
    assert all(beat >= least for beat, least in zip(beats, list(due)[1:], strict=False))


def test_no_sign_comes_soon_after_something_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console, "FIRST_S", 0.05)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    beats: list[float] = []
    with Heartbeat(lambda: beats.append(now)) as beating:
        now = 0.04
        beating.restart()
        now = 0.08
        time.sleep(0.5)
        assert beats == []
        now = 0.1
        wait_until(lambda: beats)


def test_what_is_said_during_a_sign_restarts_the_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console, "FIRST_S", 0.05)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    beats: list[float] = []

    def beat() -> None:
        beats.append(now)
        beating.restart()

    with Heartbeat(beat) as beating:
        for now in (0.05, 0.1):
            wait_until(lambda: beats and beats[-1] == now)  # noqa: B023  # within this turn


def test_a_sign_says_what_runs_for_how_long_and_its_last_line(tmp_path: Path) -> None:
    with logging_to(log_path(tmp_path, "train"), lambda text: None) as write:
        write("epoch 3: loss 0.1\n")
        write("\n")
    began = {"train": 0.0, "b": 7100.0, "c": 7190.0, "d": 7195.0, "e": 7199.0}
    assert list(describe_longest(tmp_path, began, 7200.0)) == [
        "train is not done after 2.0 h: epoch 3: loss 0.1",
        "b is not done after 2 min",
        "c is not done after 10 s",
        "d is not done after 5 s",
        "and 1 more",
    ]


def test_a_long_quiet_run_shows_what_its_stage_printed_last(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "FIRST_S", 0.1)
    waits = "echo epoch 3; while [ ! -e go ]; do sleep 0.1; done; touch out"
    talking = toy(f"stages: {{a: {{cmd: '{waits}', deps: [source], outs: [out]}}}}", {"source": ""})
    code, text = talking.run(printed=Printed(": epoch 3\n", (talking.path / "go").touch))
    assert code == 0
    assert re.search("a is not done after .*: epoch 3\n", text)


def test_an_answer_that_takes_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 600)
    with said_if_long() as step:
        step("planning")
    monkeypatch.setattr(waiting, "LONG_S", 0.01)
    with said_if_long() as step:
        step("reckoning")
        said: list[str] = []
        wait_until(lambda: said.append(capsys.readouterr().err) or "".join(said))
    assert "".join(said) == "reckoning ...\n"
