"""A renamed task keeps what does not follow from its name: what ran, and what dvc.lock and the ledger say of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dvcfleet.planning.plan import State, plan
from dvcfleet.record.last_run import last_run
from dvcfleet.record.ledger import executions
from merganser.flows.evidence.runs.diff import diff_lineages
from merganser.flows.evidence.runs.run import run_names
from tests.command_line.conftest import Done, Refused
from tests.tiny import is_clean, merganser

KEPT = ("ties", "average", "dts_d", "drm_h")  # the others read what is drawn or learned by the tasks' names
OF_TASK = ("fetch", "fetch_data", "extract", "decompose", "prepare", "prepare_validation", "extract_difference")


def locked(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    return found


def scores(folder: Path, task: str) -> dict[str, bytes]:
    """Return the metrics and the examples of a task, of the entries that are kept."""
    names = [Path("metrics", entry, f"{task}.json") for entry in KEPT]
    names += [Path("examples", entry, f"{task}.safetensors") for entry in KEPT]
    return {name.parent.as_posix(): (folder / "data" / name).read_bytes() for name in names}


def ran(folder: Path, count: int) -> Iterator[str]:
    """Give the stages of the ledger's lines after the first ones whose commands ran."""
    return (line.stage for line in list(executions(folder / ".dvcfleet"))[count:] if line.result == "done")


def test_a_renamed_task_keeps_all_that_does_not_follow_from_its_name(tiny_copy: Path, done: Done) -> None:
    before = scores(tiny_copy, "dark")
    text = (tiny_copy / "params.yaml").read_text()
    last = last_run(tiny_copy / ".dvcfleet")
    said = merganser(tiny_copy, "rename", "dark", "dawn").stdout
    assert said.startswith("dark is dawn in params.yaml; ")
    assert (tiny_copy / "params.yaml").read_text() == text.replace("  dark: {", "  dawn: {")
    assert last_run(tiny_copy / ".dvcfleet") == last  # it is no run
    assert {one.state for one in plan(tiny_copy).work} <= {State.STALE, State.WAITING}
    kept = {name for name, one in plan(tiny_copy).planned.items() if one.state is State.UP_TO_DATE}
    of_task = {f"{kind}@dawn" for kind in OF_TASK[:5]} | {
        "prepare_validation@dawn-split",
        "extract_difference@from_average-dawn",
        "study_rank@dawn-fractions",
        "join@rows",
    }
    evaluated = {f"evaluate@{entry}-{task}" for entry in KEPT for task in ("dawn", "light")}
    assert of_task | evaluated | {f"merge@{entry}" for entry in KEPT} <= kept
    assert not any("dark" in name for name in locked(tiny_copy))
    assert scores(tiny_copy, "dawn") == before
    shown = done(tiny_copy, "lineage", "show", "dts_d/dawn")
    assert "it ran as extract@dark" in shown
    assert "it ran as merge@dts_d" in shown
    steps = json.loads(done(tiny_copy, "lineage", "show", "dts_d/dawn", "--json"))["steps"]
    (extracted,) = (step for step in steps if step["stage"] == "extract@dawn")
    assert extracted["execution"]["stage"] == "extract@dark"
    assert extracted["execution"]["result"] == "done"
    assert extracted["renamed"]["was"]["stage"] == "extract@dark"
    compared = diff_lineages(tiny_copy, next(iter(run_names(tiny_copy))), "workspace", "dts_d/dawn")
    assert (compared.of, compared.differs) == (("evaluate@dts_d-dark and evaluate@dts_d-dawn",), False)
    assert {(each.kind, each.name.rpartition(".data.")[0] or each.name) for each in compared.differences} == {
        ("parameter", name) for task in ("dark", "dawn") for name in (f"tasks.{task}.source", f"tasks.{task}")
    }


def up_to_date(folder: Path) -> set[str]:
    return {name for name, one in plan(folder).planned.items() if one.state is State.UP_TO_DATE}


@pytest.mark.drill  # a run takes it back every day, below
def test_a_rename_that_ends_midway_is_taken_back_and_loses_nothing(tiny_copy: Path) -> None:
    obstacle = tiny_copy / "data/merged/average/.README.md.partial"
    obstacle.mkdir()
    assert merganser(tiny_copy, "rename", "dark", "dawn", check=False).returncode == 1
    assert (tiny_copy / "data/checkpoints/dawn").exists()
    obstacle.rmdir()
    said = merganser(tiny_copy, "rename", "dark", "dawn").stdout.splitlines()
    assert said[0] == "`merganser rename dark dawn` did not end: the task is dark again, with all results"
    assert {"fetch@dawn", *(f"merge@{entry}" for entry in KEPT)} <= up_to_date(tiny_copy)


def test_a_run_takes_back_a_rename_that_ended_midway(tiny_copy: Path) -> None:
    before = (tiny_copy / "params.yaml").read_text(), locked(tiny_copy)
    obstacle = tiny_copy / "data/merged/average/.README.md.partial"
    obstacle.mkdir()
    assert merganser(tiny_copy, "rename", "dark", "dawn", check=False).returncode == 1
    obstacle.rmdir()
    assert "nothing to do" in merganser(tiny_copy, "run").stdout
    assert ((tiny_copy / "params.yaml").read_text(), locked(tiny_copy)) == before
    assert is_clean(tiny_copy)


@pytest.mark.drill
def test_the_name_of_a_task_that_was_taken_out_is_free_and_a_foreign_file_is_not_overwritten(tiny_copy: Path) -> None:
    lock = (tiny_copy / "dvc.lock").read_text()
    entry = yaml.safe_dump({"fetch@dawn": locked(tiny_copy)["fetch@dark"]}, indent=2).replace("/dark", "/dawn")
    (tiny_copy / "dvc.lock").write_text(lock + "".join(f"  {line}\n" for line in entry.splitlines()))
    shutil.copytree(tiny_copy / "data/checkpoints/dark", tiny_copy / "data/checkpoints/dawn")
    foreign = tiny_copy / "data/deltas/dawn.safetensors"
    foreign.write_text("mine")
    refused = merganser(tiny_copy, "rename", "dark", "dawn", check=False)
    assert (refused.returncode, foreign.read_text()) == (2, "mine")
    assert refused.stderr.startswith("data/deltas/dawn.safetensors: move it away")
    assert "dark: {" in (tiny_copy / "params.yaml").read_text()
    foreign.unlink()
    merganser(tiny_copy, "rename", "dark", "dawn")
    assert {"fetch@dawn", "extract@dawn"} <= up_to_date(tiny_copy)


@pytest.mark.drill
@pytest.mark.parametrize("name", ["dawn", "night"])  # with which the tasks keep their order, and change it
def test_what_a_renamed_comparison_has_is_what_its_stages_write(tiny_copy: Path, prefect_api: str, name: str) -> None:
    old = locked(tiny_copy)
    merganser(tiny_copy, "rename", "dark", name)
    kept = {stage for stage, one in plan(tiny_copy).planned.items() if one.state is State.UP_TO_DATE}
    count = len(list(executions(tiny_copy / ".dvcfleet")))
    merganser(tiny_copy, "run", "--workers", "2", PREFECT_API_URL=prefect_api)
    assert not kept & set(ran(tiny_copy, count))
    assert {stage.partition("@")[0] for stage in old} == {stage.partition("@")[0] for stage in locked(tiny_copy)}
    assert is_clean(tiny_copy)
    assert not list((tiny_copy / "data").rglob("dark*"))
    found = merganser(tiny_copy, "lineage", "verify", "--rerun", check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_names_that_are_none_are_refused_and_nothing_is_changed(
    tiny_fresh: Path, refused: Refused, done: Callable[..., str]
) -> None:
    text = (tiny_fresh / "params.yaml").read_text()
    assert 'did you mean "dark"' in refused(tiny_fresh, "rename", "drak", "dawn")
    assert "not a name" in refused(tiny_fresh, "rename", "dark", "da wn")
    assert "already" in refused(tiny_fresh, "rename", "dark", "light")
    assert (tiny_fresh / "params.yaml").read_text() == text
    assert done(tiny_fresh, "rename", "dark", "dawn").startswith("dark is dawn in params.yaml; 0 of 0 stages")
    assert not (tiny_fresh / "dvc.lock").exists()
