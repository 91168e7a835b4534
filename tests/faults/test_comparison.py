"""The tiny comparison under faults of the machine and of its users: the same command goes on, to the same bytes."""

import gzip
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvcfleet.errors import BUSY_EXIT_CODE
from merganser.config import PARAMS
from merganser.config.loading import load_params
from merganser.tasks.record import comparison_name
from tests.drills.kill_stages import StageKills, Tiny, warm_server
from tests.drills.kills import prefect_server, spread
from tests.drills.power_cuts import commit
from tests.faults.injection import AT_EXIT
from tests.faults.power import Disk, new_disk, why_no_cuts
from tests.faults.test_clock import DAY, moved_clock
from tests.faults.test_memory import limited_memory
from tests.faults.whole import assert_cache_is_whole, entries, finished
from tests.support import wait_until
from tests.tiny import dvc, environment, make_repository, merganser, move_artifacts

pytestmark = pytest.mark.drill

KILLS = 4  # of each stage, besides one at its exit
MINUTE_S = 60
MEGABYTE = 2**20
SECTIONS: dict[str, Any] = {
    "learned": {
        "ada": {"learner": "adamerging", "of": "deltas", "steps": 2, "every": 1, "batch_size": 4},
        "wemoe": {"learner": "wemoe", "of": "deltas", "steps": 6, "every": 1, "batch_size": 2},
    },
    "routers": {"average": {"of": "differences/from_average"}},
}
KEEPING = ("statistics@gram-dark", "learn@wemoe", "route@average", "decompose@dark")
KILLED = (*KEEPING, "record@ties", "report")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """The comparison after a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    with prefect_server(folder / "prefect"):
        yield Tiny(folder / "pipeline", sections=SECTIONS)


@pytest.fixture
def fresh(calm: Tiny, tmp_path: Path) -> Path:
    """The comparison before its first run."""
    repository = make_repository(tmp_path / "fresh")
    shutil.copyfile(calm.path / "params.yaml", repository / "params.yaml")
    calm.injection.plan(repository, {})
    return repository


@pytest.fixture
def done(calm: Tiny, tmp_path: Path) -> Path:
    """A copy of the comparison after that run."""
    return move_artifacts(shutil.copytree(calm.path, tmp_path / "done", symlinks=True))


def at_work(run: "subprocess.Popen[str]", repository: Path, stages: int = 8) -> None:
    """Wait until so many stages have ended; raise AssertionError if the run has."""
    wait_until(lambda: run.poll() is not None or len(finished(repository)) >= stages)
    assert run.poll() is None, run.communicate()[0]


def assert_same(calm: Tiny, repository: Path) -> None:
    """Raise AssertionError if a repository is not whole, or not what the run left that nothing disturbed."""
    calm.compare(repository)
    assert entries(repository).keys() == calm.entries.keys()
    assert_cache_is_whole(repository)
    assert "up to date" in dvc(repository, "status")
    assert (repository / "report").is_dir()


def assert_goes_on(calm: Tiny, repository: Path) -> None:
    """Run again; raise AssertionError if that does not end well, with the same bytes."""
    again = calm.run(repository)
    assert again.returncode == 0, again.stdout
    assert_same(calm, repository)
    verified = merganser(repository, "lineage", "verify", check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def recorded(repository: Path) -> Counter[tuple[str, str]]:
    """How many runs MLflow has of each name, which is the comparison's or an entry's, and state."""
    with closing(sqlite3.connect(repository / "mlflow.db")) as store:
        return Counter(store.execute("SELECT name, status FROM runs WHERE lifecycle_stage = 'active'"))


@pytest.mark.parametrize("name", KILLED)
def test_a_stage_that_is_killed_goes_on(calm: Tiny, name: str) -> None:
    before, count = recorded(calm.path), calm.counted[name]
    with warm_server(calm) as server:
        kills = StageKills(calm, server)
        # The last fifth is left out: a few operations are not always made.
        for at in [*spread(list(range(1, count - count // 5)), KILLS), AT_EXIT]:
            assert kills.kill(name, at), f"{name} was not killed at operation {at} of {count}"
            kept = kills.kept(name)
            assert kept or name not in KEEPING or at in range(1, count // 2), f"nothing is kept at {at} of {count}"
            kills.finish(name)
            print(f"{name}: killed at operation {at} of {count}, {kept} files kept, the same bytes", flush=True)
    # No run of Merganser names the comparison here: the report is logged to one that is named by params.yaml.
    nameless = comparison_name(load_params(calm.path / PARAMS))
    assert recorded(calm.path) - before == Counter({(nameless, "FINISHED"): 1} if name == "report" else {})
    assert not before - recorded(calm.path)


def test_a_run_that_is_killed_while_it_writes_dvc_lock_goes_on(calm: Tiny, done: Path) -> None:
    lock = yaml.safe_load((done / "dvc.lock").read_text())
    lock["stages"] = {name: entry for name, entry in lock["stages"].items() if not name.startswith("evaluate@")}
    for at in range(1, 100):
        (done / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))
        calm.injection.plan(done, {"run": at}, group=at % 2 == 0, only="dvc.lock")
        run = calm.run(done)
        if run.returncode != -signal.SIGKILL:
            assert run.returncode == 0, run.stdout
            break
        written = len(entries(done))
        calm.injection.plan(done, {})
        again = calm.run(done)
        assert again.returncode == 0, again.stdout
        assert_same(calm, done)
        print(f"killed at operation {at} on dvc.lock, {written} entries in it, {again.stdout.count(' done in ')} ran")
    assert at > 2


@pytest.mark.parametrize("stop", [os.kill, os.killpg])
def test_a_run_that_is_stopped_for_a_minute_goes_on(calm: Tiny, fresh: Path, stop: Callable[[int, int], None]) -> None:
    with calm.start(fresh) as run:
        at_work(run, fresh)
        stop(run.pid, signal.SIGSTOP)
        began = time.monotonic()
        busy = merganser(fresh, "run", check=False)
        time.sleep(max(0, MINUTE_S - (time.monotonic() - began)))
        stop(run.pid, signal.SIGCONT)
        said, _ = run.communicate()
    assert run.returncode == 0, said
    assert busy.returncode == BUSY_EXIT_CODE
    assert f"process {run.pid}" in busy.stdout
    assert_same(calm, fresh)


@pytest.mark.parametrize("megabytes", [400, 800, 1200])
def test_a_comparison_whose_memory_is_limited_ends_with_more(calm: Tiny, fresh: Path, megabytes: int) -> None:
    with limited_memory(megabytes * MEGABYTE) as processes, calm.start(fresh) as run:
        processes.write_text(str(run.pid))
        said, _ = run.communicate()
        wait_until(lambda: not processes.read_text())
    print(f"{megabytes} MB: exit code {run.returncode}, {len(finished(fresh))} stages had ended\n{said[-1500:]}")
    assert "Traceback" not in said
    assert run.returncode == -signal.SIGKILL or "as when memory runs out" in said or "not enough memory" in said
    assert_goes_on(calm, fresh)


@pytest.mark.skipif(bool(why_no_cuts()), reason=f"no power cuts here: {why_no_cuts()}")
@pytest.mark.parametrize("part", [".", ".dvc/cache", "data", ".dvcfleet"])
def test_a_disk_that_answers_with_eio_is_named_and_the_run_goes_on_after(calm: Tiny, tmp_path: Path, part: str) -> None:
    with new_disk(tmp_path / "image", tmp_path / "disk", 700) as whole:
        repository = make_repository(whole.path / "repository")
        shutil.copyfile(calm.path / "params.yaml", repository / "params.yaml")
        calm.injection.plan(repository, {})
        if part == ".":
            fail(calm, whole, repository)
            return
        with new_disk(tmp_path / "part.img", repository / part, 400) as disk:
            fail(calm, disk, repository)


def fail(calm: Tiny, disk: Disk, repository: Path) -> None:
    """Let a disk fail during a run, then answer again, and run again."""
    with calm.start(repository) as run:
        at_work(run, repository)
        disk.fail()
        said, _ = run.communicate()
    print(f"exit code {run.returncode}\n{said[-3000:]}", flush=True)
    disk.repair()
    assert run.returncode != 0
    assert "Traceback" not in said
    assert "Input/output error" in said
    assert_goes_on(calm, repository)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_clock_that_is_set_back_changes_nothing(
    calm: Tiny, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)  # a server of its own, whose clock moves too
    moved = moved_clock(tmp_path, 0)
    shift = Path(moved["CLOCK_SHIFT"])
    with calm.start(fresh, **moved) as run:
        at_work(run, fresh)
        shift.write_text(str(-DAY))
        said, _ = run.communicate()
    assert run.returncode == 0, said
    assert_same(calm, fresh)
    shift.write_text(str(-400 * DAY))
    with calm.start(fresh, **moved) as run:
        said, _ = run.communicate()
    assert run.returncode == 0, said
    assert "nothing to do" in said
    assert_same(calm, fresh)


def test_a_checkout_of_git_during_a_run_mixes_no_results_but_those_it_names(
    calm: Tiny, fresh: Path, tmp_path: Path
) -> None:
    params = yaml.safe_load((fresh / "params.yaml").read_text())
    commit(fresh)
    git = ["git", "-C", str(fresh), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "branch", "first"], check=True)
    subprocess.run([*git, "checkout", "-qb", "second"], check=True)
    params["methods"]["ties"]["density"], params["decompose"]["rank_fraction"] = 0.25, 0.5
    (fresh / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    subprocess.run([*git, "commit", "-qam", "second"], check=True)
    subprocess.run([*git, "checkout", "-q", "first"], check=True)
    with calm.start(fresh) as run:
        at_work(run, fresh, 12)
        subprocess.run([*git, "checkout", "-q", "second"], check=True)
        said, _ = run.communicate()
    print(f"exit code {run.returncode}\n{said[-3000:]}", flush=True)
    assert "Traceback" not in said
    if named := re.findall(r"(\S+) done in .*changed while it ran", said):
        forced = calm.run(fresh, "--force", *named)
        assert forced.returncode == 0, forced.stdout
    other = Tiny(tmp_path / "other", sections=SECTIONS | {name: params[name] for name in ("methods", "decompose")})
    assert_goes_on(other, fresh)
    lock = (fresh / "dvc.lock").read_text()
    subprocess.run([*git, "checkout", "-q", "first"], check=True)
    assert (fresh / "dvc.lock").read_text() == lock
    assert_goes_on(calm, fresh)


@pytest.mark.parametrize("command", [("gc", "--workspace", "--force"), ("checkout", "--force")], ids=lambda c: c[0])
def test_a_dvc_command_that_writes_during_a_run_is_mended_by_the_next(
    calm: Tiny, fresh: Path, command: tuple[str, ...]
) -> None:
    with calm.start(fresh) as run:
        for stages in (8, 20):
            at_work(run, fresh, stages)
            told = subprocess.run(
                [sys.executable, "-m", "dvc", *command], cwd=fresh, env=environment(), capture_output=True, text=True
            )
            print(f"dvc {' '.join(command)}: exit code {told.returncode}: {(told.stdout + told.stderr)[-400:]}")
        said, _ = run.communicate()
    print(f"exit code {run.returncode}\n{said[-2000:]}", flush=True)
    assert "Traceback" not in said
    if run.returncode == 0:
        calm.compare(fresh)
    assert_goes_on(calm, fresh)


def test_forty_that_ask_for_the_status_at_once_disturb_no_run(calm: Tiny, fresh: Path) -> None:
    with calm.start(fresh) as run:
        at_work(run, fresh)
        ask = [sys.executable, "-m", "merganser.flows", "status"]
        asked = [
            subprocess.Popen(ask, cwd=fresh, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(40)
        ]
        answers = [process.communicate() for process in asked]
        said, _ = run.communicate()
    assert run.returncode == 0, said
    assert [process.returncode for process in asked] == [0] * 40, answers
    assert not any(b"Traceback" in error for _, error in answers)
    assert_same(calm, fresh)


SECRETS = {
    "HF_TOKEN": "hf_" + "Zq7Xw2Lm" * 4,
    "AWS_SECRET_ACCESS_KEY": "wJa1rXUtnFEMIK7MDENGbPxRfiCYzzQPLMKEYabc",
    "MLFLOW_TRACKING_PASSWORD": "tracking-opensesame-4711",
    "OPENAI_API_KEY": "sk-proj-" + "Ab3dEf6h" * 5,
    "STORE_TOKEN": "store-opensesame-4712",
}
IN_ADDRESSES = ("remote-opensesame-4713", "origin-opensesame-4714", "source-opensesame-4715")


def test_no_secret_is_in_anything_that_a_comparison_leaves(
    calm: Tiny, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, origin, source = IN_ADDRESSES
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    subprocess.run(["git", "remote", "add", "origin", f"https://me:{origin}@example.org/x.git"], cwd=fresh, check=True)
    dvc(fresh, "remote", "add", "--local", "store", f"https://me:{remote}@example.org/store")
    params = (fresh / "params.yaml").read_text()
    broken = yaml.safe_load(params)
    broken["tasks"]["dark"]["source"] = f"https://me:{source}@127.0.0.1:1/model"
    (fresh / "params.yaml").write_text(yaml.safe_dump(broken, sort_keys=False))
    failed = merganser(fresh, "run", check=False)
    assert failed.returncode != 0
    (fresh / "params.yaml").write_text(params)
    commit(fresh)
    said = [failed.stdout, failed.stderr, merganser(fresh, "run").stdout, merganser(fresh, "status").stdout]
    out = tmp_path / "out"
    out.mkdir()
    for name in ("all.json", "all.jsonl", "crate", "crate.zip"):
        merganser(fresh, "lineage", "export", str(out / name))
    merganser(fresh, "archive", str(out / "archive.tar.gz"), "--data")
    said.append(merganser(fresh, "lineage", "verify").stdout)
    users = {fresh / ".git/config", fresh / ".dvc/config.local"}
    kept = [*contents(fresh, users), *contents(out, set())]
    hidden = [value.encode() for value in (*SECRETS.values(), *IN_ADDRESSES, os.environ["PREFECT_API_AUTH_STRING"])]
    found = sorted({(name, value.decode()) for name, text in kept for value in hidden if value in text})
    print(f"{len(hidden)} secrets searched for in {len(kept)} files and {sum(map(len, said))} characters of output")
    assert found == []
    assert not any(value.decode() in text for value in hidden for text in said)


def contents(folder: Path, without: set[Path]) -> Iterator[tuple[str, bytes]]:
    """The bytes of all files of a folder, of git's objects and of what archives hold."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path in without or {"datasets", "hub"} & set(path.relative_to(folder).parts[:1]):
            continue
        yield str(path.relative_to(folder)), path.read_bytes()
        if path.suffix == ".gz" and not path.name.endswith(".tar.gz"):
            yield f"{path.name} unpacked", gzip.decompress(path.read_bytes())
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path.name}: {name}", archive.read(name)) for name in archive.namelist())
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as packed:
                for member in packed:
                    if file := packed.extractfile(member):
                        yield f"{path.name}: {member.name}", file.read()
    if (folder / ".git").is_dir():
        objects = ["git", "-C", str(folder), "cat-file", "--batch", "--batch-all-objects"]
        yield "git's objects", subprocess.run(objects, capture_output=True, check=True).stdout
