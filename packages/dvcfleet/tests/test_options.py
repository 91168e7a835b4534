"""The options of `dvc repro` do in the engine what they do there: the same stages run, and leave the same."""

import re
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.errors import UserError
from dvcfleet.options import Options
from dvcfleet.planning.plan import plan
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.dvcfleet.twins import OURS, SAY, THEIRS, Twins
from tests.support import copy_repository

DVC_YAML = f"""
stages:
  cut:
    cmd: {SAY}; head -c 3 source > cut
    deps: [source]
    outs: [cut]
  each:
    foreach: [a, b]
    do:
      cmd: {SAY}; cat cut > each-${{item}}; echo ${{item}} >> each-${{item}}
      deps: [cut]
      outs: ["each-${{item}}"]
  join:
    cmd: {SAY}; mkdir joined; cat each-a each-b > joined/all
    deps: [each-a, each-b]
    outs: [joined]
  other:
    cmd: {SAY}; cat more > other
    deps: [more]
    outs: [other]
"""
SUB = f"""
stages:
  end:
    cmd: {SAY}; cat ../joined/all > end
    deps: [../joined]
    outs: [end]
  apart:
    cmd: {SAY}; echo apart > apart
    outs: [apart]
"""
FILES = {"source": "abcdef", "more": "more", "dvc.yaml": DVC_YAML, "sub/dvc.yaml": SUB}
CHANGED = {"source": "xyzdef", "more": "less"}
SELECTING = ("recursive", "pipeline", "all_pipelines", "downstream", "single_item", "glob")


@pytest.fixture
def twins(toy: object, tmp_path: Path) -> Twins:
    return Twins(tmp_path / "twins", FILES)


TARGETS = [
    (Options(("join",)), ["cut", "each@a", "each@b", "join"]),
    (Options(("each",)), ["cut", "each@a", "each@b"]),
    (Options(("each@b", "other")), ["cut", "each@b", "other"]),
    (Options(("sub/dvc.yaml:end",)), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:end"]),
    (Options(("sub/dvc.yaml",)), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:apart", "sub/dvc.yaml:end"]),
    (Options(("e*@a", "o*"), glob=True), ["cut", "each@a", "other"]),
    (Options(("sub/dvc.yaml:a*",), glob=True), ["sub/dvc.yaml:apart"]),
    (Options(("sub",), recursive=True), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:apart", "sub/dvc.yaml:end"]),
    (Options(("other",), single_item=True), ["other"]),
    (Options(("cut", "each@a"), single_item=True), ["cut", "each@a"]),
    (Options(("join",), pipeline=True), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:end"]),
    (
        Options(all_pipelines=True),
        ["cut", "each@a", "each@b", "join", "other", "sub/dvc.yaml:apart", "sub/dvc.yaml:end"],
    ),
]


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Path:
    """The folder of twins that ran once; no test may change it."""
    twins = Twins(tmp_path_factory.mktemp("ran") / "twins", FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        assert twins.both(Options(all_pipelines=True)) == {}, twins.said
    return twins.folder


@pytest.fixture
def ran(toy: object, ran_once: Path, tmp_path: Path) -> Twins:
    """Twins that ran once."""
    return Twins(copy_repository(ran_once, tmp_path / "twins"), FILES)


def planned(twins: Twins, options: Options) -> tuple[list[str], list[str]]:
    """Return what each would run."""
    with chdir(twins.at(THEIRS)), Repo() as repo:
        asked = {key: getattr(options, key) for key in SELECTING}
        theirs = [stage.addressing for stage in repo.reproduce(list(options.targets), dry=True, force=True, **asked)]
    return theirs, [stage.name for stage in plan(twins.at(OURS), options).work]


def test_targets_name_the_stages_that_they_name_for_dvc_in_its_order(twins: Twins) -> None:
    for options, names in TARGETS:
        theirs, ours = planned(twins, options)
        assert sorted(ours) == sorted(theirs) == names, options
        if len(names) * 2 >= len(TARGETS[-1][1]):  # of less than half of all stages DVC's order is one of chance
            assert ours == theirs, options


def test_what_a_target_needs_is_in_the_order_of_dvc_yaml_however_few_stages_that_is(toy: Make) -> None:
    stages = {f"s{n}": {"cmd": f"echo > {n}", "outs": [f"{n}"]} for n in range(40)}
    stages["whole"] = {"cmd": "cat ? > whole", "deps": [f"{n}" for n in range(8)], "outs": ["whole"]}
    made = toy(yaml.safe_dump({"stages": stages}, sort_keys=False), {})
    assert list(made.plan(["whole"]).planned) == [*(f"s{n}" for n in range(8)), "whole"]


def test_an_output_names_the_stage_that_writes_it_and_a_file_in_it_too(twins: Twins) -> None:
    for target in ("joined", "joined/all", "sub/end"):
        assert set(plan(twins.at(OURS), Options((target,))).planned) >= {"cut", "join"}


def test_in_a_folder_without_a_dvc_yaml_the_nearest_one_above_is_meant_and_paths_start_in_it(twins: Twins) -> None:
    root = twins.at(OURS)
    for folder in ("apart", "sub/within"):
        (root / folder).mkdir()
    assert set(plan(root / "apart").planned) == {"cut", "each@a", "each@b", "join", "other"}
    assert list(plan(root / "sub/within", Options(("apart",))).planned) == ["apart"]
    for target in ("join", "../joined", "../joined/all", "../dvc.yaml:join"):
        assert set(plan(root / "apart", Options((target,))).planned) == {"cut", "each@a", "each@b", "join"}, target
    assert set(plan(root / "sub/within", Options(("../end", "../../cut"))).planned) >= {"end", "../dvc.yaml:cut"}
    assert "join" in plan(root / "apart", Options(("joined",))).planned  # as run and status print it


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(("others",)), 'did you mean "other"?'),
        (Options(("nothing*",), glob=True), "nothing*: no stage matches"),
        (Options(("empty",), recursive=True), "empty: no stage matches"),
    ],
)
def test_targets_that_name_nothing_are_refused_and_not_taken_for_all(twins: Twins, options: Options, said: str) -> None:
    (twins.at(OURS) / "empty").mkdir()
    with pytest.raises(UserError, match=re.escape(said)):
        plan(twins.at(OURS), options)


def change(twins: Twins) -> None:
    for name, text in CHANGED.items():
        twins.write(name, text)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (Options(("each@a",), downstream=True), []),  # nothing that it reads has changed yet
        (Options(("cut",), downstream=True), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:end"]),
        (Options(("each@a", "cut"), single_item=True), ["cut"]),
        (Options(("cut", "each@a"), single_item=True), ["cut", "each@a"]),
        (Options(("sub/dvc.yaml:end",), force=True), ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:end"]),
        (Options(("join",), no_commit=True), ["cut", "each@a", "each@b", "join"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value.targets),
)
def test_after_a_change_the_same_stages_run_and_leave_the_same(ran: Twins, options: Options, names: list[str]) -> None:
    change(ran)
    assert ran.both(options) == {}, ran.said
    assert ran.did == names
    assert ran.both(Options(all_pipelines=True)) == {}, ran.said


def test_no_run_cache_runs_what_ran_before_on_the_same_inputs(ran: Twins) -> None:
    change(ran)
    assert ran.both() == {}
    ran.write("source", FILES["source"])
    ran.write("more", FILES["more"])
    assert ran.both(Options(("cut",))) == {}, ran.said
    assert ran.did == []
    assert ran.both(Options(no_run_cache=True)) == {}, ran.said
    assert ran.did == ["each@a", "each@b", "join", "other"]


def test_force_downstream_runs_all_that_reads_from_a_stage_that_ran(ran: Twins) -> None:
    ran.write("source", FILES["source"] + "and what `cut` does not read")
    assert ran.both(Options(all_pipelines=True, force_downstream=True)) == {}, ran.said
    assert ran.did == ["cut", "each@a", "each@b", "join", "sub/dvc.yaml:end"]


def lose(twins: Twins, *names: str, cache: bool = True) -> None:
    """Lose outputs, and with `cache` all that the cache holds."""
    for side in (OURS, THEIRS):
        root = twins.at(side)
        for name in names:
            shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        if cache:
            subprocess.run(["chmod", "-R", "u+w", str(root / ".dvc/cache")], check=True)
            shutil.rmtree(root / ".dvc/cache")


def test_allow_missing_leaves_stages_of_which_data_is_missing_alone(ran: Twins) -> None:
    lose(ran, "cut", "joined", "each-a", "each-b")
    assert ran.both(Options(allow_missing=True)) == {}, ran.said
    assert ran.did == []
    ran.write("more", "less")
    assert ran.both(Options(allow_missing=True)) == {}, ran.said
    assert ran.did == ["other"]
    ran.write("source", "xyz")
    assert ran.both(Options(allow_missing=True)) == {}, ran.said
    assert ran.did == ["cut", "each@a", "each@b", "join"]


def push(twins: Twins) -> None:
    """Push all to a remote of each one's own."""
    for side in (OURS, THEIRS):
        with chdir(twins.at(side)), Repo() as repo:
            with repo.config.edit("local") as config:
                config["remote"]["storage"] = {"url": str(twins.folder / side / "remote")}
                config["core"]["remote"] = "storage"
            repo.config.load()
            repo.push(run_cache=True)


@pytest.mark.parametrize("run_cache", [True, False])
def test_pull_brings_what_is_missing_and_the_run_cache_from_the_remote(ran: Twins, run_cache: bool) -> None:
    push(ran)
    change(ran)
    assert ran.both() == {}
    push(ran)
    lose(ran, "cut", "joined", "other")
    ran.write("more", FILES["more"])  # what the remote's run cache knows
    asked = Options(pull=True, no_run_cache=not run_cache)
    assert ran.both(asked) == {}, ran.said
    assert ran.did == ([] if run_cache else ["other"])
    assert ran.both(asked) == {}, ran.said
    assert ran.did == []


@pytest.mark.parametrize(("name", "again"), [("cut.txt", "cut"), ("turned/text", "turn")])
def test_an_output_that_is_damaged_on_the_remote_is_made_again(
    toy: Make, tmp_path: Path, name: str, again: str
) -> None:
    chain = toy(CHAIN.replace("rev cut.txt", "echo two; rev cut.txt"), CHAIN_FILES)
    assert chain.run()[0] == 0
    chain.ran()
    with chdir(chain.path), Repo() as repo:
        with repo.config.edit() as config:
            config["remote"]["storage"] = {"url": str(tmp_path / "remote")}
            config["core"]["remote"] = "storage"
        repo.config.load()
        repo.push()
    (place,) = (f for f in (tmp_path / "remote").rglob("*") if f.is_file() and f.read_text() == chain.read(name))
    place.chmod(0o644)
    place.write_bytes(place.read_bytes().swapcase())
    shutil.rmtree(chain.path / ".dvc/cache")
    for each in ("cut.txt", "turned/text", "end.txt"):
        (chain.path / each).unlink()
    code, text = chain.run(pull=True)
    assert (code, chain.ran()) == (0, [again]), text
    assert chain.settled()
