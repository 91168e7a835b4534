"""Another comparison with the cache of this one, in a repository of its own; coming back to a suite."""

import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.dvc_adapter.lockfiles import read_lock_file
from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.commands.init import Same, Suite, init
from merganser.flows.repositories.identity import comparisons_sharing_cache
from merganser.flows.repositories.trials import Wish, make_trial
from merganser.flows.suites.files import without_head
from merganser.flows.suites.ready import use
from merganser.tasks.identity import FILE
from tests.flows.conftest import Done
from tests.flows.test_own_methods import METHOD
from tests.tiny import ROOT

TINY = (ROOT / "tests/tiny/params.yaml").read_text()
OTHER = TINY.replace("seed: 0", "seed: 1")
STAGES = {
    "stages": {
        "seeded": {"cmd": "mkdir -p data && echo ${seed} > data/seeded", "outs": [{"data/seeded": {"persist": True}}]},
        "merge": {
            "foreach": "${methods}",
            "do": {
                "cmd": "mkdir -p data/merged && echo ${key} ${seed} > data/merged/${key}",
                "outs": ["data/merged/${key}"],
            },
        },
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A committed repository of git and DVC with two suites, the first in use, and models that git does not keep."""
    root = tmp_path / "root"
    for name, text in (("one", TINY), ("two", OTHER)):
        (root / "suites").mkdir(parents=True, exist_ok=True)
        (root / f"suites/{name}.yaml").write_text(text)
    (root / "params.yaml").write_text(TINY)
    (root / "dvc.yaml").write_text(yaml.safe_dump(STAGES))
    for name in ("hub/base", "hub/dark", "hub/light", "datasets/dark"):
        (root / name).mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    Repo.init(str(root)).close()
    git(root, "add", "suites", "params.yaml", "dvc.yaml", ".dvc/config", ".dvc/.gitignore")
    git(root, "commit", "-qm", "all")
    return root


def reproduce(root: Path) -> None:
    with chdir(root), Repo() as repo:
        repo.reproduce()


def git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=T", "-c", "user.email=t@example.org", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_comparison_with_the_cache_of_another_has_its_choices_and_a_repository_of_its_own(
    root: Path, tmp_path: Path
) -> None:
    reproduce(root)
    (root / "params.yaml").write_text(TINY.replace("seed: 0", "seed: 7"))
    said = init(tmp_path / "beside", Same(root), root)
    place = tmp_path / "beside"
    assert (place / "params.yaml").read_text() == (root / "params.yaml").read_text()
    assert read_lock_file(place / "dvc.lock") == read_lock_file(root / "dvc.lock")
    with Repo(str(root)) as here, Repo(str(place)) as there:
        assert there.cache.local.path == here.cache.local.path == str(root / ".dvc/cache/files/md5")
        assert there.tmp_dir != here.tmp_dir
    for one, other in ((root, place), (place, root)):
        with opened(one) as repo:
            assert comparisons_sharing_cache(repo) == [other]
    assert (place / ".git").is_dir()
    assert not (root / FILE).exists()
    assert (place / FILE).exists()
    assert (place / "hub/base").resolve() == root / "hub/base"
    assert not (place / "datasets/light").exists()  # nor is it here
    assert sum("git does not track it" in line for line in said) == 4


def test_its_methods_of_ones_own_and_a_path_beyond_ascii_are_taken_over_by_a_trial_too(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root.rename(tmp_path / "Zoë")
    for folder in (".merganser", "methods"):
        (root / folder).mkdir()
    (root / ".merganser/kept").touch()
    (root / "methods/halfway.py").write_text(METHOD)
    entry = "\nmethods:\n  halfway: {method: halfway, reads: deltas}"
    (root / "params.yaml").write_text(TINY.replace("\nmethods:", entry))
    init(tmp_path / "beside", Same(root), root)
    monkeypatch.chdir(root / "methods")  # a user may be in any folder of it
    trial, _ = make_trial(root, Wish(("methods.halfway.threshold=0.3",)))
    for place in (tmp_path / "beside", trial):
        assert (place / "methods/halfway.py").read_text() == METHOD
        with Repo(str(place)) as repo:
            assert repo.cache.local.path == str(root / ".dvc/cache/files/md5")
            assert repo.config["core"]["no_scm"] is (place == trial)


def test_it_may_begin_with_a_suite_of_the_other_and_new_says_what_replaced_it(
    root: Path, tmp_path: Path, done: Done
) -> None:
    (root / "inside").mkdir()
    said = done(root / "inside", "new", str(tmp_path / "beside"), "--suite", "two")
    assert "say `merganser init " in said
    assert "--suite two --cache-of .." in said
    assert without_head((tmp_path / "beside/params.yaml").read_text()) == OTHER
    assert (root / "params.yaml").read_text() == TINY


def test_what_cannot_begin_is_refused_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    (root / ".dvc/config.local").write_text("[core]\n    no_scm = false\n")
    for place, choices, message in (
        ("root", Same(root), "exists already"),
        ("beside", Suite("tow"), 'no suite is called .tow.; did you mean "two"'),
    ):
        with pytest.raises(InputError, match=message):
            init(tmp_path / place, choices, root)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    with opened(root) as repo:
        assert comparisons_sharing_cache(repo) == []


@pytest.mark.parametrize("text", ["", "[1]", "\0", "schema: '2.0'\nstages: {seeded: 5}\n"])
def test_a_damaged_lock_file_of_a_suite_is_left_alone(
    root: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    use(root, "two")
    reproduce(root)
    before = read_lock_file(root / "dvc.lock")
    use(root, "one")
    (kept,) = (path for path in (root / ".dvcfleet/locks").iterdir() if "1" in path.read_text())
    kept.write_text(text)
    use(root, "two")
    assert f"{kept.name}: damaged, and left alone" in capsys.readouterr().err
    assert read_lock_file(root / "dvc.lock") == before


def test_coming_back_to_a_suite_finds_all_that_was_computed_of_it(root: Path) -> None:
    reproduce(root)
    first = read_lock_file(root / "dvc.lock")
    use(root, "two")
    reproduce(root)
    second = read_lock_file(root / "dvc.lock")
    assert first["seeded"] != second["seeded"]
    use(root, "one")
    assert read_lock_file(root / "dvc.lock") == first
    with Repo(str(root)) as repo:
        repo.checkout(force=True)
        assert repo.status() == {}
    assert (root / "data/seeded").read_text() == "0\n"
    use(root, "two")
    assert read_lock_file(root / "dvc.lock") == second


@pytest.mark.parametrize("suite", ["image", "encoder", "causal", "minilm", "smollm2"])
def test_a_suite_brings_all_that_makes_its_models_and_their_pointers(suite: str, tmp_path: Path) -> None:
    init(tmp_path / suite, Suite(suite))
    examples = tmp_path / suite / "examples"
    said = (tmp_path / suite / "params.yaml").read_text()
    read = [path.parent for path in examples.glob("*/dvc.yaml") if f"examples/{path.parent.name}/" in said]
    assert read
    for folder in read:
        stages = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"].values()
        each = [stage.get("do", stage) for stage in stages]
        made = {out for stage in each for out in stage["outs"]}
        needed = {dep for stage in each for dep in stage["deps"] if "$" not in dep} - made
        assert [dep for dep in sorted(needed) if not (examples / dep).exists()] == []
