"""`merganser gc`: what is freed, and that all that is kept is as it was."""

import base64
import json
import shutil
import sqlite3
from contextlib import chdir, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.lineage.audit import audit
from dvcfleet.prefect_adapter import database
from dvcfleet.prefect_adapter.server import PrefectServer
from dvcfleet.record.chain import Anchor, anchor_of, check_chains
from dvcfleet.record.environments import IMAGE, environment, sha256
from dvcfleet.record.ledger import LEDGER, OLDER, executions
from dvcfleet.repository import opened, write_lock
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.errors import InputError
from merganser.flows.commands.gc import Freed, collect_garbage, time_before
from tests.dvcfleet.test_experiments import committed, experiments, git, run
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import forking
from tests.tiny import is_clean, merganser, receipts

NOW = timedelta()  # so that all but the last run is older
MONTH = timedelta(days=30)


def kinds(found: Freed) -> dict[str, str]:
    return {part.kind: part.what for part in found.parts}


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _ran_twice(made: Toy) -> None:
    committed(made)
    with pytest.MonkeyPatch.context() as patch:
        for name, source in (("first", "abcdef"), ("second", "bcdefg")):
            made.write("source", source)
            assert run(made, name, patch)[0] == 0
    made.write("source", "cdefgh")


@pytest.fixture
def made(toy: Make, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Give a repository with runs of three sources, whose last is `third`."""
    monkeypatch.setenv(RUN_NAME_VARIABLE, "third")
    return toy.ran(CHAIN, CHAIN_FILES, before=_ran_twice, save_experiment=True)


def test_old_runs_go_with_their_data_and_what_is_kept_is_up_to_date_and_audited(made: Toy) -> None:
    state = made.path / ".dvcfleet"
    before = list(executions(state))
    heads = [anchor_of(state), Anchor(2, sha256((state / LEDGER).read_bytes().splitlines()[1]))]
    said = collect_garbage(made.path, NOW, best=False, do=False)
    assert (
        kinds(said)["DVC's cache"] == "6 files"
    )  # of two runs: cut.txt, and turned with its listing, whose text end.txt is
    assert kinds(said)["run cache"] == "6 entries"
    assert kinds(said)["ledger"] == "6 lines compressed"
    assert kinds(said)["experiments"].startswith("2 runs of ")
    assert (len(experiments(made)), len(list(executions(state)))) == (3, 9)
    done = collect_garbage(made.path, NOW, best=False, do=True)
    assert kinds(done) == kinds(said)
    assert list(experiments(made)) == ["third"]
    assert list(executions(state)) == before
    assert [check_chains(state, head)[state / LEDGER].faults for head in heads] == [(), ()]
    assert len((state / LEDGER).read_text().splitlines()) == 3
    assert audit(made.path).findings == ()
    assert "nothing to do" in made.run()[1]
    assert made.settled()
    assert collect_garbage(made.path, NOW, best=False, do=True).parts == ()


def test_the_data_of_a_commit_whose_dvc_yaml_cannot_be_read_stay(made: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.path / "data").mkdir()
    made.write("data/kept.txt", "of a .dvc file")
    with opened(made.path) as repo, chdir(made.path):
        repo.add("data/kept.txt")
    kept = yaml.safe_load(made.read("data/kept.txt.dvc"))
    stages = made.read("dvc.yaml")
    made.write("dvc.yaml", "vars: [not-committed.yaml]\n" + stages)
    git(made, "add", "dvc.yaml", "dvc.lock", "data/kept.txt.dvc")
    git(made, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "without its file of variables")
    commit = git(made, "rev-parse", "HEAD").strip()
    lock = yaml.safe_load(made.read("dvc.lock"))
    made.write("dvc.yaml", stages)
    shutil.rmtree(made.path / "data")
    made.write("source", "another")
    assert run(made, "fourth", monkeypatch)[0] == 0
    freed = collect_garbage(made.path, NOW, best=False, do=True)
    _assert_in_cache(made, {"stages": {**lock["stages"], "kept": kept}})
    (said,) = (line for line in freed.left if commit[:8] in line)
    assert "whose dvc.yaml DVC cannot read" in said


def test_the_data_of_branches_stay_on_a_branch_without_a_commit(made: Toy) -> None:
    git(made, "add", "dvc.lock")
    git(made, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "results")
    lock = yaml.safe_load(made.read("dvc.lock"))
    for ref in git(made, "for-each-ref", "--format=%(refname)", "refs/exps").split():
        git(made, "update-ref", "-d", ref)  # so that the branch alone has them
    git(made, "checkout", "-q", "--orphan", "new")
    made.write("source", "another")
    assert made.run()[0] == 0
    collect_garbage(made.path, NOW, best=False, do=True)
    _assert_in_cache(made, lock)


def _assert_in_cache(made: Toy, lock: Any) -> None:
    outs = [out for stage in lock["stages"].values() for out in stage["outs"]]
    assert outs
    with opened(made.path) as repo:
        assert all(Path(repo.cache.local.oid_to_path(out["md5"])).exists() for out in outs)


def test_a_year_later_lines_are_added_and_moved_and_none_may_be_missed(
    made: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = made.path / ".dvcfleet"
    for name in ("fourth", "fifth"):
        collect_garbage(made.path, NOW, best=False, do=True)
        made.write("source", name)
        assert run(made, name, monkeypatch)[0] == 0
    assert [len(list(executions(state, older=older))) for older in (True, False)] == [15, 6]
    assert check_chains(state)[state / LEDGER].lines == 15
    assert audit(made.path).findings == ()
    older = (state / OLDER).read_bytes()
    for damaged in (older[:-40], older[: len(older) // 2], b"", older[:100] + bytes([older[100] ^ 1]) + older[101:]):
        (state / OLDER).write_bytes(damaged)
        assert check_chains(state)[state / LEDGER].faults, len(damaged)
    (state / OLDER).unlink()
    assert check_chains(state)[state / LEDGER].faults


def test_a_crash_before_lines_leave_the_ledger_loses_and_doubles_none(made: Toy) -> None:
    state, before = made.path / ".dvcfleet", list(executions(made.path / ".dvcfleet"))
    whole = (state / LEDGER).read_bytes()
    collect_garbage(made.path, NOW, best=False, do=True)
    (state / LEDGER).write_bytes(whole)
    assert list(executions(state)) == before
    assert check_chains(state)[state / LEDGER].faults == ()
    collect_garbage(made.path, NOW, best=False, do=True)
    assert list(executions(state)) == before
    assert check_chains(state)[state / LEDGER].faults == ()


def test_what_branches_tags_and_newer_runs_have_stays(made: Toy) -> None:
    git(made, "branch", "published", experiments(made)["first"])
    git(made, "tag", "presented", experiments(made)["second"])
    assert collect_garbage(made.path, MONTH, best=False, do=True).parts == ()
    assert "DVC's cache" not in kinds(collect_garbage(made.path, NOW, best=False, do=True))
    git(made, "tag", "-d", "presented")
    assert kinds(collect_garbage(made.path, NOW, best=False, do=True))["DVC's cache"] == "3 files"
    git(made, "checkout", "-q", "published", "--", "dvc.lock")
    made.write("source", "abcdef")
    shutil.rmtree(made.path / "turned")
    with chdir(made.path), Repo() as repo:
        repo.checkout(force=True)
    assert made.settled()


def test_the_best_run_of_each_entry_is_kept_on_wish(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = """
    stages:
      score:
        cmd: cp source metrics.json
        deps: [source]
        metrics: [{metrics.json: {cache: false}}]
    """
    made = committed(toy(scored, {"source": "{}", "params.yaml": ""}))
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")  # all are saved in the same second
    for name, ties, average in (("first", 0.5, 0.9), ("second", 0.75, 0.2), ("third", 0.25, 0.1), ("last", 0.3, 0.3)):
        made.write("source", f'{{"ties": {{"mean": {ties}}}, "average": {{"mean": {average}}}}}')
        assert run(made, name, monkeypatch)[0] == 0
    assert kinds(collect_garbage(made.path, NOW, best=True, do=False))["experiments"].startswith("1 run of")
    collect_garbage(made.path, NOW, best=True, do=True)
    assert set(experiments(made)) == {"first", "second", "last"}


@pytest.mark.parametrize("name", ["data/scores.json", "metrics.json"])
def test_the_best_run_is_found_by_scores_that_only_the_cache_has(
    toy: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scored = f"stages: {{score: {{cmd: mkdir -p data; cp source {name}, deps: [source], outs: [{name}]}}}}"
    made = committed(toy(scored, {"source": "{}", "params.yaml": ""}))
    for run_name, mean in (("first", 0.5), ("best", 0.75), ("third", 0.25), ("last", 0.3)):
        made.write("source", f'{{"ties": {{"mean": {mean}}}}}')
        assert run(made, run_name, monkeypatch)[0] == 0
    collect_garbage(made.path, NOW, best=True, do=True)
    assert set(experiments(made)) == {"best", "last"}


def test_what_another_comparison_with_the_same_cache_has_stays_and_its_run_is_waited_for(
    made: Toy, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    git(made, "worktree", "add", "-q", "--detach", str(other))
    (other / ".dvc/config.local").write_text(f"[cache]\n    dir = {made.path / '.dvc/cache'}\n")
    beside = Toy(other, "", {})
    beside.write("source", "bcdefg")
    assert "3 restored" in beside.run()[1]
    with opened(other) as repo, write_lock(repo), pytest.raises(ValueError, match="another run is at work"):
        collect_garbage(made.path, NOW, best=False, do=True)
    found = collect_garbage(made.path, NOW, best=False, do=True)
    assert kinds(found)["DVC's cache"] == "3 files"
    assert (beside.settled(), made.settled()) == (True, True)


def test_patches_and_run_cache_of_results_that_come_again_and_again_do_not_add_up(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(
        toy("stages: {same: {cmd: head -c 1 source > same, deps: [source], outs: [same]}}", {"source": "a"})
    )
    for number, source in enumerate(("ab", "ac", "ab", "ad", "ab")):
        made.write("source", source)
        assert run(made, f"run-{number}", monkeypatch, force=True)[0] == 0
        collect_garbage(made.path, NOW, best=False, do=True)
    assert len(list((made.path / ".dvcfleet/changes").iterdir())) == 1
    assert len([path for path in (made.path / ".dvc/cache/runs").rglob("*") if path.is_file()]) == 1
    assert audit(made.path).findings == ()
    assert made.settled()


def test_what_a_stage_of_a_subfolder_ran_in_stays(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "stages: {own: {cmd: cp ../other own, deps: [../other], outs: [own]}}"
    both = "stages: {both: {cmd: cat source sub/own > both, deps: [source, sub/own], outs: [both]}}"
    made = committed(toy(both, {"sub/dvc.yaml": own, "source": "a", "other": "x"}))
    for name, source in (("first", "abcdef"), ("second", "bcdefg")):
        monkeypatch.setenv(IMAGE, f"example/{name}@sha256:{name}")
        environment.cache_clear()
        made.write("source", source)
        assert run(made, name, monkeypatch)[0] == 0
    environment.cache_clear()
    assert (made.path / "sub/dvc.lock").is_file()
    collect_garbage(made.path, NOW, best=False, do=True)
    assert len(list((made.path / ".dvcfleet/environments").iterdir())) == 2
    assert audit(made.path).findings == ()


def test_a_cache_that_lies_elsewhere_is_left_alone_and_named(toy: Make, tmp_path: Path) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    made.write(".dvc/config.local", f"[cache]\n    dir = {tmp_path / 'shared'}\n")
    made.run()
    found = collect_garbage(made.path, NOW, best=False, do=True)
    assert [line.startswith("DVC's cache: ") for line in found.left] == [True]
    assert made.settled()


def test_runs_that_ended_long_ago_go_out_of_prefects_database(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    home = made.path / ".dvcfleet/prefect"
    with forking():
        started = PrefectServer(home)
    with started as server:
        server.wait()
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for source in ("abcdef", "bcdefg"):
            made.write("source", source)
            assert made.run(save_experiment=True)[0] == 0
    rows = "SELECT count(*) FROM"
    tables = ("flow_run", "task_run", "log", "task_run_state", "artifact")
    with closing(sqlite3.connect(home / "prefect.db")) as connection, connection:
        before = [connection.execute(f"{rows} {table}").fetchone()[0] for table in tables]
        old = datetime.now(UTC) - timedelta(days=40)
        first = connection.execute("SELECT id FROM flow_run ORDER BY start_time").fetchone()[0]
        moment = f"{old:%Y-%m-%d %H:%M:%S.%f}"
        connection.execute("UPDATE flow_run SET end_time = ? WHERE id = ?", (moment, first))
    assert database.count_old(home, datetime.now(UTC) - MONTH) == (1, 2)
    with forking():
        found = collect_garbage(made.path, MONTH, best=False, do=True)
    assert kinds(found) == {"Prefect": "1 flow run"}
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        after = [connection.execute(f"{rows} {table}").fetchone()[0] for table in tables]
    assert [2 * count for count in after] == before
    assert database.count_old(home, datetime.now(UTC) - MONTH) == (0, 1)


@pytest.mark.parametrize("text", ["", "30", "0d", "-1d", "30 days", "1y"])
def test_a_time_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected hours, days or weeks"):
        time_before(text)


@pytest.mark.parametrize("text", ["1000000d", "99999999999999d"])
def test_a_time_before_all_dates_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--keep: {text} is before the year 1"):
        time_before(text)


def test_a_time_is_hours_days_or_weeks() -> None:
    assert [time_before(text) for text in ("12h", "30d", "8w")] == [
        timedelta(hours=12),
        timedelta(days=30),
        timedelta(days=56),
    ]


@pytest.mark.drill
def test_mlflows_runs_that_no_receipt_names_go_with_their_artifacts(
    tiny_copy: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    first = receipts(tiny_copy)
    params = tiny_copy / "params.yaml"
    params.write_text(params.read_text().replace("density: 0.5", "density: 0.25"))
    merganser(tiny_copy, "run", "--workers", "2", PREFECT_API_URL=prefect_api)
    now = receipts(tiny_copy)
    assert {entry for entry in now if now[entry] != first[entry]} == {"ties"}
    lost = tiny_copy / "mlartifacts" / first["ties"] / "artifacts"
    lost.mkdir(parents=True)
    (lost / "left").write_text("by an older version")
    found = collect_garbage(tiny_copy, NOW, best=False, do=True)
    assert kinds(found)["MLflow"] == "1 run"
    assert kinds(found)["experiments"].startswith("1 run of")
    with closing(sqlite3.connect(tiny_copy / "mlflow.db")) as store:
        runs = {run for (run,) in store.execute("SELECT run_uuid FROM runs").fetchall()}
        (models,) = store.execute("SELECT count(*) FROM logged_models WHERE source_run_id = ?", (first["ties"],))
    assert set(now.values()) <= runs
    assert (first["ties"] in runs, models, lost.parent.exists()) == (False, (0,), False)
    assert audit(tiny_copy).findings == ()
    assert is_clean(tiny_copy)


def test_what_a_signature_is_about_stays_and_what_it_no_longer_is_does_not(
    made: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = made.path / ".dvcfleet" / LEDGER
    statement = {"subject": [{"name": ".dvcfleet/ledger.jsonl", "digest": {"sha256": sha256(ledger.read_bytes())}}]}
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    made.write("signatures/record.intoto.json", json.dumps({"payload": payload}))
    found = collect_garbage(made.path, NOW, best=False, do=True)
    assert "ledger" not in kinds(found)
    assert [line.split(":")[0] for line in found.left] == ["ledger"]
    made.write("source", "defghi")
    run(made, "fourth", monkeypatch)
    assert kinds(collect_garbage(made.path, NOW, best=False, do=True))["ledger"] == "9 lines compressed"


def test_nothing_is_freed_where_git_does_not_answer(made: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = set((made.path / ".dvc/cache/files/md5").glob("*/*"))
    monkeypatch.setenv("GIT_DIR", str(made.path / "elsewhere"))
    with pytest.raises(ValueError, match="git fails"):
        collect_garbage(made.path, NOW, best=False, do=True)
    assert set((made.path / ".dvc/cache/files/md5").glob("*/*")) == objects
