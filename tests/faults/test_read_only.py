"""A comparison that somebody may read and not change: another user's on a shared disk, or a read-only mount."""

import subprocess
from pathlib import Path

import pytest

from tests.support import python
from tests.tiny import forking_environment

RUN = """
from merganser.flows.commands.cli import main
from tests.faults.damaged import obey_permissions

obey_permissions()
main()
"""


@pytest.fixture
def locked(tiny_copy: Path) -> Path:
    subprocess.run(["chmod", "-R", "a-w", tiny_copy], check=True)
    return tiny_copy


def said(folder: Path, *command: str) -> tuple[int, str]:
    """Run a command there without root's right to write everywhere; return its exit code and output."""
    variables = forking_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*python(), "-c", RUN, *command], cwd=folder, env=variables, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def test_it_is_audited_and_its_history_is_read(locked: Path) -> None:
    code, text = said(locked, "lineage", "verify")
    assert (code, text.startswith("nothing has changed: ")) == (0, True), text
    code, text = said(locked, "history")
    assert (code, ": the first run\n" in text) == (0, True), text
    assert not (locked / ".dvcfleet/history.jsonl").exists()


def test_no_audit_is_made_of_a_run_that_was_killed(tiny_copy: Path, request: pytest.FixtureRequest) -> None:
    (tiny_copy / ".dvcfleet/at-work").touch()
    code, text = said(request.getfixturevalue("locked"), "lineage", "verify")
    assert (code, "a run was killed, and this user may not write here to continue it" in text) == (2, True), text
