"""A stage that gets too little memory: it says so, or the run says that the system ended it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import Make
from tests.faults.injection import ROOT
from tests.support import python
from tests.tiny import environment

RUN = "from flows.__main__ import start; start()"
LIMIT = 800 * 2**20
GREEDY = """
stages:
  modest: {cmd: echo modest >> log; echo 1 > modest, deps: [source], outs: [modest]}
  greedy:
    cmd: echo greedy >> log; { [ -e room ] || python -c 'bytearray(b"1") * 2**31'; } && echo 2 > greedy
    deps: [modest]
    outs: [greedy]
"""


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[Path]:
    """Give the file that takes the processes whose memory the kernel is to limit, of control groups of either version.

    `limit`: bytes. Skips the test where the groups are not this user's to make.
    """
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"merganser-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / name).write_text(str(limit))
            yield group / "cgroup.procs"
            group.rmdir()
            return
    pytest.skip("only root can limit memory")


@pytest.fixture
def limited() -> Iterator[Path]:
    """The same with 800 MB."""
    with limited_memory(LIMIT) as processes:
        yield processes


@pytest.mark.slow
def test_a_stage_that_the_kernel_ends_for_its_memory_is_named_and_the_run_lives(toy: Make, limited: Path) -> None:
    greedy = toy(GREEDY, {"source": ""})
    command = f"echo $$ > {limited}; exec {sys.executable} -c '{RUN}' run"
    variables = environment() | {"PYTHONPATH": PYTHONPATH}
    ended = subprocess.run(["bash", "-c", command], cwd=greedy.path, env=variables, capture_output=True, text=True)
    assert ended.returncode == 1
    assert (
        "greedy failed: exit code 137, as when memory runs out (use fewer --workers, or declare its memory)"
        in ended.stdout
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    (greedy.path / "room").touch()
    assert greedy.run()[0] == 0
    assert greedy.ran() == ["modest", "greedy", "greedy"]
    assert greedy.settled()


@pytest.mark.slow
def test_a_stage_whose_memory_is_limited_says_what_it_lacks() -> None:
    code = (
        "import resource, merganser.tasks.stage as stage, torch;"
        "resource.setrlimit(resource.RLIMIT_AS, (8_000_000_000,) * 2);"
        "stage.run_main(lambda _argv: torch.zeros(2**40))"
    )
    ended = subprocess.run([*python(), "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 1
    assert "not enough memory" in ended.stderr
    assert "run again" in ended.stderr
    assert "Traceback" not in ended.stderr
