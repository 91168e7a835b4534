"""Runs in jobs of SLURM's, whose commands are stand-ins here; the drill `slurm` tries SLURM itself."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from dvcfleet.errors import UserError
from dvcfleet.runners.slurm.commands import JobState, SlurmError, called, jobs_named, read_site
from dvcfleet.runners.slurm.walltime import in_slurms_form, needed_s, seconds_of, walltime_s
from tests.dvcfleet.test_run import FAMILY, FAMILY_FILES
from tests.dvcfleet.toy import Make
from tests.warm import program

COMMANDS = Path(__file__).with_name("slurm_commands.py")


def write_commands(folder: Path) -> tuple[Path, Path]:
    """Write stand-ins for SLURM's commands; return their folder and that of their jobs, for SLURM_STAND_IN."""
    commands, state = folder / "commands", folder / "jobs"
    for each in (commands, state):
        each.mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "sinfo"):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} -S {COMMANDS} {name} "$@"\n')
        (commands / name).chmod(0o755)
    return commands, state


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the stand-ins' jobs."""
    pytest.importorskip("dask_jobqueue")  # which brings its own settings
    commands, state = write_commands(tmp_path)
    monkeypatch.setenv("SLURM_STAND_IN", str(state))
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    monkeypatch.setattr(sys, "executable", program())  # by which jobs start their workers
    with dask.config.set({"jobqueue.slurm.interface": "lo"}):
        yield state


@pytest.mark.slow
def test_a_run_in_jobs_makes_the_same_bytes_and_leaves_no_job(toy: Make, slurm: Path) -> None:
    here, there = toy(FAMILY, FAMILY_FILES, "here"), toy(FAMILY, FAMILY_FILES, "there")
    assert here.run()[0] == 0
    code, text = there.run(runner="slurm", workers=None)
    assert code == 0, text
    assert there.read("dvc.lock") == here.read("dvc.lock")
    assert there.settled()
    scripts = [path.read_text() for path in slurm.glob("*.sh")]
    assert scripts
    assert all("--cpus-per-task=1" in script and "-t 0-00:30:00" in script for script in scripts)
    assert "RUNNING" not in called("squeue", "-n", "")


# A worker that is forked has what it was forked from in its memory, and takes no stage where that is more than it may.
LOST = """
stages:
  lost:
    cmd: >-
      parent() { awk '/^PPid/ {print $2}' /proc/$1/status; };
      worker=$(parent $(parent $PPID)); echo lost >> log;
      [ -e once ] || { touch once; echo Exceeded job memory limit >> /proc/$worker/fd/2; kill -9 $worker; sleep 60; };
      echo 1 > out
    deps: [source]
    outs: [out]
    meta: {dvcfleet: {resources: {threads: 2, memory: 3GB}, timeout: 3h}}
"""


@pytest.mark.slow
def test_a_stage_whose_job_ends_is_started_again_in_another_of_its_shape(toy: Make, slurm: Path) -> None:
    lost = toy(LOST, {"source": ""})
    code, text = lost.run(runner="slurm")
    assert code == 0, text
    said = "SLURM's job 1 ended: FAILED; its log ends with: Exceeded job memory limit)"
    assert f"lost is started again: its worker was lost (JobLostError: {said}" in text
    assert lost.ran() == ["lost", "lost"]
    scripts = [(slurm / f"{number}.sh").read_text() for number in (1, 2)]
    for wanted in ("--cpus-per-task=2", "--mem=3G", "-t 0-04:00:00"):
        assert all(wanted in script for script in scripts), wanted


def test_the_log_of_a_job_is_that_of_its_own_number(tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    from dvcfleet.runners.slurm.cluster import JobScripts

    for number in ("1", "12", "2"):
        (tmp_path / f"toy-1-{number}.err").write_text(f"of {number}\n")
    scripts = JobScripts(None, "toy-1", tmp_path, 0.0, "")  # type: ignore[arg-type]
    assert [scripts.log_end(number) for number in ("1", "12", "2")] == ["of 1", "of 12", "of 2"]


@pytest.mark.drill
def test_a_stage_whose_jobs_do_not_begin_fails_with_their_log(toy: Make, slurm: Path) -> None:
    one = toy("stages: {a: {cmd: echo 1 > x, deps: [source], outs: [x]}}", {"source": ""})
    with dask.config.set({"jobqueue.slurm.python": "/nowhere/python"}):  # variables are read when Dask is imported
        code, text = one.run(runner="slurm")
    assert code == 1
    assert "3 jobs of SLURM's in a row did not begin" in text
    assert "/nowhere/python: No such file or directory" in text


def test_a_stage_that_no_node_can_run_is_refused_in_slurms_words(toy: Make, slurm: Path) -> None:
    wide = toy(
        "stages: {a: {cmd: echo a >> log, deps: [source], outs: [x], meta: {dvcfleet: {resources: {threads: 8}}}}}",
        {"source": ""},
    )
    code, text = wide.run(runner="slurm", workers=8)
    assert (code, wide.ran()) == (2, [])
    said = "Requested node configuration is not available (partition normal is up, 127.0.0.1 is idle)"
    assert f"stage a: SLURM refuses a job for it: {said}" in text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("walltime", 43200, "43200 is no time of SLURM's"),  # 12:00:00 without quotes
        ("interface", "ib7", "'ib7' is not a valid network interface"),
    ],
)
def test_a_setting_of_dask_jobqueues_that_does_not_fit_is_named(
    toy: Make, slurm: Path, key: str, value: object, said: str
) -> None:
    with dask.config.set({f"jobqueue.slurm.{key}": value}):
        code, text = toy(FAMILY, FAMILY_FILES).run(runner="slurm", workers=2)
    assert (code, said in text, "jobqueue.slurm, of" in text) == (2, True, True)


def test_what_a_partition_has_is_read_from_sinfo(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_site(None).threads, read_site(None).most_s) == (2, 8 * 3600)
    assert read_site("long").most_s == math.inf
    with pytest.raises(UserError, match="SLURM has no partition 'wide'; there are normal, long"):
        read_site("wide")
    monkeypatch.setenv("SBATCH_PARTITION", "long")
    assert read_site("normal").most_s == math.inf


def test_what_slurm_says_of_a_failure_is_the_message(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm / "script").write_text("#SBATCH --cpus-per-task=9")
    with pytest.raises(SlurmError, match=r"^Requested node configuration is not available$"):
        called("sbatch", str(slurm / "script"))
    assert jobs_named("none") == {}
    assert (str(JobState("PENDING", "Resources")), str(JobState("FAILED", "None"))) == ("PENDING (Resources)", "FAILED")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"--runner slurm: there is no squeue here; run it on a login node"):
        jobs_named("none")


def test_a_jobs_time_follows_from_what_its_stage_took() -> None:
    assert needed_s(None, None, 0) is None
    assert needed_s(None, None, 7200) == 14400
    assert needed_s(None, 100.0, 7200) == 14400
    assert [walltime_s(need, 1800, 8 * 3600) for need in (None, 1.0, 3600.0, 3601.0, 1e6)] == [
        1800,
        3600,
        3600,
        7200,
        8 * 3600,
    ]
    for seconds in (60.0, 3600.0, 100 * 3600.0):
        assert seconds_of(in_slurms_form(seconds)) == seconds
    with pytest.raises(ValueError, match="'soon' is no time of SLURM's"):
        seconds_of("soon")
