"""How files came about, as an in-toto statement with SLSA's provenance predicate: what others' tools read and check."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dvcfleet.lineage.steps import Artifact, Lineage, LineageStep
from dvcfleet.record.environments import ENVIRONMENTS
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.terminal.secrets import masked

PREDICATE = "https://slsa.dev/provenance/v1"
# What a stage's command and parameters mean.
_BUILD = "https://dvc.org/doc/user-guide/project-structure/dvcyaml-files"


def statement(subjects: Mapping[str, str], lineage: Lineage, steps: Sequence[LineageStep]) -> bytes:
    """Return the statement that stages made files: `subjects`, sha256 by path.

    The dependencies are what the stages read, and all code and sources that this comes from: git's commit, and each
    source's revision and checksums. Raises ValueError where in-toto's own check does.
    """
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    predicate = json_format.ParseDict(_plain(_predicate(lineage, steps)), Provenance())
    files = [ResourceDescriptor(name=name, digest={"sha256": digest}).pb for name, digest in subjects.items()]
    found = Statement(files, PREDICATE, json_format.MessageToDict(predicate))
    found.validate()
    return json_format.MessageToJson(found.pb, indent=None, sort_keys=True).encode()


def read_subjects(payload: bytes) -> dict[str, str]:
    """Return the sha256 of each file that a statement is about; raise ValueError if it is none of these."""
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement

    found = Statement([], PREDICATE, {})
    try:
        json_format.Parse(payload, found.pb)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error
    found.validate()
    if found.pb.predicate_type != PREDICATE:
        raise ValueError(f"a statement of another kind: {found.pb.predicate_type}")
    return {each.name: each.digest["sha256"] for each in found.pb.subject}


def _predicate(lineage: Lineage, steps: Sequence[LineageStep]) -> dict[str, Any]:
    ran = [step.execution for step in steps if step.execution]
    times = (
        {"startedOn": min(each.began for each in ran), "finishedOn": max(each.ended for each in ran).isoformat()}
        if ran
        else {}
    )
    environments = dict.fromkeys(each.environment for each in ran)
    parameters = {step.stage: {"command": step.commands, "parameters": step.params} for step in steps}
    return {
        "buildDefinition": {
            "buildType": _BUILD,
            "externalParameters": parameters,
            "resolvedDependencies": list(_dependencies(lineage, steps)),
        },
        "runDetails": {
            "builder": {"id": "pkg:pypi/merganser", "version": {"merganser": version("merganser")}},
            "metadata": {"invocationId": ", ".join(dict.fromkeys(each.run for each in ran)), **times},
            "byproducts": [
                {"name": f"{STATE_FOLDER}/{ENVIRONMENTS}/{digest}.json", "digest": {"sha256": digest}}
                for digest in environments
            ],
        },
    }


def _dependencies(lineage: Lineage, steps: Sequence[LineageStep]) -> Iterator[dict[str, Any]]:
    """Describe what the stages read, and the code and sources of these and of all stages before them."""
    before = list(_before(lineage, [step.stage for step in steps]))
    commits = dict.fromkeys(step.execution.commit for step in before if step.execution and step.execution.commit)
    yield from ({"uri": "git+file:.", "digest": {"gitCommit": commit}} for commit in commits)
    read = [item for step in steps for item in step.inputs if item.kind == "data"]
    read += [item for step in before for item in step.inputs if item.kind != "data"]
    yield from ({"name": item.path, "digest": _digest(item)} for item in dict.fromkeys(read) if item.hash)
    for origin in (origin for step in before for origin in step.origins):
        uri = f"{origin.details.get('hub', origin.source)}@{origin.revision or 'unpinned'}"
        for name, file in origin.files.items():
            yield {"uri": uri, "name": f"{origin.path}/{name}", "digest": {"sha256": file["sha256"]}}


def _before(lineage: Lineage, names: Iterable[str]) -> Iterator[LineageStep]:
    """Yield the stages of these names and all before them, each once."""
    todo, seen = list(names), set[str]()
    while todo:
        name = todo.pop()
        if name not in seen and (step := lineage.steps.get(name)):
            seen.add(name)
            todo += step.needs
            yield step


def _digest(item: Artifact) -> dict[str, str]:
    """Return a digest under its kind's name: a folder's is DVC's, of its listing."""
    value, _, folder = (item.hash or "").partition(".")
    return {"dvcDirectory" if folder else "md5": value}


def _plain(content: Any) -> dict[str, Any]:
    """Return what JSON keeps of it, with credentials masked."""
    found: dict[str, Any] = json.loads(masked(json.dumps(content, default=str)))
    return found
