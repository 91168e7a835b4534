"""Lineage as other tools read it, by their own libraries, from real runs."""

import json
import os
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from openlineage.client.event_v2 import InputDataset, Job, JobEvent, OutputDataset, Run, RunEvent, RunState
from openlineage.client.serde import Serde
from prov.model import ProvActivity, ProvDocument, ProvEntity, ProvGeneration, ProvMembership, ProvUsage

from dvcfleet.errors import UserError
from dvcfleet.lineage import prov
from dvcfleet.lineage.export import exported
from dvcfleet.lineage.openlineage import to_events
from dvcfleet.lineage.prov import to_prov
from dvcfleet.lineage.steps import Lineage, Origin
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.repository import opened
from tests.dvcfleet.test_experiments import committed
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.warm import python

PARTS = """
stages:
  part:
    foreach: [a, b]
    do: {cmd: "mkdir -p parts; echo ${item} > parts/${item}", deps: [source], outs: ["parts/${item}"]}
  whole: {cmd: cat parts/* > whole, deps: [parts], outs: [whole]}
"""
NOW = "2026-01-02T03:04:05+00:00"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Toy:
    """A repository whose stages ran once; no test changes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        patch.delenv("DVCFLEET_RUN", raising=False)
        made = committed(Toy(tmp_path_factory.mktemp("export") / "toy", CHAIN, CHAIN_FILES))
        assert made.run()[0] == 0
    return made


def lineage_of(toy: Toy) -> Lineage:
    with opened(toy.path) as repo:
        return read_lineage(repo)


def locked(toy: Toy) -> dict[str, Any]:
    return dict(yaml.safe_load(toy.read("dvc.lock"))["stages"])


def export(repo: Path, path: Path, target: str | None = None) -> str:
    text, what = exported(repo, path, target)
    path.write_text(text)
    return what


def files(items: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(item["path"], item["md5"]) for item in items}


def ends(document: ProvDocument, kind: type, first: str, second: str) -> list[tuple[Any, Any]]:
    """The pairs that a document's relations of a kind join, by the names of their roles."""
    pairs = []
    for relation in document.get_records(kind):
        roles = {str(name): value for name, value in relation.formal_attributes}
        pairs.append((roles[f"prov:{first}"], roles[f"prov:{second}"]))
    return pairs


def described(document: ProvDocument) -> dict[Any, tuple[str, str]]:
    """Each file's path and hash by its name in a document."""
    found = {}
    for entity in document.get_records(ProvEntity):
        about = {str(name): value for name, value in entity.extra_attributes}
        if "about:md5" in about:
            found[entity.identifier] = (about["prov:label"], about["about:md5"])
    return found


def test_the_prov_library_reads_what_each_stage_used_and_made(ran: Toy, tmp_path: Path) -> None:
    assert export(ran.path, tmp_path / "all.json") == "W3C PROV-JSON of 3 stages"
    document = ProvDocument.deserialize(str(tmp_path / "all.json"))
    names = described(document)
    used = ends(document, ProvUsage, "activity", "entity")
    made = ends(document, ProvGeneration, "entity", "activity")
    entries = locked(ran)
    assert {run.localpart for run in {activity for activity, _ in used}} == set(entries)
    for stage, entry in entries.items():
        assert {names[e] for run, e in used if run.localpart == stage and e in names} == files(entry["deps"])
        assert {names[e] for e, run in made if run.localpart == stage} == files(entry["outs"])


def test_a_run_has_its_times_its_flow_run_and_what_it_ran_in(ran: Toy) -> None:
    lineage = lineage_of(ran)
    document = to_prov(lineage)
    for activity in document.get_records(ProvActivity):
        done = lineage.steps[activity.identifier.localpart].execution
        assert done
        assert activity.get_startTime() == datetime.fromisoformat(done.began)
        assert (activity.get_endTime() - activity.get_startTime()).total_seconds() == pytest.approx(done.seconds)
    text = json.loads(document.serialize(format="json"))
    assert {agent["prov:label"] for agent in text["agent"].values()} == {done.run}
    assert {name for name in text["entity"] if name.startswith("commit:")} == {f"commit:{done.commit}"}
    (environment,) = (about for name, about in text["entity"].items() if name.startswith("environment:"))
    assert environment["about:python"] == ".".join(map(str, sys.version_info[:3]))
    assert "dvc" in json.loads(environment["about:packages"])


def test_a_folder_that_is_read_whole_has_the_files_of_others_as_members(toy: Make) -> None:
    made = committed(toy(PARTS, {"source": "x"}))
    made.run()
    document = to_prov(lineage_of(made))
    names = described(document)
    pairs = {(names[w], names[p]) for w, p in ends(document, ProvMembership, "collection", "entity")}
    whole = locked(made)["whole"]["deps"][0]
    parts = {(out["path"], out["md5"]) for part in "ab" for out in locked(made)[f"part@{part}"]["outs"]}
    assert pairs == {(("parts", whole["md5"]), part) for part in parts}


def test_the_same_lineage_is_written_with_the_same_bytes(ran: Toy) -> None:
    code = (
        "import sys; from pathlib import Path; from dvcfleet.lineage.export import exported;"
        "path = Path(sys.argv[2]); path.write_text(exported(Path(sys.argv[1]), path)[0])"
    )
    texts = []
    for seed in ("1", "2"):
        out = ran.path / f"{seed}.json"
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([sys.executable, "-c", code, ran.path, out], env=environment, check=True)
        texts.append(out.read_text())
    assert texts[0] == texts[1]


def read_event(text: str) -> RunEvent | JobEvent:
    """Build an event from its JSON by the client's own classes, which check times and ids."""
    content = json.loads(text)
    content.pop("schemaURL")
    content["inputs"] = [InputDataset(**about) for about in content["inputs"]]
    content["outputs"] = [OutputDataset(**about) for about in content["outputs"]]
    content["job"] = Job(**content["job"])
    if "run" not in content:
        return JobEvent(**content)
    content["run"] = Run(**content["run"])
    content["eventType"] = RunState(content["eventType"])
    return RunEvent(**content)


def versions(items: list[Any]) -> set[tuple[str, str]]:
    return {(item.name, item.facets["version"]["datasetVersion"]) for item in items if item.namespace == "dvcfleet"}


def test_openlineages_client_reads_a_start_and_an_end_of_each_stage(ran: Toy, tmp_path: Path) -> None:
    assert export(ran.path, tmp_path / "all.jsonl") == "OpenLineage events of 3 stages"
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    events = [read_event(line) for line in lines]
    assert [Serde.to_json(event) for event in events] == lines
    assert [event.eventType for event in events if isinstance(event, RunEvent)] == [
        RunState.START,
        RunState.COMPLETE,
    ] * 3
    for stage, entry in locked(ran).items():
        start, end = (event for event in events if event.job.name == stage)
        assert start.run.runId == end.run.runId
        assert datetime.fromisoformat(start.eventTime) <= datetime.fromisoformat(end.eventTime)
        assert versions(end.inputs) == files(entry["deps"])
        assert versions(end.outputs) == files(entry["outs"])
        assert start.outputs == []
        assert start.job.facets["sourceCode"]["sourceCode"] == entry["cmd"]
    assert len({event.run.runId for event in events if isinstance(event, RunEvent)}) == 3


def test_events_name_the_flow_run_the_parameters_and_the_commit(ran: Toy) -> None:
    lineage = lineage_of(ran)
    done = lineage.steps["turn"].execution
    assert done
    _, event = (event for event in to_events(lineage, NOW) if event.job.name == "turn")
    facets = json.loads(Serde.to_json(event))["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == done.flow_run
    tags = {tag["key"]: tag["value"] for tag in facets["tags"]["tags"]}
    assert tags["params:params.yaml"] == '{"turn.times": 1}'
    assert (tags["commit"], tags["run"], tags["changed_since_commit"]) == (done.commit, done.run, "false")
    assert [event.run.runId for event in to_events(lineage, NOW)] == [
        event.run.runId for event in to_events(lineage, "2030-01-01T00:00:00Z")
    ]


def test_what_dvc_repro_ran_is_told_without_times(toy: Make) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    with chdir(made.path), Repo() as repo:
        repo.reproduce()
    lineage = lineage_of(made)
    assert [type(event) for event in to_events(lineage, NOW)] == [JobEvent] * 3
    assert all(activity.get_startTime() is None for activity in to_prov(lineage).get_records(ProvActivity))


def test_a_source_on_a_hub_is_known_by_its_revision(ran: Toy) -> None:
    lineage = lineage_of(ran)
    pinned = Origin("cut.txt", "a.yaml", "hub", "0" * 40, {"model.safetensors": {"sha256": "1" * 64}}, {"hub": "org/a"})
    steps = lineage.steps | {"cut": replace(lineage.steps["cut"], origins=(pinned,))}
    text = prov.write(replace(lineage, steps=steps))
    assert f"source:{'0' * 40}/org/a" in json.loads(text)["entity"]
    assert [d["prov:usedEntity"] for d in json.loads(text)["wasDerivedFrom"].values()] == [f"source:{'0' * 40}/org/a"]
    first = next(iter(to_events(replace(lineage, steps=steps), NOW)))
    assert next((i.namespace, i.name, i.facets["version"].datasetVersion) for i in first.inputs) == (
        "hub",
        "org/a",
        "0" * 40,
    )


def test_credentials_stay_out_of_what_is_exported(toy: Make) -> None:
    secret = "hf_" + "a1B2" * 8
    stages = (
        f"stages: {{a: {{cmd: 'echo 1 > a # --token {secret} https://u:{secret}@host/x', params: [key], outs: [a]}}}}"
    )
    made = toy(stages, {"params.yaml": f"key: {{auth_token: {secret}}}\n"})
    made.run()
    for name in ("all.json", "all.jsonl"):
        export(made.path, made.path / name)
        assert "a1B2" not in made.read(name)
        assert "echo 1" in made.read(name)


def test_a_name_without_a_format_is_refused(ran: Toy) -> None:
    with pytest.raises(UserError, match=r"must end in \.json \(W3C PROV-JSON\) or \.jsonl"):
        exported(ran.path, ran.path / "lineage.xml")


def test_where_nothing_ran_there_is_nothing_to_export(toy: Make, tmp_path: Path) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    with pytest.raises(UserError, match="nothing has run yet"):
        export(made.path, tmp_path / "all.json")
    assert list(tmp_path.glob("*.json*")) == []


def test_the_command_exports_what_a_target_comes_from(ran: Toy) -> None:
    command = [*python(), "-m", "flows", "lineage", "export", "turned.json", "turned"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=ran.path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "W3C PROV-JSON of 2 stages in turned.json\n")
    assert "stage:end" not in ran.read("turned.json")
    again = subprocess.run(command, cwd=ran.path, env=environment, capture_output=True, text=True)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
