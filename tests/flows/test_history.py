"""The history of saved runs: scores, what changed, what got worse; it outlives what `merganser gc` frees."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dvcfleet.errors import FailedError
from dvcfleet.record.environments import environment
from dvcfleet.repository import opened
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.errors import InputError
from merganser.flows.commands.gc import collect_garbage
from merganser.flows.evidence.runs.diff import diff_lineages, diff_runs
from merganser.flows.evidence.runs.history import FILE, SavedPoint, read_history
from merganser.flows.evidence.runs.printing import diff_lines, history_lines, lineage_diff_lines
from merganser.flows.evidence.runs.run import read_run
from merganser.flows.pages.history_page import HEIGHT, WIDTH, curves, history_page
from merganser.report.run_scores import PairedScore
from tests.dvcfleet.test_experiments import committed, run
from tests.dvcfleet.toy import Make, Toy
from tests.report.test_changes import write_scores

SCORES = """
stages:
  data:
    cmd: cp -r made/data .
    deps: [made]
    params: [methods, tasks, unseen]
    outs:
      - data/metrics/ties/dark.json
      - data/metrics/ties/light.json
      - data/examples/ties/dark.safetensors
      - data/examples/ties/light.safetensors
      - data/measures/unseen/ties/street.json
      - data/measures/unseen/ties/street.safetensors
"""
PARAMS = "tasks: {dark: {}, light: {}}\nunseen: {street: {}}\nmethods: {ties: {density: 0.5}}\n"


def write(made: Toy, dark: int, street: int = 100) -> None:
    write_scores(made.path / "made/data", "ties", {"dark": dark, "light": 100})
    write_scores(made.path / "made/data", "ties", {"street": street}, unseen=True)


def _ran_twice(made: Toy) -> None:
    committed(made)
    with pytest.MonkeyPatch.context() as patch:
        for name, dark, density in (("first", 120, 0.5), ("second", 160, 0.25)):
            write(made, dark)
            made.write("params.yaml", PARAMS.replace("0.5", str(density)))
            assert run(made, name, patch)[0] == 0
    write(made, 110)


@pytest.fixture
def made(toy: Make, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Give a repository with three runs, of which the second is better and the third worse."""
    monkeypatch.setenv(RUN_NAME_VARIABLE, "third")
    return toy.ran(SCORES, {"params.yaml": PARAMS}, before=_ran_twice, save_experiment=True)


def test_each_run_has_its_scores_what_changed_and_what_got_worse(made: Toy) -> None:
    points = read_history(made.path)
    assert [(point.run, point.scores) for point in points] == [
        (name, {"ties": (pytest.approx(mean), pytest.approx(0.0212, abs=1e-4))})
        for name, mean in (("first", 0.55), ("second", 0.65), ("third", 0.525))
    ]
    assert points[0].changed == ()
    assert [change.split(":")[0] for change in points[1].changed] == ["parameter methods.ties.density", "input made"]
    assert [change.split(":")[0] for change in points[2].changed] == ["input made"]
    assert [[(line.entry, line.column) for line in point.worse] for point in points] == [
        [],
        [],
        [("ties", "mean"), ("ties", "dark")],
    ]
    said = list(history_lines(points))
    assert said[-1] == "ties: 55.00 in the first of 3 runs, 65.00 at best (second), 52.50 in third"
    assert any("worse by more than the sampling error: ties dark 80.00 -> 55.00" in line for line in said)


def test_scores_on_tasks_without_a_model_are_compared_and_are_in_no_mean(
    made: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(made, 110, street=60)
    run(made, "fourth", monkeypatch)
    point = read_history(made.path)[-1]
    assert [(line.column, line.first, line.second) for line in point.worse] == [
        ("unseen", 0.5, 0.3),
        ("unseen_street", 0.5, 0.3),
    ]
    assert point.scores["ties"][0] == pytest.approx(0.525)
    columns = [line.column for line in diff_runs(made.path, "third", "fourth").scores]
    assert columns == ["mean", "dark", "light", "unseen", "unseen_street"]


def test_a_mean_is_over_the_tasks_of_both_runs_and_says_so(made: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write("params.yaml", PARAMS.replace(", light: {}", ""))
    run(made, "fourth", monkeypatch)
    found = diff_runs(made.path, "third", "fourth")
    assert [(line.column, line.first) for line in found.scores[:2]] == [("mean", 0.55), ("dark", 0.55)]
    assert read_history(made.path)[-2].scores["ties"][0] == pytest.approx(0.525)  # over both tasks
    assert any("means over the tasks of both runs" in line for line in diff_lines(found))


def test_a_parameter_is_said_in_the_same_words_of_two_runs_and_of_their_lineages(
    made: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write("params.yaml", PARAMS.replace("0.5", f"0.125, sha256: {'ab' * 32}") + "trial: {id: 1}\n")
    run(made, "fourth", monkeypatch)
    said = ["methods.ties.density: 0.25 -> 0.125", "methods.ties.sha256: none -> ababababab…"]
    lines = list(diff_lines(diff_runs(made.path, "third", "fourth")))
    assert lines[:4] == ["third -> fourth", "parameters:", *(f"  {line}" for line in said)]
    lines = list(lineage_diff_lines(diff_lineages(made.path, "third", "fourth", "data")))
    assert lines[2:4] == [f"  parameter {line} (data)" for line in said]


def test_a_folder_is_a_run_by_its_path_from_where_the_command_is_given(
    made: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.path / "made")
    same = diff_runs(made.path, "..", "third")
    assert (same.parameters, same.code, same.worse) == ({}, [], [])
    assert not diff_lineages(made.path, "..", "third", None).differs
    with pytest.raises(InputError, match=r"made: neither a run, .*; runs: workspace, third, second, first$"):
        diff_runs(made.path, "made", "third")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Give what installs packages, by name and version, with files of a word's own."""
    folder = tmp_path / "packages"
    monkeypatch.syspath_prepend(folder)

    def install(word: str, **versions: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, version in versions.items():
            info = folder / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "RECORD").write_text(f"{name}/__init__.py,sha256={word},1\n")
        environment.cache_clear()

    yield install
    environment.cache_clear()


def test_packages_of_which_only_the_files_differ_share_a_line(
    made: Toy, packages: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = dict.fromkeys(("auk", "bee", "cat", "dog"), "1.0")
    for number, (word, version) in enumerate([("uv", "2.11"), ("pip", "2.15")]):
        packages(word, **names, eel=version)
        write(made, 130 + number)
        assert run(made, word, monkeypatch)[0] == 0
    changed = read_history(made.path)[-1].changed
    of_packages = [line for line in changed if "package" in line]
    assert of_packages == [
        "package eel: 2.11 -> 2.15 (data)",
        "4 packages have the same version and other files: auk, bee, cat and 1 more; `lineage diff --json` names all",
    ]
    assert re.fullmatch(r"input made: \w{10}… -> \w{10}… \(data\)", changed[0])
    found = diff_lineages(made.path, "uv", "pip", None)
    assert [line.strip() for line in lineage_diff_lines(found) if "package" in line] == of_packages
    assert [each.name for each in found.differences if each.kind == "files"] == [f"{name} 1.0" for name in names]


def test_points_outlive_the_runs_that_gc_frees(made: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_history(made.path)
    (made.path / FILE).unlink()
    collect_garbage(made.path, timedelta(), best=False, do=True)
    assert read_history(made.path) == before
    write(made, 111)
    run(made, "fourth", monkeypatch)
    assert [point.run for point in read_history(made.path)] == ["first", "second", "third", "fourth"]


def test_a_damaged_line_is_computed_again(made: Toy) -> None:
    before = read_history(made.path)
    lines = (made.path / FILE).read_text().splitlines()
    others = [json.dumps(json.loads(lines[1]) | wrong) for wrong in ({"saved": 5}, {"changed": [1]}, {"commit": None})]
    (made.path / FILE).write_text("\n".join([lines[0], lines[1][:40], '{"run": 3}', *others, lines[2]]))
    assert read_history(made.path) == before


def test_no_score_is_read_from_an_object_of_the_cache_that_was_changed(made: Toy) -> None:
    with opened(made.path) as repo:
        path = read_run(repo, "third").in_data("metrics/ties/dark.json")
    assert path
    path.chmod(0o644)
    path.write_text(path.read_text().replace("0.", "0.9"))
    with pytest.raises(FailedError, match=f"{path.name}: its bytes are not those that its name says"):
        assert diff_runs(made.path, "second", "third").worse
    with pytest.raises(FailedError, match=path.name):
        read_history(made.path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dvc.lock", "stages:\n", "at stages"),
        ("dvc.lock", "stages: {a: {outs: }}\n", r"at stages\.a\.outs"),
        ("dvc.lock", "stages: {a: {outs: [{path: x, md5: ../../x}]}}\n", r"at stages\.a\.outs\.0\.md5"),
        ("params.yaml", "methods: 5\n", "at methods"),
        ("params.yaml", "tasks: {1: {}}\n", r"at tasks\.1"),
    ],
)
def test_a_run_that_is_damaged_is_refused(made: Toy, name: str, text: str, said: str) -> None:
    made.write("other/params.yaml", PARAMS)
    made.write("other/dvc.lock", made.read("dvc.lock"))
    made.write(f"other/{name}", text)
    for compare in (diff_runs, diff_lineages):
        with pytest.raises(FailedError, match=rf"other: its params\.yaml or dvc\.lock is damaged, {said}"):
            compare(made.path, str(made.path / "other"), "third", *((None,) if compare is diff_lineages else ()))


def point(number: int, mean: float, worse: tuple[PairedScore, ...] = ()) -> SavedPoint:
    return SavedPoint(f"run-{number}", f"c{number}", f"2026-01-0{number}T02:00:00", {"ties": (mean, None)}, (), worse)


def test_the_drawing_has_each_mean_in_its_place_and_rings_where_it_got_worse() -> None:
    fallen = PairedScore("ties", "mean", 0.75, 0.5, 0.01)
    (line,), edges = curves([point(1, 0.25), point(2, 0.75), point(3, 0.5, (fallen,))])
    assert edges == (0.25, 0.75)
    assert line.points == ((0, HEIGHT), (WIDTH / 2, 0), (WIDTH, HEIGHT / 2))
    assert line.worse == ((WIDTH, HEIGHT / 2),)


def test_each_of_64_entries_has_a_line_of_its_own_look() -> None:
    scores = {f"entry-{number}": (number / 64, None) for number in range(64)}
    lines, _ = curves([replace(point(1, 0.5), scores=scores)])
    assert len({(line.colour, line.dashes, line.is_hollow) for line in lines}) == 64


def test_of_an_entry_that_one_run_has_its_score_is_said_once() -> None:
    assert list(history_lines([point(1, 0.5)]))[-1] == "ties: 50.00 in run-1"


def test_the_page_names_runs_changes_and_falls(made: Toy) -> None:
    page = history_page(read_history(made.path))
    assert page.count("<polyline") == 1
    assert "Worse by more than the sampling error: ties dark 80.00 → 55.00" in page
    assert page.index("<h3>third") < page.index("<h3>first")


def test_without_runs_it_says_how_there_will_be_some(toy: Make) -> None:
    empty = committed(toy(SCORES, {"params.yaml": PARAMS}))
    assert list(history_lines(read_history(empty.path))) == [
        "no run is saved yet: `merganser run` saves each that ends well, in a repository with a commit"
    ]
    assert "No run is saved yet" in history_page([])
