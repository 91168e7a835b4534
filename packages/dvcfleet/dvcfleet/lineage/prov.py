"""Lineage as W3C PROV, in PROV-JSON, by the `prov` library.

A file or folder with one content is an entity, each execution in the ledger an activity, and its flow run an agent; the
environment (packages' versions) is an entity that the activity used, the git commit a plan that it followed. A content
is generated once, by the first execution that wrote it; one that restored it was informed by that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prov.model import ProvActivity, ProvAgent, ProvDocument, ProvEntity

from dvcfleet.disk import overlap
from dvcfleet.lineage.steps import Artifact, FetchedSource, Lineage, LineageStep, as_text, by_ledger, identifier
from dvcfleet.messages import Result
from dvcfleet.record.ledger import Execution

# One namespace per kind; identifiers are content hashes, or names in the repository.
PREFIXES = ("file", "stage", "execution", "run", "source", "commit", "environment", "tracking", "about")


def to_prov_json(lineage: Lineage) -> str:
    """Write a lineage as PROV-JSON, and check that the library reads the same document back."""
    document = to_prov(lineage)
    text = str(document.serialize(format="json", indent=1)) + "\n"
    assert ProvDocument.deserialize(content=text) == document
    return text


def to_prov(lineage: Lineage) -> ProvDocument:
    """Return a lineage as a PROV document."""
    writer = _Writer(lineage)
    for stage in dict.fromkeys([*lineage.steps, *lineage.executions]):
        if stage in lineage.steps or lineage.executions[stage]:
            writer.write(stage)
    return writer.document


class _Writer:
    """Writes steps into one document; shared records are written once."""

    def __init__(self, lineage: Lineage) -> None:
        self.document = ProvDocument()
        for prefix in PREFIXES:
            self.document.add_namespace(prefix, f"urn:dvcfleet:{prefix}:")
        self._lineage = lineage
        self._entities: dict[str, ProvEntity] = {}
        self._agents: dict[str, ProvAgent] = {}
        self._members: set[tuple[str, str]] = set()

    def write(self, stage: str) -> None:
        """Write a stage's executions: the one that made its outputs, failures, restorations and reruns."""
        step = self._lineage.steps.get(stage)
        maker = self._lineage.maker(stage) if step else None
        made = self._activity(stage, maker, step) if step else None
        if step and made:
            self._used(made, step)
            self._made(made, step, maker)
        for one in self._lineage.executions.get(stage, ()):
            if one == maker:
                continue
            its = self._lineage.step_of(stage, one)
            run = self._activity(stage, one, its)
            if its and made and one.result == Result.RESTORED:
                self.document.communication(run, made)
            elif its:
                self._used(run, its)

    def _used(self, run: ProvActivity, step: LineageStep) -> None:
        for item in step.inputs:
            used = self._item(item)
            self.document.usage(run, used)
            for other in self._parts(item):
                self._member(item, other)

    def _made(self, run: ProvActivity, step: LineageStep, maker: Execution | None) -> None:
        for item in step.outputs:
            made = self._item(item)
            self.document.generation(made, run, maker.ended if maker else None)
            for origin in step.origins:
                if origin.path == item.path:
                    self.document.derivation(made, self._origin(origin), run)
        if step.tracking_run:
            about = {"prov:label": step.stage, "about:tracker": step.tracking_run.tracker}
            self.document.generation(self._entity("tracking", step.tracking_run.id, about), run)

    def _activity(self, stage: str, done: Execution | None, step: LineageStep | None) -> ProvActivity:
        about: dict[str, Any] = {"prov:label": stage}
        if step:
            about |= {"about:command": "\n".join(step.commands), "about:params": step.params or None}
            about["about:description"] = step.description
        if done is None:
            return self.document.activity(identifier("stage", stage), other_attributes=_values(about))
        about |= {"about:result": done.result, "about:host": done.host, "about:peak_rss_bytes": done.peak_rss_bytes}
        about |= {"about:cpu_s": done.cpu_s, "about:gpu_s": done.gpu_s}
        about |= {"about:read_bytes": done.read_bytes, "about:written_bytes": done.written_bytes}
        about |= {"about:why": done.why, "about:identity": done.identity, "about:other_ledger": done.ledger}
        name = identifier("execution", f"{done.flow_run or done.run}/{stage}/{done.began}{by_ledger(done)}")
        run = self.document.activity(name, done.began, done.ended, _values(about))
        self.document.association(run, self._agent(done), self._commit(done))
        self.document.usage(run, self._environment(done.environment))
        return run

    def _agent(self, done: Execution) -> ProvAgent:
        name = identifier("run", f"{done.flow_run or done.run}{by_ledger(done)}")
        if name not in self._agents:
            about = {"prov:type": "prov:SoftwareAgent", "prov:label": done.run}
            self._agents[name] = self.document.agent(name, self._typed(about))
        return self._agents[name]

    def _commit(self, done: Execution) -> ProvEntity | None:
        if done.commit is None:
            return None
        state = f"{done.commit}-changed" if done.dirty else done.commit
        return self._entity("commit", state, {"prov:type": "prov:Plan", "about:changed_since": bool(done.dirty)})

    def _environment(self, digest: str) -> ProvEntity:
        return self._entity("environment", digest, _prefixed(self._lineage.environments.get(digest, {})))

    def _item(self, item: Artifact) -> ProvEntity:
        about = {"prov:label": item.path, "about:kind": item.kind, "about:md5": item.hash, "about:size": item.size}
        if item.hash and item.hash.endswith(".dir"):
            about["prov:type"] = "prov:Collection"
        return self._entity("file", item.content, about)

    def _origin(self, origin: FetchedSource) -> ProvEntity:
        about = {"source": origin.source, "kind": origin.kind, "revision": origin.revision, "files": origin.files}
        return self._entity(
            "source", origin.content, {"prov:label": origin.source, **_prefixed(about | origin.details)}
        )

    def _parts(self, item: Artifact) -> Iterator[Artifact]:
        """Yield the parts, by other stages, of a folder that was read completely, or the folder of a part."""
        for maker in item.made_by:
            step = self._lineage.steps.get(maker)
            for output in step.outputs if step else ():
                if output.path != item.path and overlap(output.path, item.path):
                    yield output

    def _member(self, one: Artifact, other: Artifact) -> None:
        whole, part = sorted((one, other), key=lambda item: len(item.path))
        pair = whole.content, part.content
        if pair not in self._members:
            self._members.add(pair)
            self.document.membership(self._item(whole), self._item(part))

    def _entity(self, prefix: str, name: str, about: Mapping[str, Any]) -> ProvEntity:
        known = identifier(prefix, name)
        if known not in self._entities:
            self._entities[known] = self.document.entity(known, self._typed(about))
        return self._entities[known]

    def _typed(self, about: Mapping[str, Any]) -> dict[str, Any]:
        values = _values(about)
        if "prov:type" in values:
            values["prov:type"] = self.document.valid_qualified_name(values["prov:type"])
        return values


def _prefixed(about: Mapping[str, Any]) -> dict[str, Any]:
    return {f"about:{name}": value for name, value in about.items()}


def _values(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return one plain value per name: maps and lists as JSON, since PROV does not order several values."""
    plain = {name: value for name, value in about.items() if value is not None}
    return {name: value if isinstance(value, bool) else as_text(value) for name, value in plain.items()}
