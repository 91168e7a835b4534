"""The limit of open files, of which a run needs some for each stage at once."""

import subprocess
import sys

import pytest

from tests.dvcfleet.toy import Make

STAGES = "".join(f"  s{n}: {{cmd: ulimit -Sn > o{n}, deps: [source], outs: [o{n}]}}\n" for n in range(4))
ROOM = (
    "import resource; from dvcfleet.process_settings import room_for; "
    "print(room_for({stages}), resource.getrlimit(7)[0])"
)


def room(limits: str, stages: int) -> str:
    command = f'{limits} && "{sys.executable}" -c "{ROOM.format(stages=stages)}"'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("limits", "stages", "said"),
    [
        ("ulimit -n 400", 64, "64 400"),
        ("ulimit -Sn 200", 64, "64 400"),
        ("ulimit -n 200", 64, "24 200"),
        ("ulimit -Sn 200 && ulimit -Hn 300", 64, "44 300"),
        ("ulimit -n 84", 1, "a process may open 84 files here (ulimit -n), a run needs 85: raise it"),
    ],
)
def test_the_limit_is_raised_as_far_as_stages_need_and_what_fits_is_known(limits: str, stages: int, said: str) -> None:
    assert room(limits, stages).endswith(said)


def test_a_run_under_a_low_limit_says_how_many_stages_it_runs_at_once_and_their_commands_get_it(toy: Make) -> None:
    four = toy(f"stages:\n{STAGES}", {"source": ""})
    command = f'ulimit -Sn 91; ulimit -Hn 96; "{sys.executable}" -m dvcfleet run --workers 4'
    done = subprocess.run(command, shell=True, cwd=four.path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 instead of 4 stages at once: `ulimit -n` allows too few open files, they need 100\n" in done.stdout
    assert [four.read(f"o{n}") for n in range(4)] == ["91\n"] * 4
