"""OpenLineage's events by OpenLineage's own JSON schemas: of each kind, exported and as a run sends them."""

import json
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from jsonschema import Draft202012Validator
from openlineage.client.serde import Serde
from referencing import Registry, Resource

from dvcfleet.lineage.openlineage import openlineage_run, stopped
from tests.dvcfleet.test_experiments import committed, git
from tests.dvcfleet.test_lineage_export import NOW, export
from tests.dvcfleet.toy import Make

SPEC = "OPENLINEAGE_SPEC"  # the folder `spec` of a clone of OpenLineage
STAGES = """
stages:
  good:
    desc: copies
    cmd: cp source good
    deps: [source]
    params: [by]
    outs: [good]
  bad: {cmd: "exit 7", deps: [good]}
  other: {cmd: echo 1 > other, outs: [other]}
"""


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """Give each schema by its address."""
    found = [json.loads(path.read_text()) for path in sorted(Path(os.environ[SPEC]).rglob("*.json"))]
    return {each["$id"]: each for each in found if isinstance(each, dict) and "$id" in each}


@pytest.fixture
def events(toy: Make, tmp_path: Path) -> list[dict[str, Any]]:
    """Give what runs sent and what is exported of them: of stages that ran, failed, were restored, by dvc repro."""
    sent, wrote = tmp_path / "sent.jsonl", tmp_path / "wrote.jsonl"
    transport = {"type": "file", "log_file_path": str(sent), "append": True}
    files = {"openlineage.yml": json.dumps({"transport": transport}), "params.yaml": "by: 1\n", "source": "1"}
    made = committed(toy(STAGES, files))
    git(made, "remote", "add", "origin", "https://host/repository.git")
    for source in "121":
        made.write("source", source)
        made.run("good", "bad")
    with chdir(made.path), Repo() as repo:
        repo.reproduce("other")
    export(made.path, wrote)
    stop = Serde.to_json(stopped("good", openlineage_run("good", "a-run", None, NOW), NOW))
    return [json.loads(line) for text in (sent.read_text(), wrote.read_text(), stop) for line in text.splitlines()]


def facets(event: Any) -> Iterator[dict[str, Any]]:
    """Give all facets in an event."""
    if isinstance(event, dict) and "_schemaURL" in event:
        yield event
    elif isinstance(event, dict | list):
        for each in event.values() if isinstance(event, dict) else event:
            yield from facets(each)


@pytest.mark.drill
@pytest.mark.skipif(SPEC not in os.environ, reason=f"{SPEC} names no folder with OpenLineage's schemas")
def test_all_events_and_facets_are_valid_by_their_schemas(
    schemas: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    registry: Any = Registry().with_resources([(name, Resource.from_contents(each)) for name, each in schemas.items()])

    def is_valid(content: dict[str, Any], address: str) -> bool:
        return Draft202012Validator({"$ref": address}, registry=registry).is_valid(content)

    for event in events:
        assert is_valid(event, event["schemaURL"]), event
        assert not is_valid(event | {"job": {}}, event["schemaURL"])
    told = [facet for event in events for facet in facets(event)]
    for facet in told:
        assert is_valid(facet, facet["_schemaURL"]), facet
        own = [key for key in facet if not key.startswith("_")]
        assert not is_valid({key: facet[key] for key in own}, facet["_schemaURL"])
        assert not is_valid(facet | dict.fromkeys(own), facet["_schemaURL"])
    assert {event.get("eventType") for event in events} == {None, "START", "COMPLETE", "FAIL", "ABORT"}
    assert len({facet["_schemaURL"] for facet in told}) == 12
