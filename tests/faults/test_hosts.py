"""The processes that watch or fork the stages' processes are killed."""

import json
import os
import subprocess

import psutil
import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import SLOW, Make, Toy, slow_files
from tests.support import LIMIT_S, python, wait_for

RUN = "from flows.__main__ import start; start()"
NAMES = "abcd"
ALL = """
  all: {cmd: 'echo all >> log; cat *.part > all.txt', deps: [a.part, b.part, c.part, d.part], outs: [all.txt]}
"""


def run_and_kill(toy: Toy, words: str, *options: str) -> tuple[int, str]:
    """Start a run, kill its processes with these words in their command line once stages run, and wait for its end."""
    run = subprocess.Popen(
        [*python(), "-c", RUN, "run", "--workers", "2", *options],
        cwd=toy.path,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(toy.path / "log", run)
    pid = json.loads((toy.path / ".dvcfleet/lock").read_text())["pid"]
    victims = [child for child in psutil.Process(pid).children() if words in " ".join(child.cmdline())]
    assert victims
    for victim in victims:
        victim.kill()
    said, _ = run.communicate(timeout=LIMIT_S)
    return run.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        pytest.param("spawn_main", ["--runner", "processes"], marks=pytest.mark.drill),
        ("dvcfleet.worker.fork_server", []),
    ],
)
def test_a_killed_worker_or_host_costs_only_the_stages_it_had_in_work(
    toy: Make, words: str, options: list[str]
) -> None:
    slow = toy(SLOW + ALL, slow_files(NAMES))
    code, said = run_and_kill(slow, words, *options)
    assert "Traceback" not in said
    assert code == 0, said
    assert slow.ran().count("all") == 1
    assert slow.settled()
