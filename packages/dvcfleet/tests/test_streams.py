"""Standard streams that are closed, full, no longer read, or of an encoding without all characters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvcfleet.terminal.standard_streams import StandardOutput
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make

RUN = f'"{sys.executable}" -m dvcfleet run'
# What a process does with a file that it opens, and a command that it starts, after its streams were made usable.
OPENS = """
import subprocess, sys
from dvcfleet.terminal.failures import boundary
with boundary():
    with open(sys.argv[1], "w") as file:
        print("not for the file")
        print("nor this", file=sys.stderr)
        subprocess.run("echo one; echo two >&2; cat", shell=True, check=True)
        file.write(str(file.fileno()))
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(OPENS)
    command = f'"{sys.executable}" {script} {tmp_path}/file < /dev/null {closed}'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "file").read_text()) > 2
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "not for the file\none\n")
    assert done.stderr == ("" if "2>&-" in closed else "nor this\ntwo\n")


@pytest.mark.parametrize(
    ("streams", "said"),
    [("<&- >&- 2>&-", ""), ("> /dev/full", "standard output lacks lines of this run: No space left on device\n")],
)
def test_a_run_whose_output_cannot_be_written_does_all_its_work(toy: Make, streams: str, said: str) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    done = subprocess.run(f"{RUN} {streams}", shell=True, cwd=chain.path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
    assert chain.ran() == ["cut", "turn", "end"]
    assert chain.settled()


def test_a_reader_that_goes_away_is_not_written_to_again(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    output = StandardOutput(os.fdopen(writer, "w"))
    output.write("one\n")
    output.flush()
    assert os.read(reader, 10) == b"one\n"
    os.close(reader)
    for _ in range(3):
        output.write("two\n" * 10_000)
        output.flush()
    output.close()
    assert capfd.readouterr().err == ""


def test_what_an_encoding_does_not_have_is_escaped() -> None:
    script = "from dvcfleet.terminal.failures import boundary\nwith boundary(): print('stage \\u00e4 \\udcff')"
    for encoding, written in (("ascii", b"stage \\xe4 \\udcff\n"), ("utf-8", b"stage \xc3\xa4 \\udcff\n")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, written, b"")
