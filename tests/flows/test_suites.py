"""Ready comparisons: listed, and put in place of params.yaml without losing what somebody wrote."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import networkx
import pytest
import yaml
from dvc.repo import Repo

from flows import cli
from flows.suite_check import check
from flows.suites import EXAMPLES, IGNORED, describe, ignore_unused_examples, suite_names, use
from merganser.config.loading import load_params
from merganser.errors import InputError
from tests.tiny import ROOT

TINY = (ROOT / "tests/tiny/params.yaml").read_text()
OTHER = TINY.replace("seed: 0", "seed: 1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of git and DVC with two suites, the first in use."""
    for name, text in (("one", TINY), ("two", OTHER)):
        (tmp_path / "suites" / name).mkdir(parents=True)
        (tmp_path / "suites" / name / "params.yaml").write_text(text)
    (tmp_path / "params.yaml").write_text(TINY)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    Repo.init(str(tmp_path)).close()
    return tmp_path


def commit(root: Path) -> None:
    git = ["git", "-C", str(root), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "params.yaml"], check=True)
    subprocess.run([*git, "commit", "-qm", "params"], check=True)


def test_suites_are_listed_with_family_tasks_and_entries(root: Path) -> None:
    assert suite_names(root) == ["one", "two"]
    listed = {name: describe(root, name) for name in suite_names(root)}
    assert {name: suite.in_use for name, suite in listed.items()} == {"one": True, "two": False}
    assert listed["two"].family == "open_clip"
    assert listed["two"].tasks == ("dark", "light")
    assert listed["two"].entries == tuple(yaml.safe_load(OTHER)["methods"])


def test_a_broken_suite_is_listed_with_its_mistake_and_not_put_in_place(root: Path) -> None:
    (root / "suites/two/params.yaml").write_text(OTHER.replace("density: 0.5", "density: 5.0"))
    assert "methods.ties.density" in describe(root, "two").mistake
    with pytest.raises(InputError, match=r"methods\.ties\.density"):
        use(root, "two")
    assert (root / "params.yaml").read_text() == TINY


def test_a_suite_is_put_in_place_of_another_and_back(root: Path) -> None:
    use(root, "two")
    assert (root / "params.yaml").read_text() == OTHER
    use(root, "one")
    assert (root / "params.yaml").read_text() == TINY


def test_what_a_suite_leaves_out_is_written_into_the_file_in_use_which_stays_the_suites(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "suites/two/params.yaml").write_text(OTHER.replace("seed: 1\n", "").replace(", reads: svd", ""))
    use(root, "two")
    assert "wrote what was left out: seed, studies.tasks.methods.tsv_c" in capsys.readouterr().err
    assert yaml.safe_load((root / "params.yaml").read_text()) == yaml.safe_load(TINY)
    assert "seed" not in (root / "suites/two/params.yaml").read_text()
    assert describe(root, "two").in_use
    use(root, "one")
    assert (root / "params.yaml").read_text() == TINY


def test_a_missing_params_yaml_is_put_in_place(root: Path) -> None:
    (root / "params.yaml").unlink()
    use(root, "two")
    assert (root / "params.yaml").read_text() == OTHER


def test_changes_that_are_in_no_commit_are_kept_until_forced(root: Path) -> None:
    own = TINY.replace("seed: 0", "seed: 7")
    commit(root)
    (root / "params.yaml").write_text(own)
    with pytest.raises(InputError, match=r"in no commit; commit it or copy it"):
        use(root, "two")
    assert (root / "params.yaml").read_text() == own
    use(root, "two", force=True)
    assert (root / "params.yaml").read_text() == OTHER


def test_changes_that_are_committed_are_replaced(root: Path) -> None:
    (root / "params.yaml").write_text(TINY.replace("seed: 0", "seed: 7"))
    with pytest.raises(InputError, match=r"in no commit"):
        use(root, "two")
    commit(root)
    use(root, "two")
    assert (root / "params.yaml").read_text() == OTHER


def test_dvc_ignores_the_examples_that_are_not_read(root: Path) -> None:
    for name in ("one", "two"):
        (root / "examples" / name).mkdir(parents=True)
        (root / "examples" / name / "dvc.yaml").write_text("stages: {made: {cmd: 'true', outs: [x]}}\n")
    (root / "suites/two/params.yaml").write_text(OTHER.replace("hub/dark", "examples/two/hub/dark"))
    use(root, "two")
    with Repo(str(root)) as repo:
        assert [Path(stage.path).parent.name for stage in repo.index.stages] == ["two"]


LIKE_ANOTHER = re.compile(r"clip-vit-(b-16|l-14)-\d+|.*-(14|20)")  # made out of clip-vit-b-32-20, or larger than -8
EACH_SHAPE = [
    pytest.param(name, marks=[pytest.mark.drill] if LIKE_ANOTHER.fullmatch(name) else []) for name in suite_names(ROOT)
]


@pytest.mark.parametrize("name", EACH_SHAPE)
def test_dvc_knows_no_stage_that_the_suite_in_use_does_not_read(name: str, tmp_path: Path) -> None:
    for part in ("examples", "suites"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("hub", "datasets", "dvc.lock"))
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    Repo.init(str(tmp_path), no_scm=True).close()
    use(tmp_path, name)
    with Repo(str(tmp_path)) as repo:
        graph = repo.index.graph
        own = [stage for stage in graph if Path(stage.path) == tmp_path / "dvc.yaml"]
        read = set().union(*(networkx.descendants(graph, stage) for stage in own))
        assert {stage.addressing for stage in set(graph) - read - set(own)} == set()
        assert (set(graph) > set(own)) == (f"{EXAMPLES}/" in (tmp_path / "params.yaml").read_text())


def test_dvc_ignores_what_the_projects_own_params_yaml_does_not_read(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("hub", "datasets"))
    shutil.copy(ROOT / "params.yaml", tmp_path)
    before = (tmp_path / IGNORED).read_bytes()
    ignore_unused_examples(tmp_path)
    assert (tmp_path / IGNORED).read_bytes() == before


def test_an_unknown_suite_is_refused_with_the_nearest_name(root: Path) -> None:
    with pytest.raises(InputError, match=r"no suite is called 'tow'; did you mean \"two\"\?; there are one, two"):
        use(root, "tow")


def test_the_command_line_lists_and_uses_suites_from_a_folder_inside(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root / "suites")
    for arguments in (["use", "two"], ["suites"], ["suites", "--json"]):
        monkeypatch.setattr(sys, "argv", ["merganser", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 0
    said = capsys.readouterr().out
    assert "params.yaml is that of suites/two: open_clip, 2 tasks, 7 entries" in said
    assert [row["in_use"] for row in json.loads(said[said.index("[") :])] == [False, True]


def test_a_folder_outside_a_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["merganser", "suites", "--repo", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2


@pytest.mark.parametrize("name", EACH_SHAPE)
def test_every_suite_is_valid_and_says_what_it_is(name: str) -> None:
    found = check(ROOT, name)
    assert found.mistakes == found.notes == ()


def test_the_clip_suites_are_as_they_are_derived(tmp_path: Path) -> None:
    for place in (ROOT / "suites").glob("clip-vit-*"):
        shutil.copytree(place, tmp_path / place.name)
    runpy.run_path(str(ROOT / "suites/clip.py"))["write"](tmp_path)
    for path in tmp_path.glob("*/*.yaml"):
        assert path.read_text() == (ROOT / "suites" / path.relative_to(tmp_path)).read_text(), path


def test_the_grids_of_other_suites_compare_what_their_params_yaml_does(tmp_path: Path) -> None:
    noted = "`python suites/grids.py` writes"
    places = [path.parent for path in (ROOT / "suites").glob("*/grids.yaml") if noted in path.read_text()]
    assert len(places) >= 9
    for place in places:
        shutil.copytree(place, tmp_path / place.name)
    runpy.run_path(str(ROOT / "suites/grids.py"))["write"](tmp_path)
    for path in tmp_path.glob("*/grids.yaml"):
        assert path.read_text() == (ROOT / "suites" / path.relative_to(tmp_path)).read_text(), path
        params, grids = load_params(path.with_name("params.yaml")), load_params(path)
        assert (params.base, params.parameters, params.tasks) == (grids.base, grids.parameters, grids.tasks)


# public lists of each data set: classes, and prompts
PUBLIC = {
    **{"sun397": (397, 2), "cars": (196, 8), "resisc45": (45, 18), "eurosat": (10, 3), "svhn": (10, 1)},
    **{"gtsrb": (43, 3), "mnist": (10, 1), "dtd": (47, 8), "flowers102": (102, 1), "pcam": (2, 1)},
    **{"fer2013": (7, 6), "pets": (37, 1), "stl10": (10, 2), "cifar100": (100, 18), "cifar10": (10, 18)},
    **{"food101": (101, 1), "fashion_mnist": (10, 2), "emnist_letters": (26, 1), "kmnist": (10, 1)},
    "rendered_sst2": (2, 1),
}


def test_the_clip_suites_have_as_many_classes_as_their_data_sets() -> None:
    params = load_params(ROOT / "suites/clip-vit-b-32-20/params.yaml")
    own = {name: task.data.own for name, task in params.tasks.items()}
    assert {name: (len(each["classes"]), len(each["templates"])) for name, each in own.items()} == PUBLIC


@pytest.mark.parametrize("name", ["clip-vit-b-32-lora-8", "clip-vit-l-14-lora-8", "open-clip-vit-b-32-20"])
def test_the_same_tasks_have_the_same_classes_and_prompts_in_all_suites(name: str) -> None:
    ours = load_params(ROOT / "suites/clip-vit-b-32-20/params.yaml").tasks
    found = load_params(ROOT / "suites" / name / "params.yaml").tasks
    shared = [task for task in found if task in ours]
    assert len(shared) in (8, 19)
    assert all(found[task].data.own == ours[task].data.own for task in shared)


def test_the_image_suite_is_in_place_from_the_start() -> None:
    assert (ROOT / "params.yaml").read_bytes() == (ROOT / "suites/image/params.yaml").read_bytes()
