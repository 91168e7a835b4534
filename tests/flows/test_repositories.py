"""A comparison in a repository of its own: begun by the package, run, reproduced by DVC, brought to other code."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dvcfleet.repository import opened
from merganser.config.describing import schema_text
from merganser.config.loading import load_params
from merganser.config.points import NONE
from merganser.errors import InputError
from merganser.flows.commands.init import Suite, init
from merganser.flows.comparison import MERGANSER
from merganser.flows.steps.updating import dvc_yaml, other_version, renew, update
from merganser.flows.suites.ready import use
from merganser.tasks.code import texts, write_code
from merganser.tasks.code_record import RECORD, Digest, pipeline_digest, read_record
from merganser.tasks.identity import FILE
from merganser.tasks.stage import check_found, code_tree
from tests.config.test_drafting import write_texts
from tests.drills.repro import hashes
from tests.flows.conftest import Done, Refused
from tests.support import python
from tests.tiny import ROOT, dvc, environment, forking_environment, is_clean, merganser
from tests.tiny_transformers import write_model


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_comparison_begins_with_the_users_files_alone_and_a_commit(tmp_path: Path) -> None:
    said = init(tmp_path / "demo", Suite("image"))
    assert said[0] == f"{tmp_path}/demo: the comparison image"
    kept = set(git(tmp_path / "demo", "ls-files").splitlines())
    assert {"params.yaml", "dvc.yaml", "profiles.yaml", "prefect.yaml", "README.md", str(RECORD), str(FILE)} <= kept
    assert not [name for name in kept if name.startswith(("merganser/", "tasks/", "flows/", "dvcfleet/", "suites/"))]
    assert git(tmp_path / "demo", "status", "--porcelain") == ""
    assert f"deps: [{RECORD}]\n" in (tmp_path / "demo/dvc.yaml").read_text()
    use(tmp_path / "demo", "encoder")
    assert "params.yaml" in git(tmp_path / "demo", "status", "--porcelain")
    assert (tmp_path / "demo/examples/texts/encoder/dvc.yaml").is_file()
    with pytest.raises(InputError, match="demo: "):
        init(tmp_path / "demo", Suite("image"))
    with pytest.raises(InputError, match=r"no suite is called 'imgae'.*did you mean \"image\""):
        init(tmp_path / "other", Suite("imgae"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]


def test_models_and_data_say_what_they_are_and_what_they_do_not_say_is_named(
    tmp_path: Path, done: Done, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(("base", "kind", "subject")):
        write_model(tmp_path / "mine" / name, "bert", seed=seed)
    write_texts(tmp_path / "mine/data")
    (here := tmp_path / "one").mkdir()
    monkeypatch.chdir(here)  # a shell's present folder, which stays its own
    models = [f"{name}=../mine/{name}" for name in ("base", "kind", "subject")]
    said = done(here, "init", ".", "--models", *models, "--data", "kind=../mine/data")
    assert os.path.samefile(".", here)
    assert "base.family: encoder, base.heads: [classifier.*], tasks.kind.kind: text_classification" in said
    assert f"data: {{source: {tmp_path}/mine/data, columns: " in Path("params.yaml").read_text()
    assert Path("params.yaml").read_text().startswith("# yaml-language-server: $schema=params.schema.json\n")
    assert Path("params.schema.json").read_text() == schema_text()
    for words in (said, refused(here, "run", "--dry-run")):
        assert "tasks.subject.data: missing" in words
    own = [*models, "--data", "kind=../mine/data", "subject=../mine/data"]
    assert said.rstrip().endswith("then `cd . && merganser run` makes it")
    whole = done(here, "init", "../two", "--models", *own)
    assert "filled in" not in whole
    assert whole.rstrip().endswith("\n`cd ../two && merganser run` makes it")
    params = load_params(tmp_path / "two/params.yaml")
    assert (params.tasks["subject"].kind, params.evaluation.split) == ("text_classification", "test")
    assert git(tmp_path / "two", "status", "--porcelain") == ""


def test_in_a_git_repository_it_becomes_a_part_of_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    said = init(tmp_path / "study/first", Suite("image"))
    assert said[-1] == f"it is in the git repository {tmp_path}, uncommitted"
    assert not (tmp_path / "study/first/.git").exists()
    assert git(tmp_path, "status", "--porcelain") == "?? study/\n"  # nothing is in its index
    assert dvc(tmp_path / "study/first", "root") == ".\n"


def test_a_command_before_the_first_run_of_a_short_params_yaml_names_what_completes_it(
    begun: Path, refused: Refused, done: Done
) -> None:
    text = (begun / "params.yaml").read_text()
    (begun / "params.yaml").write_text(text.replace("  family: open_clip\n", ""))
    said = refused(begun, "lineage", "verify")
    assert (
        "Could not find 'base.family'; run `merganser status` first: it adds the missing values to params.yaml" in said
    )
    done(begun, "status")
    assert "family: open_clip" in (begun / "params.yaml").read_text()


def test_dvc_alone_refuses_the_points_of_another_params_yaml_at_its_first_stage(begun: Path) -> None:
    command = [*python(), "-m", "dvc", "repro"]
    said = subprocess.run(command, cwd=begun, env=forking_environment(), capture_output=True, text=True, check=False)
    assert said.returncode != 0
    assert "points.yaml: is of another params.yaml; run `merganser status` to rewrite it" in said.stdout + said.stderr
    assert not (begun / "data/base").exists()


@pytest.mark.drill
def test_it_runs_and_dvc_alone_reproduces_it(begun: Path, tmp_path: Path) -> None:
    merganser(begun, "status")
    shutil.copytree(begun, tmp_path / "copy", symlinks=True)
    done = merganser(begun, "run", "--workers", "2")
    assert (begun / "report/index.html").is_file(), done.stdout
    assert is_clean(begun)
    dvc(tmp_path / "copy", "repro", "--quiet")
    assert hashes(tmp_path / "copy") == hashes(begun)
    assert "nothing has changed" in merganser(begun, "lineage", "verify").stdout
    assert update(begun)[-1].endswith(": nothing changes")


def as_by(folder: Path, version: str, **codes: dict[str, str]) -> None:
    """Have a comparison's record say that another version made its results, by this code of methods."""
    record = json.loads((folder / RECORD).read_text())
    for method, code in codes.items():
        record["code"][f"methods/{method}.txt"] |= code
    (folder / "dvc.yaml").write_text("stages: {}\n")  # as that version wrote it
    (folder / RECORD).write_text(json.dumps(record | {"version": version, "pipeline": pipeline_digest("stages: {}\n")}))


@pytest.mark.drill
def test_a_run_brings_a_comparison_to_the_installed_version_and_runs_what_has_other_results(begun: Path) -> None:
    assert merganser(begun, "run").returncode == 0
    as_by(begun, "0.0.9", ties={"of": "0" * 64, "digest": "1" * 64}, average={"digest": "2" * 64})
    (begun / "data/code/methods/ties.txt").chmod(0o644)
    (begun / "data/code/methods/ties.txt").write_text("0" * 64 + "\n")
    command = ["dvc", "repro", "--single-item", "code"]
    shutil.copyfile(ROOT / "dvc.yaml", begun / "dvc.yaml")
    plain = subprocess.run(command, cwd=begun, env=environment(), capture_output=True, text=True, check=False)
    assert plain.returncode != 0
    (begun / "dvc.yaml").write_text("stages: {}\n")
    (begun / "params.schema.json").write_text("{}")  # an earlier version's
    done = merganser(begun, "run", "--workers", "2").stdout
    assert "the results here are by 0.0.9" in done
    assert "methods/ties: other results" in done
    assert "merge@ties" not in re.findall(r"([^ ]+) done in", done)  # its class is that of dvc.lock again
    assert (begun / "dvc.yaml").read_text() == dvc_yaml()
    assert (begun / "params.schema.json").read_text() == schema_text()
    assert is_clean(begun)


def test_an_update_says_which_results_change_and_keeps_what_it_is_told(begun: Path) -> None:
    before = read_record(begun)
    assert update(begun) == [f"Merganser {before.version}: nothing changes"]
    as_by(begun, "0.0.9", ties={"of": "0" * 64, "digest": "1" * 64}, average={"digest": "2" * 64})
    assert set(other_version(begun)) == {"code"}
    with pytest.raises(InputError, match=r"--keep: the installed version changes no results of methods/average"):
        update(begun, ["methods/average"])
    assert update(begun, ["methods/ties"]) == [
        f"Merganser {before.version}; the results here are by 0.0.9",
        "1 stages and methods have other code that writes the same bytes: their results stay",
        "kept as before, and refused if they have to run: methods/ties",
    ]
    kept = read_record(begun)
    assert kept.digests["methods/ties.txt"] == Digest("0" * 64, "1" * 64, "0.0.9")
    written = texts(code_tree(), kept)
    assert (written["methods/ties.txt"], written["kept.txt"]) == ("0" * 64 + "\n", "methods/ties 0.0.9\n")
    assert (begun / "dvc.yaml").read_text() == dvc_yaml()
    assert other_version(begun) == {}
    with opened(begun) as repo:
        assert list(renew(repo)) == []  # a run keeps it too
    assert update(begun) == ["methods/ties: other results"]
    assert read_record(begun) == before


def test_plain_dvc_refuses_other_code_and_a_kept_method_does_not_run(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(begun)
    as_by(begun, "0.0.9", ties={"of": "0" * 64, "digest": "1" * 64})
    with pytest.raises(
        InputError, match=r"by Merganser 0\.0\.9, .* has other code of methods/ties; run `merganser update`"
    ):
        write_code()
    update(begun, ["all"])
    write_code()
    monkeypatch.setenv("DVC_STAGE", "merge@ties")
    with pytest.raises(InputError, match=r"methods\.ties: .*keeps the results of Merganser 0\.0\.9"):
        check_found("methods", "ties")
    check_found("methods", "average")


def test_an_edited_pipeline_is_refused_and_a_clone_needs_no_update(begun: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a clone of Merganser's runs its own code"):
        update(tmp_path)
    (begun / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(InputError, match=r"dvc\.yaml: was edited since Merganser .* wrote it"):
        update(begun)
    for text in ("", "[]", '{"format": 9, "version": "9.0.0", "code": {}}', '{"format": 1}'):
        (begun / RECORD).write_text(text)
        with pytest.raises(InputError, match=f"{RECORD}: "):
            update(begun)


def test_the_list_of_points_is_written_only_if_dvc_yaml_reads_it_and_never_through_a_link(
    begun: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = begun.parent / "elsewhere"
    (begun / "points.yaml").unlink()
    (begun / "points.yaml").symlink_to(elsewhere)
    params = (begun / "params.yaml").read_text()
    (begun / "params.yaml").write_text("methods: [")
    refused(begun, "status")
    assert not elsewhere.exists()
    (begun / "params.yaml").write_text(params)
    (begun / "points.yaml").unlink()
    pipeline = (begun / "dvc.yaml").read_text()
    (begun / "dvc.yaml").write_text(pipeline.replace("  - points.yaml\n", "  - {points: {}, steps: {}}\n"))
    monkeypatch.chdir(begun)
    MERGANSER.before_reading()
    assert not (begun / "points.yaml").exists()
    (begun / "dvc.yaml").write_text(pipeline)
    MERGANSER.before_reading()
    assert (begun / "points.yaml").is_file()


@pytest.mark.parametrize(
    "damage", [b"", b"points:\n", b"\xff", bytes(9), b"a: &a [*a]\n", b"points: {}\nsteps: {}\n---\n"]
)
def test_a_damaged_list_of_points_is_written_again(begun: Path, done: Done, damage: bytes) -> None:
    (begun / "points.yaml").write_bytes(damage)
    done(begun, "status")
    assert (begun / "points.yaml").read_text() == NONE
