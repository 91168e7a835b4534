"""A suite is checked before anything is downloaded, and its sources are found, measured and pinned at their hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.errors import InputError
from merganser.flows.suites.check import check_lines, validate_suite
from tests.flows.conftest import Done, Refused
from tests.hub import COMMIT, Hub, serve
from tests.tiny import ROOT

TINY = yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text())
OLD = "f" * 40
TABLE: dict[str, Any] = {
    "paper": "A paper",
    "table": "Table 1",
    "protocol": "accuracy",
    "checkpoints": "these",
    "decimals": 1,
    "columns": ["mean"],
    "rows": {"ties": [70.0]},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the suite's base, one of its models, and one data set."""
    for name, files in {
        "models/org/base": {"config.json": 10, "model.safetensors": 1000, "training.log": 5000},
        "models/org/dark": {"config.json": 10, "model.safetensors": 2000},
        "datasets/org/dark": {"README.md": 20, "test.parquet": 300},
    }.items():
        (tmp_path / "hub" / name).mkdir(parents=True)
        for file, size in files.items():
            (tmp_path / "hub" / name / file).write_bytes(b"x" * size)
    with serve(
        {name: tmp_path / "hub" / name for name in ("models/org/base", "models/org/dark", "datasets/org/dark")}, COMMIT
    ) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a suite whose sources are pointers that follow a branch."""
    root, sources = tmp_path / "root", tmp_path / "root/suites/far/sources"
    sources.mkdir(parents=True)
    (root / ".dvc").mkdir()
    for name, hub in {"base": "base", "dark": "dark", "dark-data": "dark"}.items():
        (sources / f"{name}.yaml").write_text(f"# {name}\nhub: org/{hub}\nfollow: main\n")
    at = "suites/far/sources"
    params = TINY | {
        "base": TINY["base"] | {"source": f"{at}/base.yaml"},
        "tasks": {
            "dark": {
                "source": f"{at}/dark.yaml",
                "data": {"source": f"{at}/dark-data.yaml", "templates": ["a {}."], "classes": ["dark", "bright"]},
            }
        },
        "published": {"source": "suites/far/published.yaml"},
        "studies": {},
    }
    write(root, params | {"about": {"title": "far", "download": "3 kB", "gpu": "helps"}})
    (root / "suites/far/published.yaml").write_text(yaml.safe_dump({"tasks": ["dark"], "tables": [TABLE]}))
    return root


def write(root: Path, params: dict[str, Any]) -> None:
    (root / "suites/far.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def test_without_a_network_everything_is_checked_but_what_the_hub_has(root: Path) -> None:
    found = validate_suite(root, "far")
    assert (found.mistakes, found.notes) == ((), ())
    assert [(source.hub, source.revision) for source in found.sources] == [
        ("org/base", None),
        ("org/dark", None),
        ("org/dark", None),
    ]
    said = list(check_lines(found))
    assert said[0] == "suites/far/sources/base.yaml: org/base: not pinned, follows main"
    assert said[-2].startswith("3 sources are not pinned: `merganser suites check far --pin`")
    assert said[-1] == "far: 0 mistakes"


def test_with_a_network_each_source_is_found_with_its_size_and_the_branchs_commit(root: Path, hub: Hub) -> None:
    found = validate_suite(root, "far", online=True)
    assert found.mistakes == ()
    assert [(source.bytes, source.head) for source in found.sources] == [(1010, COMMIT), (2010, COMMIT), (320, COMMIT)]
    assert "3.34 kB to download, of 3 sources" in list(check_lines(found))
    assert not any("resolve" in path for path in hub.asked)  # nothing was downloaded


def test_pinning_writes_the_branchs_commit_and_keeps_the_rest_of_the_file(root: Path, hub: Hub) -> None:
    validate_suite(root, "far", online=True, pin_them=True)
    text = (root / "suites/far/sources/base.yaml").read_text()
    assert text == f"# base\nhub: org/base\nrevision: {COMMIT}\n"
    found = validate_suite(root, "far", online=True)
    assert {source.state for source in found.sources} == {f"pinned to {COMMIT}, the newest"}


def test_pinning_writes_into_the_table_and_into_a_file_that_says_the_same(root: Path, hub: Hub) -> None:
    (root / "suites/tables").mkdir()
    table = root / "suites/tables/pointers.yaml"
    lines = ["base: {hub: org/base, follow: main} # first", "dark: {hub: org/dark, follow: main}"]
    table.write_text("suites/far/sources:\n" + "".join(f"  {line}\n" for line in lines))
    (root / "suites/far/sources/base.yaml").unlink()
    (root / "suites/far/sources/dark.yaml").write_text("{hub: org/dark, follow: main} # mine\n")
    assert validate_suite(root, "far").sources[0].state == "not pinned, follows main"
    validate_suite(root, "far", online=True, pin_them=True)
    assert table.read_text() == "suites/far/sources:\n" + "".join(
        f"  {line}\n".replace("follow: main", f"revision: {COMMIT}") for line in lines
    )
    assert COMMIT in (root / "suites/far/sources/dark.yaml").read_text()
    assert not (root / "suites/far/sources/base.yaml").exists()


def test_of_a_group_each_data_set_is_a_source_and_pinned(root: Path, hub: Hub) -> None:
    path = root / "suites/far/sources/dark-data.yaml"
    path.write_text("group: # two\n  a: {hub: org/dark, follow: main}\n  b: {hub: org/dark, follow: main}\n")
    found = validate_suite(root, "far", online=True, pin_them=True)
    assert found.mistakes == (
        f"tasks.dark.data.group: has nothing, and {path.relative_to(root)} names a, b; name the same",
    )
    assert [source.bytes for source in found.sources if source.path == str(path.relative_to(root))] == [320, 320]
    pinned = f"{{hub: org/dark, revision: {COMMIT}}}"
    assert path.read_text() == f"group: # two\n  a: {pinned}\n  b: {pinned}\n"
    assert {source.revision for source in validate_suite(root, "far").sources} == {COMMIT}


def test_a_pinned_source_whose_branch_went_on_says_so_and_stays(root: Path, hub: Hub) -> None:
    path = root / "suites/far/sources/base.yaml"
    path.write_text(f"hub: org/base\nrevision: {OLD}\n")
    hub.earlier["models/org/base", OLD] = hub.folders["models/org/base"]
    found = validate_suite(root, "far", online=True, pin_them=True)
    assert found.sources[0].state == f"pinned to {OLD}; its branch is at {COMMIT}"
    assert OLD in path.read_text()


def test_a_source_that_the_hub_does_not_have_is_a_mistake(root: Path, hub: Hub) -> None:
    (root / "suites/far/sources/dark.yaml").write_text("hub: org/drak\nfollow: main\n")
    found = validate_suite(root, "far", online=True)
    assert [mistake for mistake in found.mistakes if "org/drak" in mistake] == list(found.mistakes)
    assert len(found.mistakes) == 1


def test_a_hub_that_does_not_answer_is_a_note(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = validate_suite(root, "far", online=True)
    assert found.mistakes == ()
    assert len(found.notes) == 1
    assert "does not answer" in found.notes[0]
    assert len(found.sources) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p["tasks"]["dark"]["data"].update(classes=["dark", "dark"]), "'dark' is listed twice"),
        (lambda p: p["tasks"]["dark"]["data"].update(classes=["dark"]), "give at least two to choose from"),
        (lambda p: p["tasks"]["dark"]["data"].update(templates=["a {.", "b {}."]), "must have {} once"),
        (lambda p: p["base"].update(source="suites/far/sources/bsae.yaml"), "bsae.yaml: no such source"),
        (lambda p: p["methods"].update(ties={"method": "tise", "reads": "deltas"}), 'did you mean "ties"'),
        (lambda p: p["methods"].pop("ties"), "Table 1: rows: no entry 'ties'"),
        (lambda p: p["published"].update(source="suites/far.yaml"), "far.yaml: about: unknown key"),
        (lambda p: p["published"].update(source="suites/far/none.yaml"), "none.yaml"),
    ],
)
def test_mistakes_are_named_without_a_network(root: Path, spoil: Any, message: str) -> None:
    params = yaml.safe_load((root / "suites/far.yaml").read_text())
    spoil(params)
    write(root, params)
    found = validate_suite(root, "far")
    assert any(message in mistake for mistake in found.mistakes)


def test_the_command_line_says_it_as_text_and_as_json(tmp_path: Path, root: Path, done: Done, refused: Refused) -> None:
    assert "far: 0 mistakes" in done(root, "suites", "check", "far", "--offline")
    found = json.loads(done(root, "suites", "check", "far", "--offline", "--json"))
    assert found["sources"][1]["path"] == "suites/far/sources/dark.yaml"
    with pytest.raises(InputError, match='did you mean "far"'):
        validate_suite(root, "fra")
    (root / "suites/far.yaml").write_text("seed: 0\n")
    refused(root, "suites", "check", "far", "--offline")
