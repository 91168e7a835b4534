"""Stages of other people's repositories: what DVC runs is run, and what DVC fails for one stage fails for that one."""

import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.repo import Repo

from dvcfleet.lineage.audit import audit
from dvcfleet.lineage.rerun import Rerun, RerunError
from merganser.errors import InputError
from merganser.flows.evidence.archive.writing import archive
from tests.dvcfleet.toy import Make, Toy
from tests.support import python
from tests.tiny import dvc

ODD = """
stages:
  fine: {cmd: cat source > fine, deps: [source], outs: [fine]}
  wildcard: {cmd: echo > wildcard, params: ["models.*.lr"], outs: [wildcard]}
  empty: {cmd: echo > empty, params: [nothing, numbers.1], outs: [empty]}
  date: {cmd: echo > date, params: [dates.toml: [day]], outs: [date]}
  missing: {cmd: echo > missing, params: [nowhere], outs: [missing]}
  binary: {cmd: echo > binary, params: [binary.yaml: [x]], outs: [binary]}
  folder: {cmd: echo > folder, params: [folder.yaml: [x]], outs: [folder]}
  broken: {cmd: echo > broken, params: [broken.json: [x]], outs: [broken]}
  unpacked: {cmd: echo > unpacked, params: [code.py: [x]], outs: [unpacked]}
  after: {cmd: cat date > after, deps: [date], outs: [after]}
"""
ODD_FILES = {
    "source": "s",
    "params.yaml": "models: {one: {lr: 1}}\nnothing: null\nnumbers: {1: .inf}\n",
    "dates.toml": "day = 2020-01-02\n",
    "folder.yaml/x": "",
    "broken.json": "{",
    "code.py": "x = open('y')\n",
}
FAILING = {
    "date": "Object of type date is not JSON serializable",
    "missing": "Parameters 'nowhere' are missing from 'params.yaml'.",
    "binary": "Unable to read parameters from 'binary.yaml'",
    "folder": "'folder.yaml' is a directory, expected a parameters file",
    "broken": "Unable to read parameters from 'broken.json'",
}


@pytest.fixture
def odd(toy: Make) -> Toy:
    made = toy(ODD, ODD_FILES)
    (made.path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    return made


def test_parameters_that_dvc_cannot_read_fail_their_own_stage_with_dvcs_words(odd: Toy, toy: Make) -> None:
    theirs = toy.copy_of(odd)
    repro = [*python(), "-m", "dvc", "repro", "-k"]
    said = subprocess.run(repro, cwd=theirs.path, capture_output=True, text=True, check=False).stderr
    code, text = odd.run()
    assert code == 1
    for name, why in FAILING.items():
        assert why in said
        assert f"{name} failed: {why}" in text
    assert "after blocked" in text
    assert "other internals" not in text
    assert odd.read("dvc.lock") == theirs.read("dvc.lock")
    assert odd.states()["date"] == "stale"
    assert odd.reasons("date") == [FAILING["date"]]


def test_what_dvc_refuses_for_the_whole_repository_is_refused_in_one_line(toy: Make) -> None:
    dated = toy("stages: {a: {cmd: echo > a, params: [day], outs: [a]}}", {"params.yaml": "day: 2020-01-02\n"})
    assert dated.run() == (2, "dvc.yaml: Unsupported value of type 'date' in 'params.yaml:day'\n")
    hidden = toy("stages: {}", {"sub/.dvcignore": ""}, name="hidden")
    for text, reason in ((b"ok\n!\n", "Invalid git pattern: '!'"), (b"\xff", "'utf-8' codec can't decode byte 0xff")):
        (hidden.path / "sub/.dvcignore").write_bytes(text)
        code, said = hidden.run()
        assert (code, said.startswith(f"sub/.dvcignore: {reason}")) == (2, True), said


def test_a_parameters_file_that_a_stage_writes_is_waited_for(toy: Make) -> None:
    written = toy(
        """
        stages:
          use: {cmd: cat made.yaml > use.txt, params: [made.yaml: [lr]], outs: [use.txt]}
          make: {cmd: "echo lr: $(cat source) > made.yaml", deps: [source], outs: [made.yaml]}
        """,
        {"source": "3"},
    )
    theirs = toy.copy_of(written)
    for source in ("3", "4"):
        written.write("source", source)
        theirs.write("source", source)
        assert written.run()[0] == 0
        dvc(theirs.path, "repro", "-q")
        assert written.read("dvc.lock") == theirs.read("dvc.lock")
    assert written.settled()


def test_a_data_set_of_dvc_yaml_is_a_dependency(toy: Make) -> None:
    other = toy("stages: {}", {"f": "data"}, name="other")
    dvc(other.path, "add", "-q", "f")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(other.path)]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    made = toy("stages: {before: {cmd: cat source > before, deps: [source], outs: [before]}}", {"source": ""})
    dvc(made.path, "ds", "add", "numbers", "--dvc", str(other.path), "--path", "f")
    read = "  read: {cmd: cat before > read.txt, deps: ['ds://numbers', before], outs: [read.txt]}"
    stages = f"stages:\n  before: {{cmd: cat source > before, deps: [source], outs: [before]}}\n{read}\n"
    made.write("dvc.yaml", f"{stages}datasets:{made.read('dvc.yaml').partition('datasets:')[2]}")
    theirs = toy.copy_of(made)
    dvc(theirs.path, "repro", "-q")
    assert made.run()[0] == 0
    assert made.read("dvc.lock") == theirs.read("dvc.lock")
    assert made.settled()
    with chdir(made.path), Repo() as repo:
        assert repo.datasets["numbers"].lock


OUTSIDE = """
stages:
  absolute:
    cmd: cat source > {outside}/file
    deps: [source]
    outs: [{{"{outside}/file": {{cache: false}}}}]
  above:
    cmd: mkdir -p ../outside/folder; cat source > ../outside/folder/file
    deps: [source]
    outs: [../outside/folder: {{cache: false}}]
  after:
    cmd: cat {outside}/file ../outside/folder/file > after
    deps: ["{outside}/file", ../outside/folder]
    outs: [after]
"""


def test_outputs_outside_the_repository_run_and_are_verified_but_not_run_again(toy: Make, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    made = toy(OUTSIDE.format(outside=outside), {"source": "s"})
    theirs = toy.copy_of(made)
    dvc(theirs.path, "repro", "-q")
    assert made.run()[0] == 0
    assert made.read("dvc.lock") == theirs.read("dvc.lock")
    assert made.settled()
    assert audit(made.path).findings == ()
    for path in (outside / "file", outside / "folder/file"):
        path.write_text("changed")
        (found,) = audit(made.path).findings
        assert found.kind == "changed"
        path.write_text("s")
    with pytest.raises(RerunError, match=r"absolute: writes .*/outside/file, outside the repository"):
        audit(made.path, again=Rerun())
    assert (outside / "file").read_text() == "s"
    with pytest.raises(InputError, match=r"absolute: writes .*/outside/file, outside the repository"):
        archive(made.path, tmp_path / "x.tar", True)
    assert made.run()[0] == 0
    made.write("dvc.yaml", "stages: {other: {cmd: echo > other, outs: [other]}}")
    assert made.run(prune=True)[0] == 0
    assert (outside / "file").exists()


@pytest.mark.parametrize("targets", [(), ("after",)])
def test_a_cached_output_outside_the_repository_is_refused_before_anything_runs(
    toy: Make, tmp_path: Path, targets: tuple[str, ...]
) -> None:
    (tmp_path / "outside").mkdir()
    text = OUTSIDE.format(outside=tmp_path / "outside").replace("cache: false", "cache: true")
    made = toy(text, {"source": "s"})
    code, said = made.run(*targets)
    assert code == 2
    assert "outside" in said
    assert "AssertionError" not in said
    assert list((tmp_path / "outside").iterdir()) == []
