"""Clocks that jump: no stage runs for it, none is left out, and no run waits for yesterday to come back."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.faults.whole import content
from tests.support import LIMIT_S, wait_until

RUN = "from flows.__main__ import start; start()"
DAY = 86_400
# The second stage waits until the clock has jumped, fails once after that, and is tried again.
JUMPING = """
stages:
  first: {cmd: echo first >> log; echo 1 > first, deps: [source], outs: [first]}
  second:
    cmd: >-
      echo second >> log; until [ -e jumped ]; do sleep 0.1; done;
      { [ -e failed ] || { touch failed; false; }; } && echo 2 > second
    deps: [first]
    outs: [second]
    meta: {dvcfleet: {retries: 1}}
  third: {cmd: echo third >> log; echo 3 > third, deps: [second], outs: [third]}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("jump", [-DAY])
def test_a_clock_that_jumps_during_a_run_changes_nothing(
    toy: Make, tmp_path: Path, jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = moved_clock(tmp_path, 0)
    monkeypatch.delenv("PREFECT_API_URL")  # a server of its own, whose clock jumps too
    jumping = toy(JUMPING, {"source": "s"})
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "run"],
        cwd=jumping.path,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, **moved},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        log = jumping.path / "log"
        wait_until(lambda: run.poll() is not None or (log.exists() and "second" in log.read_text()))
        Path(moved["CLOCK_SHIFT"]).write_text(str(jump))
        (jumping.path / "jumped").touch()
        said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "Traceback" not in said
    assert jumping.ran() == ["first", "second", "second", "third"]
    assert jumping.settled()


@pytest.mark.parametrize("jump", [-400 * DAY, 400 * DAY])
def test_files_with_times_of_another_year_are_judged_by_their_content(toy: Make, jump: int) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    chain.ran()
    before = content(chain.path)
    shift_times(chain.path, jump)
    assert set(chain.states().values()) == {"up to date"}
    chain.write("source", "ABCDEF")
    shift_times(chain.path, jump)
    assert chain.run()[0] == 0
    assert chain.ran() == ["cut", "turn", "end"]
    chain.write("source", CHAIN_FILES["source"])
    assert chain.run()[0] == 0
    assert chain.ran() == []
    assert content(chain.path) == before


def moved_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Return the environment variables of a process whose clock is off, by the seconds in the file of CLOCK_SHIFT."""
    library, shift = folder / "clock.so", folder / "shift"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    shift.write_text(str(seconds))
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}


def shift_times(folder: Path, seconds: int) -> None:
    """Give all files of a repository, DVC's and the runs' too, the times they would have under a clock that is off."""
    for path in folder.rglob("*"):
        if ".git" not in path.relative_to(folder).parts:
            moment = path.lstat().st_mtime + seconds
            os.utime(path, (moment, moment), follow_symlinks=False)
