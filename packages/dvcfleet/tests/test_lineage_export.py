"""Lineage as other tools read it, by their own libraries, from real runs."""

import json
import os
import pkgutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from pwd import getpwuid
from shutil import which
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from attr import NOTHING, fields, has
from dvc.repo import Repo
from openlineage.client import generated
from openlineage.client.event_v2 import InputDataset, Job, JobEvent, OutputDataset, Run, RunEvent, RunState
from openlineage.client.serde import Serde
from prov.identifier import QualifiedName
from prov.model import (
    ProvActivity,
    ProvCommunication,
    ProvDocument,
    ProvEntity,
    ProvGeneration,
    ProvMembership,
    ProvUsage,
)
from rocrate.rocrate import ROCrate

from dvcfleet.errors import UserError
from dvcfleet.lineage import prov
from dvcfleet.lineage.export import exported
from dvcfleet.lineage.openlineage import to_events
from dvcfleet.lineage.prov import to_prov
from dvcfleet.lineage.rocrate import PROFILES
from dvcfleet.lineage.steps import FetchedSource, Lineage
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.repository import opened
from tests import PYTHONPATH
from tests.dvcfleet.test_experiments import committed
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import python

PARTS = """
stages:
  part:
    foreach: [a, b]
    do: {cmd: "mkdir -p parts; echo ${item} > parts/${item}", deps: [source], outs: ["parts/${item}"]}
  whole: {cmd: cat parts/* > whole, deps: [parts], outs: [whole]}
"""
FACET_MODULES = [
    import_module(f"openlineage.client.generated.{each.name}") for each in pkgutil.iter_modules(generated.__path__)
]
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
    content, what = exported(repo, path, target)
    if callable(content):
        path.mkdir()
        content(path)
    else:
        path.write_bytes(b"".join(content))
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


def stage_of(activity: Any) -> str:
    """The stage of an execution, by its name in a document."""
    return str(activity.localpart).split("/")[1]


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
    assert {stage_of(run) for run in {activity for activity, _ in used}} == set(entries)
    for stage, entry in entries.items():
        assert {names[e] for run, e in used if stage_of(run) == stage and e in names} == files(entry["deps"])
        assert {names[e] for e, run in made if stage_of(run) == stage} == files(entry["outs"])


def test_a_run_has_its_times_its_flow_run_and_what_it_ran_in(ran: Toy) -> None:
    lineage = lineage_of(ran)
    document = to_prov(lineage)
    for activity in document.get_records(ProvActivity):
        done = lineage.steps[stage_of(activity.identifier)].execution
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
        "path = Path(sys.argv[2]); path.write_bytes(b''.join(exported(Path(sys.argv[1]), path)[0]))"
    )
    out, other = ran.path / "out.json", ran.path / "other.json"
    # Two seeds of the hashes: this one, and that of the tests, which is another each time.
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": PYTHONPATH}
    subprocess.run([sys.executable, "-c", code, ran.path, out], env=environment, check=True)
    export(ran.path, other)
    assert out.read_text() == other.read_text()


def _fits(value: Any, kind: Any) -> bool:
    """Tell whether a value of JSON is of a type, and an object has the keys of its class, all that these require."""
    if has(kind):
        own = {key: each for key, each in value.items() if not key.startswith("_")} if isinstance(value, dict) else {}
        types, needed = get_type_hints(kind), {each.name for each in fields(kind) if each.default is NOTHING}
        is_whole = isinstance(value, dict) and needed <= own.keys()
        return is_whole and all(key in types and _fits(each, types[key]) for key, each in own.items())
    if get_origin(kind) is UnionType:
        return any(_fits(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(each, *get_args(kind)) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_fits(each, get_args(kind)[1]) for each in value.values())
    return isinstance(value, kind) and isinstance(value, bool) <= (kind is bool)


def _facets(found: dict[str, Any]) -> dict[str, Any]:
    """Hold facets to the classes that the client has made of their schemas: their keys, types, and own checks."""
    for name, facet in found.items():
        schema = facet["_schemaURL"]
        kind = schema.rpartition("/")[2]
        (known,) = {
            each
            for module in FACET_MODULES
            if (each := getattr(module, kind, None)) and each.__module__ == module.__name__
        }
        assert known._get_schema() == schema
        assert _fits(facet, known), name
        known(**{key: value for key, value in facet.items() if not key.startswith("_")})
        assert facet["_producer"] == "urn:dvcfleet", name
    return found


def _dataset(kind: type[Any], about: dict[str, Any]) -> Any:
    for facets in (key for key in about if key.lower().endswith("facets")):
        _facets(about[facets])
    return kind(**about)


def read_event(text: str) -> RunEvent | JobEvent:
    """Build an event from its JSON by the client's own classes, which check times and ids."""
    content = json.loads(text)
    content.pop("schemaURL")
    content["inputs"] = [_dataset(InputDataset, about) for about in content["inputs"]]
    content["outputs"] = [_dataset(OutputDataset, about) for about in content["outputs"]]
    content["job"] = Job(**content["job"] | {"facets": _facets(content["job"]["facets"])})
    if "run" not in content:
        return JobEvent(**content)
    content["run"] = Run(**content["run"] | {"facets": _facets(content["run"]["facets"])})
    content["eventType"] = RunState(content["eventType"])
    return RunEvent(**content)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("run", "facets", "parent", "run", "runId"), None),
        (("run", "facets", "parent", "job"), None),
        (("run", "facets", "executionParameters", "parameters", 0, "key"), 1),
        (("run", "facets", "tags", "tags", 0, "value"), True),
        (("run", "facets", "processing_engine", "version"), ["1"]),
        (("job", "facets", "jobType", "integration"), None),
        (("outputs", 0, "outputFacets", "outputStatistics", "size"), "1"),
        (("outputs", 0, "facets", "version", "other"), "1"),
    ],
)
def test_a_facet_that_is_not_as_its_class_says_is_seen(ran: Toy, place: tuple[Any, ...], value: Any) -> None:
    (event,) = (e for e in to_events(lineage_of(ran), NOW) if e.job.name == "turn" and e.outputs)
    text = Serde.to_json(event)
    read_event(text)
    content = inner = json.loads(text)
    for key in place[:-1]:
        inner = inner[key]
    inner.pop(place[-1], None)
    if value is not None:
        inner[place[-1]] = value
    with pytest.raises(AssertionError):
        read_event(json.dumps(content))


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
    start, event = (event for event in to_events(lineage, NOW) if event.job.name == "turn")
    assert start.run.runId == event.run.runId
    facets = json.loads(Serde.to_json(event))["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == done.flow_run
    tags = {tag["key"]: tag["value"] for tag in facets["tags"]["tags"]}
    (parameter,) = facets["executionParameters"]["parameters"]
    assert (parameter["key"], parameter["value"]) == ("params.yaml:turn.times", "1")
    assert tags["python"] == ".".join(map(str, sys.version_info[:3]))
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
    pinned = FetchedSource(
        "cut.txt", "a.yaml", "hub", "0" * 40, {"model.safetensors": {"sha256": "1" * 64}}, {"hub": "org/a"}
    )
    steps = lineage.steps | {"cut": replace(lineage.steps["cut"], origins=(pinned,))}
    text = prov.to_prov_json(replace(lineage, steps=steps))
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
    for name in ("all.json", "all.jsonl", "crate"):
        export(made.path, made.path / name)
    texts = [made.read(name) for name in ("all.json", "all.jsonl", "crate/ro-crate-metadata.json", "crate/dvc.yaml")]
    assert not any("a1B2" in text for text in (*texts, made.read("crate/params.yaml")))
    assert all("echo 1" in text for text in texts)


def test_a_name_without_a_format_is_refused(ran: Toy) -> None:
    with pytest.raises(UserError, match=r"must end in \.json \(W3C PROV-JSON\), \.jsonl \(Open"):
        exported(ran.path, ran.path / "lineage.xml")


def test_where_nothing_ran_there_is_nothing_to_export(toy: Make, tmp_path: Path) -> None:
    made = toy(CHAIN, CHAIN_FILES)
    with pytest.raises(UserError, match="nothing has run yet"):
        export(made.path, tmp_path / "all.json")
    assert list(tmp_path.glob("*.json*")) == []


FLAKY = """
stages:
  cut: {cmd: head -c 3 source > cut.txt, deps: [source], outs: [cut.txt]}
  weigh: {cmd: "sh weigh.sh", deps: [cut.txt, weigh.sh], outs: [weight]}
"""


@pytest.fixture
def several(toy: Make) -> Toy:
    """A repository with a stage that failed, ran, and was restored."""
    made = committed(toy(FLAKY, {"source": "abcdef", "weigh.sh": "exit 3"}))
    subprocess.run(
        ["git", "-C", str(made.path), "remote", "add", "origin", "https://u:secret99@host/x.git"], check=True
    )
    assert made.run()[0] == 1
    made.write("weigh.sh", "wc -c < cut.txt > weight")
    assert made.run()[0] == 0
    made.write("source", "uvwxyz")
    assert made.run()[0] == 0
    made.write("source", "abcdef")
    assert made.run()[0] == 0
    return made


def test_each_execution_is_an_activity_and_a_content_is_made_once_before_it_is_used(several: Toy) -> None:
    document = to_prov(lineage_of(several))
    runs = {run.identifier: run for run in document.get_records(ProvActivity)}
    results = [
        (stage_of(name), {str(k): v for k, v in run.extra_attributes}["about:result"]) for name, run in runs.items()
    ]
    assert sorted(results) == [
        *[("cut", "done")] * 2,
        ("cut", "restored"),
        *[("weigh", "done")] * 2,
        ("weigh", "failed"),
        ("weigh", "restored"),
    ]
    made = ends(document, ProvGeneration, "entity", "activity")
    assert len({entity for entity, _ in made}) == len(made) == 2
    maker = dict(made)
    for run, entity in ends(document, ProvUsage, "activity", "entity"):
        if entity in maker:
            assert runs[maker[entity]].get_endTime() <= runs[run].get_endTime()
    informed = ends(document, ProvCommunication, "informed", "informant")
    assert {(stage_of(one), stage_of(other)) for one, other in informed} == {("cut", "cut"), ("weigh", "weigh")}
    known = {record.identifier for record in document.get_records() if record.identifier}
    for relation in (ProvUsage, ProvGeneration, ProvCommunication):
        for record in document.get_records(relation):
            assert {value for _, value in record.formal_attributes if isinstance(value, QualifiedName)} <= known


def test_an_execution_that_failed_is_an_event_with_its_error_and_where_the_code_is(
    several: Toy, tmp_path: Path
) -> None:
    export(several.path, tmp_path / "all.jsonl")
    text = (tmp_path / "all.jsonl").read_text()
    assert "secret99" not in text
    events = [read_event(line) for line in text.splitlines()]
    kinds = [(event.job.name, event.eventType) for event in events if isinstance(event, RunEvent)]
    assert kinds.count(("weigh", RunState.FAIL)) == 1
    assert [kind for _, kind in kinds].count(RunState.START) == len(kinds) / 2 == 7
    failed = next(event for event in events if isinstance(event, RunEvent) and event.eventType is RunState.FAIL)
    assert failed.run.facets
    assert failed.run.facets["errorMessage"]["message"] == "exit code 3"
    assert failed.job.facets
    assert failed.job.facets["sourceCodeLocation"]["url"] == "https://***@host/x.git"
    assert failed.outputs == []


def test_a_crate_is_read_by_its_own_library_and_has_what_the_workflow_run_profile_asks_for(
    several: Toy, tmp_path: Path
) -> None:
    assert export(several.path, tmp_path / "crate") == "an RO-Crate in a folder of 2 stages"
    crate = ROCrate(tmp_path / "crate")
    assert {each.id for each in crate.root_dataset["conformsTo"]} == set(PROFILES)
    assert crate.mainEntity.id == "dvc.yaml"
    assert set(crate.mainEntity.type) == {"File", "SoftwareSourceCode", "ComputationalWorkflow"}
    actions = crate.get_by_type("CreateAction")
    assert {action.id for action in actions} == {action.id for action in crate.root_dataset["mentions"]}
    stages = [action for action in actions if action["instrument"].type == "SoftwareApplication"]
    runs = [action for action in actions if action["instrument"].id == "dvc.yaml"]
    assert (len(stages), len(runs)) == (7, 3)  # what failed is gone on with under its name
    (failed,) = (action for action in stages if action["actionStatus"].endswith("FailedActionStatus"))
    assert failed["error"] == "weigh: exit code 3"
    done = [action for action in stages if action.get("result")]
    assert {action["result"]["name"] for action in done} == {"cut.txt", "weight"}
    assert (tmp_path / "crate/weight").read_text() == several.read("weight")
    assert export(several.path, tmp_path / "crate.zip") == "an RO-Crate of 2 stages"
    assert ROCrate(tmp_path / "crate.zip").mainEntity.id == "dvc.yaml"


def mistakes_in(crate: Path) -> list[str]:
    """What the validator of RO-Crates finds wrong with one, by the profile that it says it is of."""
    report = crate.with_name("report.json")
    command = ["rocrate-validator", "validate", "--no-paging", "--output-format", "json", "--output-file", str(report)]
    # The user's own cache, which has the contexts where there is no network: tests have a home of their own.
    cached = os.environ | {"XDG_CACHE_HOME": str(Path(getpwuid(os.getuid()).pw_dir) / ".cache")}
    done = subprocess.run([*command, str(crate)], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=cached)
    if "URLError" in done.stdout + done.stderr:
        pytest.skip("roc-validator cannot fetch the JSON-LD contexts of RO-Crates, and has not kept them")
    assert report.is_file(), done.stdout + done.stderr
    found = json.loads(report.read_text())
    report.unlink()
    assert found["validation_settings"]["profile_identifier"] == "workflow-run-crate-0.5"
    assert found["passed"] == (done.returncode == 0) == (not found["issues"])
    return [issue["message"] for issue in found["issues"]]


@pytest.mark.drill
@pytest.mark.skipif(not which("rocrate-validator"), reason="roc-validator is not installed, or not on the PATH")
def test_a_crate_is_valid_by_the_validator_of_its_profile(several: Toy, tmp_path: Path) -> None:
    export(several.path, tmp_path / "crate")
    assert mistakes_in(tmp_path / "crate") == []
    metadata = tmp_path / "crate/ro-crate-metadata.json"
    metadata.write_text(metadata.read_text().replace('"mainEntity"', '"mainPart"'))
    assert mistakes_in(tmp_path / "crate")


def test_the_command_exports_what_a_target_comes_from(ran: Toy) -> None:
    command = [*python(), "-m", "merganser.flows", "lineage", "export", "turned.json", "turned"]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, cwd=ran.path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "W3C PROV-JSON of 2 stages in turned.json\n")
    assert "stage:end" not in ran.read("turned.json")
    again = subprocess.run(command, cwd=ran.path, env=environment, capture_output=True, text=True)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
