import json
import os
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from dvcfleet.record.chain import check_chains
from dvcfleet.record.environments import read_environment
from dvcfleet.record.ledger import executions
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy

SCORED = """
stages:
  cut:
    cmd: head -c 3 source > cut.txt
    deps: [source]
    outs: [cut.txt]
  score:
    cmd:
      - mkdir -p scores tables; rev cut.txt > tables/rows.csv
      - wc -c < cut.txt | sed 's/.*/{"size":&}/' > scores/size.json
    deps: [cut.txt]
    params: [score.by]
    outs: [tables]
    metrics: [{scores/size.json: {cache: false}}]
plots:
  - rows: {y: {tables/rows.csv: size}}
"""
REFS = "refs/exps/*:refs/exps/*"
SCORED_FILES = {"source": "abcdef", "params.yaml": "score: {by: size}\n"}


def git(toy: Toy, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=toy.path, check=True, capture_output=True, text=True).stdout


def committed(toy: Toy) -> Toy:
    git(toy, "add", "--all")
    git(toy, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "start")
    return toy


def experiments(toy: Toy) -> dict[str, str]:
    """The experiments' commits by their names, as `dvc exp list` has them."""
    with chdir(toy.path), Repo() as repo:
        return {name: commit for found in repo.experiments.ls().values() for name, commit in found}


def shown(toy: Toy) -> dict[str, Any]:
    """What `dvc exp show` says of each experiment."""
    with chdir(toy.path), Repo() as repo:
        states = [state.dumpd() for state in repo.experiments.show()]
    ranges = [each for state in states for each in state["experiments"] or ()]
    return {each["name"]: each["revs"][0]["data"] for each in ranges}


def run(toy: Toy, name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[int, str]:
    """Run with a name, and save the run as an experiment."""
    monkeypatch.setenv("DVCFLEET_RUN", name)
    return toy.run(**{"save_experiment": True} | options)


HIDDEN = """
vars: [hidden.yaml]
stages:
  t:
    params: [hidden.yaml: [token]]
    cmd: for x in hidden.bin open.txt hidden.json known.txt; do echo 1 > $x; done
    outs: [{hidden.bin: {cache: false}}, {open.txt: {cache: false}}, {known.txt: {cache: false}}]
    metrics: [{hidden.json: {cache: false}}]
"""


def test_an_experiment_leaves_out_what_git_ignores_as_dvcs_own_do(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = toy(HIDDEN, {".gitignore": "hidden.*\nknown.txt\n", "known.txt": "", "hidden.yaml": "token: t"})
    git(made, "add", "--force", "known.txt")
    committed(made)
    code, said = run(made, "brave-heron", monkeypatch)
    assert (code, "saved as the DVC experiment brave-heron" in said) == (0, True), said
    kept = git(made, "ls-tree", "-r", "--name-only", experiments(made)["brave-heron"]).split()
    assert {"open.txt", "known.txt"} <= set(kept)
    assert not {"hidden.bin", "hidden.json", "hidden.yaml"} & set(kept)


def test_a_change_of_the_second_in_which_git_wrote_its_index_is_saved(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(SCORED, SCORED_FILES))
    git(made, "config", "core.trustctime", "false")
    source = made.path / "source"
    os.utime(source, (1_700_000_000, 1_700_000_000))
    git(made, "add", "--renormalize", "--", "source")
    source.write_text("fedcba")  # in place, of the same size
    for path in (source, made.path / ".git/index"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    assert run(made, "brave-heron", monkeypatch)[0] == 0
    commit = experiments(made)["brave-heron"]
    assert git(made, "show", f"{commit}:source") == "fedcba"
    (patch,) = (made.path / ".dvcfleet/changes").glob("*.patch")
    assert "+fedcba" in patch.read_text()


def test_in_a_repository_without_a_project_a_run_writes_nothing_to_git_unless_asked(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(SCORED, SCORED_FILES))
    objects = sorted((made.path / ".git/objects").glob("??/*"))
    code, said = run(made, "brave-heron", monkeypatch, save_experiment=False)
    assert (code, "experiment" in said) == (0, False), said
    assert sorted((made.path / ".git/objects").glob("??/*")) == objects
    assert experiments(made) == {}


def test_a_user_whom_git_does_not_know_is_no_obstacle(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = committed(toy(SCORED, SCORED_FILES))
    git(scored, "config", "user.useConfigOnly", "true")  # as if the system knew no name either
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("EMAIL", raising=False)
    code, said = run(scored, "brave-heron", monkeypatch)
    assert (code, "saved as the DVC experiment brave-heron" in said) == (0, True), said
    assert git(scored, "log", "-1", "--format=%an %ae", experiments(scored)["brave-heron"]) == (
        "dvcfleet dvcfleet@localhost\n"
    )


def test_a_run_is_an_experiment_that_dvc_shows_with_its_params_and_metrics(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(SCORED, SCORED_FILES))
    made.write("params.yaml", "score: {by: width}\n")
    code, said = run(made, "brave-heron", monkeypatch)
    assert (code, "saved as the DVC experiment brave-heron" in said) == (0, True)
    found = shown(made)["brave-heron"]
    assert found["params"]["params.yaml"]["data"] == {"score": {"by": "width"}}
    assert found["metrics"]["scores/size.json"]["data"] == {"size": 3}
    assert found["outs"]["cut.txt"]["hash"]


def test_objects_of_gits_that_a_crash_left_empty_or_half_are_written_again(toy: Make) -> None:
    made = committed(toy(SCORED, SCORED_FILES))
    at_start = set((made.path / ".git/objects").glob("??/*"))
    assert made.run(save_experiment=True)[0] == 0
    for number, path in enumerate(sorted(set((made.path / ".git/objects").glob("??/*")) - at_start)):
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2 if number % 2 else 0)
    shutil.rmtree(made.path / ".git/refs/exps")
    code, said = made.run(force=True, save_experiment=True)
    assert (code, "saved as the DVC experiment" in said) == (0, True), said
    git(made, "fsck", "--full")
    assert len(experiments(made)) == 1


def test_saving_changes_neither_the_workspace_nor_gits_index_nor_the_branch(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    made.write("source", "changed")
    made.write("unknown", "to git")
    git(made, "add", "source")
    branch = git(made, "rev-parse", "HEAD"), git(made, "diff", "--cached"), git(made, "stash", "list")
    assert run(made, "brave-heron", monkeypatch)[0] == 0
    assert (git(made, "rev-parse", "HEAD"), git(made, "diff", "--cached"), git(made, "stash", "list")) == branch
    assert made.read("unknown") == "to git"
    assert made.settled()
    files = git(made, "ls-tree", "-r", "--name-only", experiments(made)["brave-heron"]).split()
    assert {"dvc.yaml", "dvc.lock", "params.yaml", "source"} <= set(files)
    assert not {"unknown", "cut.txt", "turned/text", "end.txt"} & set(files)


def test_applying_an_experiment_brings_its_inputs_and_outputs_back(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    git(made, "config", "user.name", "a")  # DVC's own `apply` stashes changes, which takes one
    git(made, "config", "user.email", "a@b")
    run(made, "first", monkeypatch)
    end = made.read("end.txt")
    made.write("source", "fedcba")
    run(made, "second", monkeypatch)
    assert made.read("end.txt") != end
    with chdir(made.path), Repo() as repo:
        repo.experiments.apply("first")
    assert (made.read("source"), made.read("end.txt")) == ("abcdef", end)
    assert made.settled()
    assert "nothing to do" in run(made, "third", monkeypatch)[1]
    assert set(experiments(made)) == {"first", "second"}


def test_an_experiment_holds_its_runs_lines_of_the_ledger_which_apply_brings_to_a_clone(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    for name, source in (("first", "abcdef"), ("second", "fedcba")):
        made.write("source", source)
        run(made, name, monkeypatch)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(made.path), str(clone)], check=True)
    for command in (["config", "user.name", "a"], ["config", "user.email", "a@b"], ["fetch", "-q", "origin", REFS]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    shutil.copytree(made.path / ".dvc/cache", clone / ".dvc/cache")  # as `dvc pull` would
    for name in ("second", "first", "second"):
        with chdir(clone), Repo() as repo:
            repo.experiments.apply(name)
    state = clone / ".dvcfleet"
    lines = (made.path / ".dvcfleet/ledger.jsonl").read_text().splitlines()
    there = {path: path.read_text().splitlines() for path in (state / "ledgers").iterdir()}
    assert sorted(there.values()) == sorted([lines[:3], lines[3:]])
    assert [chain.faults for chain in check_chains(state).values()] == [(), (), ()]
    assert {line.run for line in executions(state)} == {"first", "second"}
    assert read_environment(state, next(executions(state)).environment)
    for path, kept in there.items():
        for cut in (kept[1:2], kept[:-1], [kept[0], kept[2]]):
            path.write_text("\n".join(cut))
            assert check_chains(state)[path].faults
    # Where the lines are from, those of an experiment that is applied are there already.
    made_state = made.path / ".dvcfleet"
    (made_state / "ledgers").mkdir()
    (made_state / "ledgers/copy.jsonl").write_text("\n".join(lines[:3]))
    assert [line.stage for line in executions(made_state)] == ["cut", "turn", "end"] * 2


def test_a_run_that_failed_is_saved_once_it_has_gone_on_and_ended_well(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = committed(toy(CHAIN.replace("cat turned/*", "test -f go && cat turned/*"), CHAIN_FILES))
    assert run(made, "brave-heron", monkeypatch)[0] == 1
    assert experiments(made) == {}
    made.write("go", "")
    assert run(made, "other", monkeypatch)[0] == 0
    assert set(experiments(made)) == {"brave-heron"}


def test_a_run_killed_after_its_last_stage_is_saved_by_the_next(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    run(made, "first", monkeypatch)
    git(made, "update-ref", "-d", git(made, "for-each-ref", "--format=%(refname)", "refs/exps").strip())
    # What a kill between the last stage and the experiment leaves.
    (made.path / ".dvcfleet/run.json").write_text(json.dumps({"name": "first"}))
    assert "nothing to do" in run(made, "second", monkeypatch)[1]
    assert set(experiments(made)) == {"first"}


def test_without_a_commit_or_without_git_nothing_is_saved_and_nothing_said(
    toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, options in (("no-commit", []), ("no-git", ["--no-scm"])):
        made = toy(CHAIN, CHAIN_FILES, name)
        if options:
            for folder in (".git", ".dvc"):
                subprocess.run(["rm", "-r", made.path / folder], check=True)
            Repo.init(str(made.path), no_scm=True).close()
        code, said = run(made, "brave-heron", monkeypatch)
        assert (code, "experiment" in said) == (0, False)


def test_git_without_an_identity_and_a_git_that_refuses(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = committed(toy(CHAIN, CHAIN_FILES))
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.delenv("EMAIL", raising=False)
    assert "saved as the DVC experiment first" in run(made, "first", monkeypatch)[1]
    made.write("source", "fedcba")
    lock = Path(made.path, ".git", git(made, "for-each-ref", "--format=%(refname)", "refs/exps").strip() + ".lock")
    lock.touch()  # another git is at it
    code, said = run(made, "first", monkeypatch)
    assert (code, "not saved as a DVC experiment" in said) == (0, True)


@pytest.mark.parametrize("name", ["a/b", "../up", "a..b", "-delete", "a b", "x.lock", "a\n"])
def test_a_name_that_git_does_not_take_is_refused_before_any_work(
    name: str, toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    code, said = run(made, name, monkeypatch)
    assert (code, made.ran()) == (2, [])
    assert "DVCFLEET_RUN" in said
