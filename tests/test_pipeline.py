"""The project's own dvc.yaml on two tiny tasks, by the flow and by DVC itself; all of `dvc repro` is a drill."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dvcfleet.lineage.audit import audit
from dvcfleet.options import Options
from dvcfleet.planning.plan import State, plan
from merganser.checkpoints.writing import save_tensors
from tests.hub import COMMIT, serve
from tests.support import copy_repository, python
from tests.tiny import delete_run, dvc, forking_environment, is_clean, make_repository, merganser, receipts

OF_TIES = {"merge@ties", "evaluate@ties-dark", "evaluate@ties-light", "measure_merged@ties", "record@ties", "report"}
OF_ADA = {"learn@ada", *(name.replace("ties", "ada") for name in OF_TIES)}


@pytest.fixture(autouse=True)
def one_server(prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all runs use one Prefect server."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)


@pytest.fixture(scope="module")
def ran(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the tiny comparison's repository, whose outputs no test changes."""
    return copy_repository(tiny_run, tmp_path_factory.mktemp("pipeline") / "flow")


def locked(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "dvc.lock").read_text())["stages"]


def kind(stage: str) -> str:
    return stage.split("@")[0]


def stale(folder: Path) -> set[str]:
    return set(reasons(folder))


def reasons(folder: Path) -> dict[str, list[str]]:
    """Say why each stage that `merganser status` does not call up to date is not, without the seconds of its start."""
    stages = plan(folder).planned.values()
    return {stage.name: list(stage.reasons) for stage in stages if stage.state is not State.UP_TO_DATE}


def test_the_flow_leaves_a_clean_dvc_status_and_a_report(ran: Path) -> None:
    assert is_clean(ran)
    assert (ran / "report/index.html").is_file()
    assert set(json.loads((ran / "data/scores.json").read_text()))
    assert stale(ran) == set()


def test_dvc_itself_writes_the_hashes_of_the_flow_which_finds_nothing_to_do_after_it(
    tiny_fresh: Path, ran: Path
) -> None:
    """A sample of the drill `repro`, which compares the hashes of all stages."""
    dvc(tiny_fresh, "repro", "-q", "fetch_base")
    expected, found = locked(ran), locked(tiny_fresh)
    assert set(found) == {"code", "fetch_base"}
    assert {name: entry["outs"] for name, entry in found.items()} == {name: expected[name]["outs"] for name in found}
    assert plan(tiny_fresh, Options(("fetch_base",))).work == []


def test_a_run_ends_with_the_best_entries_and_the_place_of_the_report(tiny_said: str) -> None:
    assert "which one to use: mean ± its sampling error" in tiny_said
    assert tiny_said.splitlines()[-1] == "the report: report/index.html"


def test_a_second_run_starts_no_stage(ran: Path) -> None:
    before = (ran / "dvc.lock").read_bytes()
    said = merganser(ran, "run").stdout
    assert "nothing to do" in said.lower()
    assert (ran / "dvc.lock").read_bytes() == before


HOSTILE = "x; touch pwned & touch pwned | touch pwned $(touch pwned) `touch pwned`\ntouch pwned"


def test_dvc_itself_gives_no_name_to_a_shell(tiny_fresh: Path) -> None:
    params = yaml.safe_load((tiny_fresh / "params.yaml").read_text())
    params["tasks"] = {HOSTILE: params["tasks"]["dark"]}
    (tiny_fresh / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    command = [*python(), "-m", "dvc", "repro", "fetch"]
    done = subprocess.run(command, cwd=tiny_fresh, env=forking_environment(), text=True, capture_output=True)
    assert done.returncode != 0
    assert "100 letters, digits" in done.stderr, done.stdout + done.stderr
    assert not (tiny_fresh / "pwned").exists()


def own_reasons(planned: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out the stages that only follow from others, which are of their own entry."""
    own = {name: why for name, why in planned.items() if not why[0].startswith("reads from ")}
    for name in planned.keys() - own.keys():
        entry = name.partition("@")[2].partition("-")[0]
        assert all(re.search(rf"@{entry}\b", each) for each in planned[name]), planned[name]
    return own


@pytest.mark.parametrize(
    ("change", "said"),
    [({"steps": 3}, "steps changed"), pytest.param({"lr": 0.01}, "lr new", marks=pytest.mark.drill)],
    ids=str,
)
def test_a_changed_parameter_reruns_its_entry_or_what_is_learned_and_what_reads_it_alone(
    change: dict[str, float], said: str, tiny_copy: Path
) -> None:
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    params["methods"]["ties"]["density"] = 0.4
    params["learned"]["ada"] |= change
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    planned = reasons(tiny_copy)
    assert planned.keys() == OF_TIES | OF_ADA
    of_ties, of_ada = "params methods.ties.density changed", f"params learned.ada.{said}"
    assert own_reasons(planned) == {
        "merge@ties": [of_ties],
        "record@ties": [of_ties],
        "learn@ada": [of_ada],
        "report": [of_ada, of_ties],
    }


def edit(folder: Path, file: str, text: str) -> None:
    """Add a line to a file of code."""
    with (folder / file).open("a") as code:
        code.write(f"{text}\n")


def ran_in(said: str) -> set[str]:
    """Name the stages that a run, or `dvc repro`, says it ran."""
    found = re.findall(r"^\[ *\d+/\d+\] (\S+) done|^Running stage '(\S+)'", said, re.M)
    return {flow or repro for flow, repro in found}


def test_an_edited_constant_reruns_what_imports_it_and_nothing_else(tiny_copy: Path) -> None:
    edit(tiny_copy, "merganser/evaluation/scoring.py", "EDITED = 1")
    named, before = stale(tiny_copy), set(locked(tiny_copy))
    importing = {name for name in before if kind(name) in ("evaluate", "point", "study_rank")}
    after = {name for name in before if kind(name) in ("record", "report")}
    assert named == {"code", *importing, *after}


def test_an_edited_method_reruns_its_entry_and_an_edited_learner_learns_its_entries_again_and_nothing_else(
    tiny_copy: Path,
) -> None:
    edit(tiny_copy, "merganser/methods/ties.py", "EDITED = 1")
    edit(tiny_copy, "merganser/methods/adamerging.py", "EDITED = 1")
    planned = reasons(tiny_copy)
    assert planned.keys() == OF_TIES | OF_ADA | {"code"}
    assert own_reasons(planned) == {
        "code": ["dep merganser changed"],
        "merge@ties": ["dep data/code/methods/ties.txt will change"],
        "learn@ada": ["dep data/code/methods/adamerging.txt will change"],
        "merge@ada": ["dep data/code/methods/adamerging.txt will change"],
        "report": ["dep data/code/methods will change"],
    }


@pytest.mark.drill
def test_dvc_itself_reruns_after_an_edit_what_the_flow_does(tiny_copy: Path) -> None:
    edit(tiny_copy, "merganser/linalg/svd.py", "# a comment")
    assert ran_in(dvc(tiny_copy, "repro")) == {"code"}
    edit(tiny_copy, "merganser/evaluation/scoring.py", "EDITED = 1")
    assert ran_in(dvc(tiny_copy, "repro", "evaluate@ties-dark", "measure")) == {"code", "evaluate@ties-dark"}
    edit(tiny_copy, "merganser/methods/ties.py", "EDITED = 2")
    assert {"code", "merge@ties"} <= ran_in(dvc(tiny_copy, "repro", "evaluate@ties-dark"))
    assert ran_in(merganser(tiny_copy, "run").stdout) >= {"report"}
    # The edit changes no number: of what reads the merge, only what shows its time has anything new to read.
    edit(tiny_copy, "merganser/methods/ties.py", "EDITED = 3")
    said = merganser(tiny_copy, "run").stdout
    assert ran_in(said) == {"code", "merge@ties", "record@ties", "report"}
    assert said.splitlines()[-2] == "since the last run: no score changed"
    assert is_clean(tiny_copy)


MINIMAL = """base: {source: hub/base, family: open_clip}
tasks:
  dark: {source: hub/dark, data: {source: datasets/dark, templates: ["a {} image."]}}
  light:
    source: hub/light
    data: {source: datasets/light, templates: ["a {} image.", "a photo, {}."]}
methods:
  average:
  ties: {density: 0.5}
  tsv_m:
"""


def test_a_run_does_what_was_added_or_lost_and_takes_out_what_was_removed_and_restores_it_when_it_is_put_back(
    tiny_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing for a comment or for keys left out; it completes params.yaml, and nothing is left to do for DVC."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before, text, recorded = locked(tiny_copy), (tiny_copy / "params.yaml").read_text(), receipts(tiny_copy)
    (tiny_copy / "params.yaml").write_text(MINIMAL)
    edit(tiny_copy, "merganser/linalg/svd.py", "# a comment")
    delete_run(tiny_copy, recorded["ties"])
    of_one = merganser(tiny_copy, "run", "merge@average")
    assert "params.yaml: added the missing values: seed, parameters" in of_one.stderr
    assert ran_in(of_one.stdout) == {"code"}
    assert_outputs_but_of({"code"}, before, tiny_copy)  # a run of named stages takes nothing out
    done = merganser(tiny_copy, "run", "--workers", "2").stdout
    assert "no longer in dvc.yaml, and out of the workspace" in done
    assert ran_in(done) == {"record@ties", *(name.replace("ties", "tsv_m") for name in OF_TIES)}
    completed = (tiny_copy / "params.yaml").read_text()
    assert (
        "  average: {method: average, reads: deltas}\n  ties: {method: ties, reads: deltas, density: 0.5}" in completed
    )
    after = receipts(tiny_copy)
    assert after["average"] == recorded["average"]
    assert after["ties"] != recorded["ties"]
    assert not [*tiny_copy.glob("data/me*/drm_h*"), *tiny_copy.glob("data/records/drm_h*")]
    assert not {name for name in locked(tiny_copy) if "@drm_h" in name}
    assert set(json.loads((tiny_copy / "data/scores.json").read_text())) >= {"average", "ties", "tsv_m"}
    assert stale(tiny_copy) == set()
    assert audit(tiny_copy).findings == ()
    assert is_clean(tiny_copy)
    (tiny_copy / "params.yaml").write_text(text)
    assert ran_in(merganser(tiny_copy, "run").stdout) <= {"report"}
    assert_outputs_but_of({"code", "record@ties", "report"}, before, tiny_copy)
    assert audit(tiny_copy).findings == ()
    assert is_clean(tiny_copy)


def assert_outputs_but_of(others: set[str], before: dict[str, Any], folder: Path) -> None:
    """Compare what all stages but the others wrote with what they had written before."""
    one, two = (
        {name: entry["outs"] for name, entry in stages.items() if name not in others}
        for stages in (before, locked(folder))
    )
    assert one == two


@pytest.mark.drill
def test_sections_that_nothing_uses_may_be_left_out(tiny_copy: Path) -> None:
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    del params["joints"], params["differences"], params["studies"]
    params["methods"] = {"average": params["methods"]["average"]}
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    assert stale(tiny_copy) == {"report"}
    assert ran_in(dvc(tiny_copy, "repro")) == {"report"}
    assert stale(tiny_copy) == set()


@pytest.mark.drill
def test_a_run_takes_a_removed_task_joints_and_difference_vectors_out_of_the_workspace(tiny_copy: Path) -> None:
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    del params["tasks"]["light"], params["differences"]["from_average"], params["joints"]["rows"]
    params["methods"] = {"average": params["methods"]["average"]}
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    merganser(tiny_copy, "run", "--workers", "1")
    assert not list(tiny_copy.glob("data/**/light*"))
    assert not (tiny_copy / "data/differences").exists()
    assert not (tiny_copy / "data/joints").exists()
    assert is_clean(tiny_copy)


def test_without_a_base_the_tasks_models_are_fetched_first(tiny_fresh: Path) -> None:
    params = yaml.safe_load((tiny_fresh / "params.yaml").read_text())
    params["base"]["source"] = "data/checkpoints"
    params["studies"]["tasks"]["methods"] = {}
    (tiny_fresh / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    *first, last = plan(tiny_fresh, Options(("fetch_base",))).planned
    assert sorted(first) == ["code", "fetch@dark", "fetch@light"]  # in any order
    assert last == "fetch_base"


OF_NO_CHECKPOINT_BUT_LIGHT = {
    *("fetch_base", "fetch@light", "extract@light", "decompose@light", "study_rank@light-fractions"),
    *("fetch_data@dark", "fetch_data@light", "prepare@dark", "prepare@light", "name_classes"),
    *("prepare_validation@dark-split", "prepare_validation@light-split", "statistics@gram-light"),
}


def test_dvc_shows_a_column_for_each_key_of_metrics_json_and_a_row_for_each_entry(ran: Path) -> None:
    (shown,) = json.loads(dvc(ran, "metrics", "show", "--json"))[""]["data"].values()
    assert shown["data"] == json.loads((ran / "metrics.json").read_text())
    found = json.loads(dvc(ran, "metrics", "show", "report/entries", "--json"))[""]["data"]
    assert len(found) == shown["data"]["entry_count"]
    header = dvc(ran, "exp", "show", "--csv", "--drop", ".*[./].*|merganser|tasks").splitlines()[0].split(",")
    assert header[5:] == [*shown["data"], "seed"]


@pytest.mark.drill
def test_a_run_runs_only_what_a_changed_checkpoint_touches_and_the_report_says_what_changed(tiny_copy: Path) -> None:
    before = json.loads((tiny_copy / "data/scores.json").read_text())
    train_more(tiny_copy / "hub/dark/open_clip_model.safetensors")
    ran = ran_in(merganser(tiny_copy, "run", "--workers", "2").stdout)
    declared = {stage["name"] for stage in json.loads(merganser(tiny_copy, "status", "--json").stdout)["stages"]}
    assert ran == declared - OF_NO_CHECKPOINT_BUT_LIGHT - {"code"}
    after = json.loads((tiny_copy / "data/scores.json").read_text())
    told = {
        (row["entry"], row["number"]): (float(row["before"]), float(row["after"]))
        for row in csv.DictReader((tiny_copy / "report/changes.csv").open())
    }
    assert told == {
        (entry, name): (number, numbers(after)[entry, name])
        for (entry, name), number in numbers(before).items()
        if numbers(after)[entry, name] != number
    }
    assert told
    assert "<code>fetch@dark</code>: dep hub/dark changed" in (tiny_copy / "report/index.html").read_text()


@pytest.mark.drill
def test_a_third_task_runs_its_own_stages_and_those_that_read_all_tasks_and_no_other(tiny_copy: Path) -> None:
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    params["tasks"]["third"] = params["tasks"]["dark"]
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    declared = {stage["name"] for stage in json.loads(merganser(tiny_copy, "status", "--json").stdout)["stages"]}
    of_one = {
        "fetch",
        "fetch_data",
        "extract",
        "decompose",
        "prepare",
        "prepare_validation",
        "statistics",
        "study_rank",
    }
    kept = {name for name in declared if kind(name) in of_one and "third" not in name}
    assert kept >= {"extract@dark", "decompose@light", "prepare@dark", "statistics@gram-light"}
    ran = ran_in(merganser(tiny_copy, "run", "--workers", "2").stdout)
    assert not ran & kept
    assert ran >= {"fetch@third", "extract@third", "merge@ties", "evaluate@ties-dark", "evaluate@ties-third", "report"}
    assert stale(tiny_copy) == set()


@pytest.mark.drill
def test_a_run_follows_a_branch_of_a_hub_and_runs_what_depends_on_it(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "flow")
    first = Path(shutil.move(folder / "hub/dark", tmp_path / "first"))
    second = Path(shutil.copytree(first, tmp_path / "second"))
    train_more(second / "open_clip_model.safetensors")
    (folder / "hub/dark.yaml").write_text("{hub: org/dark, follow: main}\n")
    params = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(params.replace("source: hub/dark,", "source: hub/dark.yaml,"))
    with serve({"models/org/dark": first}, COMMIT) as hub:

        def run() -> str:
            said = merganser(folder, "run", "extract", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0").stdout
            return said.replace("\n", " ")

        assert re.search(r"fetch_base done .* extract@light done", run())
        assert "nothing to do" in run()
        hub.earlier["models/org/dark", COMMIT] = first
        hub.folders["models/org/dark"], hub.heads["models/org/dark"] = second, COMMIT[::-1]
        moved = run()
        assert f"hub/dark.yaml: org/dark moved to {COMMIT[::-1]}" in moved
        assert re.findall(r"(\S+) done in", moved) == ["fetch@dark", "extract@dark"]
        assert "nothing to do" in run()


def train_more(file: Path) -> None:
    """Move a checkpoint's parameters far."""
    generator = torch.Generator().manual_seed(9)
    moved = {name: value + torch.randn(value.shape, generator=generator) for name, value in load_file(file).items()}
    save_tensors(file, moved)


def numbers(metrics: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    """Return all numbers of data/scores.json by entry and name."""
    flat = {(entry, name): value for entry, values in metrics.items() for name, value in values.items()}
    by_metric = {key: flat.pop(key) for key in list(flat) if key[1] == "accuracy"}
    return flat | {
        (entry, f"accuracy/{task}"): value for (entry, _), tasks in by_metric.items() for task, value in tasks.items()
    }


def test_the_list_of_points_is_written_where_it_is_missing_and_dvc_refuses_one_of_other_choices(
    tiny_copy: Path,
) -> None:
    points = tiny_copy / "points.yaml"
    before = points.read_text()
    points.unlink()
    assert stale(tiny_copy) == set()
    assert points.read_text() == before
    params = yaml.safe_load((tiny_copy / "params.yaml").read_text())
    params["studies"]["sweeps"] = {
        "scale": {"method": "task_arithmetic", "reads": "deltas", "over": {"scaling": [0.5]}}
    }
    (tiny_copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with pytest.raises(subprocess.CalledProcessError):
        dvc(tiny_copy, "repro")
    merganser(tiny_copy, "status")
    listed = yaml.safe_load(points.read_text())["points"]
    (new,) = listed.keys() - yaml.safe_load(before)["points"].keys()
    dvc(tiny_copy, "repro", f"point@{new}")
    assert (tiny_copy / "data/measures/points" / listed[new]["place"] / new).is_dir()
