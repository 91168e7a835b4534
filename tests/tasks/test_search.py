"""The stage of searches, on the tiny comparison."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.config.loading import load_params
from merganser.tasks import evaluate, measure_merged, merge, prepare, prepare_validation, record, search
from tests import PYTHONPATH
from tests.support import python
from tests.tasks.comparison import METHODS, TASKS, inside, measure_points, plots_of, report_without_plots

ROOT = Path(__file__).resolve().parents[2]
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {"method": "ties", "of": "deltas", "over": {"scaling": [0.5, 1.5], "density": [0.3, 0.7]}},
    "one": {"method": "task_arithmetic", "of": "deltas", "over": {"scaling": [0.5]}},
    "evolved": {"method": "task_arithmetic", "of": "deltas", "evolve": {"generations": 2, "population": 4}},
    "tall": {"method": "tall_mask", "of": "deltas", "grid": "paper"},
    "low": {"method": "tsv_m", "of": "svd", "over": {"rank_fraction": [0.1, 0.5]}, "scaling": 0.7},
}
ENTRIES = {name: {"method": one["method"], "reads": f"searches/{name}"} for name, one in SEARCHES.items()}
# the stage, killed from within as it keeps the third candidate: from without, the moment could not be chosen
KILLED = """
from merganser.tasks import search
from tests.tasks.killing import run_until
run_until(search.main, ["evolved"], ".json", 4)
"""


@pytest.fixture(scope="module")
def made(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison whose searches are done, without anything of the split that is measured on."""
    folder = Path(shutil.copytree(comparison, tmp_path_factory.mktemp("searches") / "comparison"))
    with inside(folder):
        write_params(searches=SEARCHES, methods=METHODS | ENTRIES)
        for task in TASKS:
            prepare_validation.main([task, "split"])
        for gone in ("prepared", "datasets", "examples", "metrics"):
            shutil.rmtree(f"data/{gone}")
        measure_points("validation")
        for name in SEARCHES:
            search.main([name])
    return folder


def write_params(**changes: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text()) | changes
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def found(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"data/searches/{name}/result/search.json").read_text())
    return content


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def table(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def test_a_search_without_the_test_split_tries_every_candidate_and_takes_the_best(made: Path) -> None:
    tried = {name: [one["values"] for one in found(made, name)["candidates"]] for name in SEARCHES}
    assert tried["grid"] == [{"scaling": s, "density": d} for s in (0.5, 1.5) for d in (0.3, 0.7)]
    assert tried["low"] == [{"scaling": 0.7, "rank_fraction": share} for share in (0.1, 0.5)]
    assert tried["evolved"][0] == {"coefficients": dict.fromkeys(TASKS, 1.0)}
    assert len(tried["evolved"]) == 1 + 2 * 4
    grids = {name: found(made, name)["grid"] for name in SEARCHES}
    assert grids == dict.fromkeys(SEARCHES, "own") | {"evolved": "evolved", "tall": "paper"}
    assert [each["tall_lambda"] for each in tried["tall"][:5]] == [0.2, 0.3, 0.4, 0.5, 0.6]
    assert set(found(made, "tall")["chosen"]["tall_lambda"]) == set(TASKS)
    for name in SEARCHES:
        whole = found(made, name)
        scores = [one["score"] for one in whole["candidates"]]
        chosen = next(one for one in whole["candidates"] if one["values"] == whole["chosen"])
        assert chosen["score"] == max(scores)
        for one in whole["candidates"]:
            ratios = [one["by_task"][task]["value"] / whole["individual"][task]["value"] for task in TASKS]
            errors = [one["by_task"][task]["stderr"] / whole["individual"][task]["value"] for task in TASKS]
            assert one["score"] == pytest.approx(sum(ratios) / len(ratios))
            assert one["stderr"] == pytest.approx(sum(error**2 for error in errors) ** 0.5 / len(errors))


def test_a_candidates_scores_are_those_of_its_entry_evaluated_on_the_validation_split(
    folder: Path, comparison: Path
) -> None:
    shutil.copytree(comparison / "data/datasets", "data/datasets")
    entry = {"method": "ties", "reads": "deltas", "scaling": 1.5, "density": 0.7}
    params = yaml.safe_load(Path("params.yaml").read_text())
    del params["validation"], params["searches"]
    params |= {"evaluation": {"split": "validation", "batch_size": 8}, "methods": METHODS | {"plain": entry}}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    merge.main(["plain"])
    expected = next(
        one for one in found(folder, "grid")["candidates"] if one["values"] == {"scaling": 1.5, "density": 0.7}
    )
    for task in TASKS:
        prepare.main([task])
        for name, values in (("plain", expected["by_task"]), ("individual", found(folder, "grid")["individual"])):
            evaluate.main([name, task])
            found_there = json.loads(Path(f"data/metrics/{name}/{task}.json").read_text())
            assert {key: found_there[key] for key in ("value", "stderr")} == values[task]


@pytest.mark.parametrize("name", SEARCHES)
def test_an_entry_merges_by_what_was_chosen_to_the_bytes_of_the_entry_that_says_so(folder: Path, name: str) -> None:
    chosen = found(folder, name)["chosen"]
    plain = {"method": SEARCHES[name]["method"], "reads": SEARCHES[name]["of"], **chosen}
    write_params(methods=METHODS | ENTRIES | {"plain": plain})
    for entry in (name, "plain"):
        merge.main([entry])
    merged, expected = (files(folder / "data/merged" / entry) for entry in (name, "plain"))
    del merged["README.md"], expected["README.md"]
    assert merged == expected
    profile = json.loads((folder / f"data/profiles/merge/{name}.json").read_text())["search"]
    assert profile["chosen"] == chosen
    candidates = found(folder, name)["candidates"]
    best = next(one for one in candidates if one["values"] == chosen)
    assert profile["candidates"] == len(candidates)
    assert (profile["score"], profile["stderr"]) == (best["score"], best["stderr"])
    assert record.parameters(load_params(Path("params.yaml")), name).items() >= chosen.items()


def test_a_second_start_measures_nothing_and_one_with_other_batches_all(folder: Path) -> None:
    state = folder / "data/searches/evolved/state"
    before, times = files(folder / "data/searches/evolved"), kept(state)
    search.main(["evolved"])
    assert files(folder / "data/searches/evolved") == before
    assert kept(state) == times
    write_params(evaluation={"split": "test", "batch_size": 7})
    measure_points("validation")
    search.main(["evolved"])
    assert not kept(state).keys() & times.keys()


def kept(state: Path) -> dict[Path, int]:
    """Return when each candidate that was measured was written."""
    return {path: path.stat().st_mtime_ns for path in state.rglob("*.json")}


def test_a_killed_search_goes_on_to_the_same_bytes(folder: Path) -> None:
    out = folder / "data/searches/evolved"
    undisturbed = files(out)
    shutil.rmtree(out.parent)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([*python(), "-c", KILLED], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    before = kept(out / "state")
    assert len(before) == 3
    search.main(["evolved"])
    assert files(out) == undisturbed
    assert before.items() <= kept(out / "state").items()


def test_more_generations_measure_only_what_they_add(folder: Path) -> None:
    before = found(folder, "evolved")["candidates"]
    times = kept(folder / "data/searches/evolved/state")
    write_params(searches={"evolved": SEARCHES["evolved"] | {"evolve": {"generations": 3, "population": 4}}})
    write_params(methods=METHODS)
    search.main(["evolved"])
    after = found(folder, "evolved")["candidates"]
    assert after[: len(before)] == before
    assert len(after) == len(before) + 4
    assert times.items() <= kept(folder / "data/searches/evolved/state").items()


def test_the_report_compares_entries_with_data_among_themselves(folder: Path, comparison: Path) -> None:
    shutil.copytree(comparison / "data/prepared", "data/prepared")
    methods = {name: (METHODS | ENTRIES)[name] for name in ("average", "sum", "individual", "grid", "low")}
    write_params(methods=methods)
    shutil.rmtree("data/measures/studies")
    write_params(studies={"tasks": {"subsets": 2, "methods": {}}, "rank": {"fractions": []}})
    for name in methods:
        if name in ENTRIES:
            merge.main([name])
            measure_merged.main([name])
        for task in TASKS:
            evaluate.main([name, task])
        record.main([name])
    report_without_plots(lambda found: plots_of(found, "searches"))
    rows = {row["entry"]: row for row in table("report/results.csv")}
    assert {name: row["data"] for name, row in rows.items()} == {
        **dict.fromkeys(("average", "sum", "individual"), "no data"),
        **dict.fromkeys(("grid", "low"), "validation data"),
    }
    assert (
        int(rows["grid"]["forwards"]) == 5 * 3 * 6
    )  # four candidates and the individual models, on 6 images of 3 tasks
    profiles = Path("data/profiles")
    timed = [*profiles.glob("points/searches/grid/*.json"), *profiles.glob("points/individual/*.json")]
    assert len(timed) == 5
    seconds = [json.loads(file.read_text())["wall_s"] for file in (profiles / "searches/grid.json", *timed)]
    assert float(rows["grid"]["before_s"]) == pytest.approx(sum(seconds))
    assert rows["average"]["before_s"] == ""
    tests = {(row["group"], row["entry"], row["best"]) for row in table("report/significance.csv")}
    assert {group for group, _, _ in tests} == {"single", "single+data"}
    assert all(({entry, best} <= set(ENTRIES)) == (group == "single+data") for group, entry, best in tests)
    page = Path("report/index.html").read_text()
    assert "Some entries used data:" in page
    assert "With data allowed" in page
    assert "own grid" in page
    for name in ("grid", "low"):
        whole = found(folder, name)
        chosen = next(one for one in whole["candidates"] if one["values"] == whole["chosen"])
        error = f'<small class="spread">± {100 * chosen["stderr"]:.1f}</small>'
        row = rf'<th scope="row">{name}</th><td>{len(whole["candidates"])}</td>'
        assert re.search(f"{row}.*{100 * chosen['score']:.1f} {re.escape(error)}", page)
    whole = found(folder, "grid")
    own = {task: score["value"] for task, score in whole["individual"].items()}
    (density,) = (value for name, value in whole["chosen"].items() if name == "density")
    tried = {one["values"]["scaling"]: one for one in whole["candidates"] if one["values"]["density"] == density}
    lines = table("report/plots/searches.csv")
    assert [(line["entry"], line["value"], line["task"]) for line in lines] == [
        ("grid", str(scaling), task) for scaling in (0.5, 1.5) for task in ("mean", *TASKS)
    ]  # the scaling of `low` is the same everywhere
    for line in lines:
        one = tried[float(line["value"])]
        mean = line["task"] == "mean"
        score = one["score"] if mean else one["by_task"][line["task"]]["value"] / own[line["task"]]
        assert float(line["score"]) == pytest.approx(score)
        error = one["stderr"] if mean else one["by_task"][line["task"]]["stderr"] / own[line["task"]]
        assert float(line["stderr"]) == pytest.approx(error)
    assert {path.name for path in Path("report/plots").glob("search-*")} == {"search-grid.svg"}
    assert "scaling of ties" in page
