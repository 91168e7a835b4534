"""Lineage as an RO-Crate of the Workflow Run profile, by the `rocrate` library.

dvc.yaml is the workflow, a run an action of it, and each execution in the ledger an action of its stage. The crate has
the pipeline's own files, metrics, and results that no stage reads; everything else is named by its hash.
"""

from collections.abc import Iterator
from io import StringIO
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocrate.model.computerlanguage import ComputerLanguage
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from dvcfleet.disk import overlap
from dvcfleet.dvc_adapter.stages import is_metric
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.steps import Artifact, FetchedSource, Lineage, LineageStep, as_text, by_ledger, identifier
from dvcfleet.messages import Result
from dvcfleet.record.environments import environment_file
from dvcfleet.record.experiments import described_by
from dvcfleet.record.ledger import Execution
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.terminal.secrets import masked

_VERSION = "1.1"  # that the profiles below are of
_CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_DONE, _FAILED = "http://schema.org/CompletedActionStatus", "http://schema.org/FailedActionStatus"
_WORKFLOW = "dvc.yaml"
_FORMATS = {".yaml": "application/yaml", ".lock": "application/yaml", ".jsonl": "application/jsonl"}
_NO_LICENCE = "No licence is stated for it; each source has its own."


def to_crate(lineage: Lineage, root: Path) -> ROCrate:
    """Return a crate of the lineage of the repository at `root`."""
    return _Writer(lineage, root).crate


class _Writer:
    """Fills a crate; entities that several executions share are added once."""

    def __init__(self, lineage: Lineage, root: Path) -> None:
        self._lineage, self._root = lineage, root
        self.crate = ROCrate(version=_VERSION)
        self.crate.metadata.extra_contexts.append(_CONTEXT)
        repo = next(iter(lineage.stages.values())).repo
        self._held: dict[str, Any] = {}
        self._workflow = self._add_workflow()
        for name in (name for name in described_by(repo) if name not in self._held and not name.startswith("../")):
            about = {"name": name, "encodingFormat": _format(name)}
            self._held[name] = self.crate.add_file(self._text(name), name, properties=about)
        read = [item.path for step in lineage.steps.values() for item in step.inputs]
        metrics = {path_from_root(out) for stage in lineage.stages.values() for out in stage.outs if is_metric(out)}
        for item in (item for step in lineage.steps.values() for item in step.outputs):
            if item.path in metrics or not any(overlap(item.path, path) for path in read):
                self._hold(item)
        actions = [self._execution(stage, one) for stage, several in lineage.executions.items() for one in several]
        self.crate.root_dataset["mentions"] = [*self._runs(), *actions]
        self._describe()

    def _describe(self) -> None:
        ended = [one.ended for several in self._lineage.executions.values() for one in several]
        self.crate.name = "Results of a DVC repository, and how they came about"
        self.crate.description = f"The lineage of {len(self._lineage.steps)} stages, with their metrics and results"
        about = {"@type": "CreativeWork", "name": "licences", "description": _NO_LICENCE}
        self.crate.license = self._context("#licences", about)
        if ended:
            self.crate.datePublished = max(ended)
        self.crate.root_dataset["conformsTo"] = [
            self._context(uri, {"@type": "CreativeWork", "name": name, "version": version})
            for uri, (name, version) in PROFILES.items()
        ]

    def _add_workflow(self) -> Any:
        language = ComputerLanguage(
            self.crate,
            "https://dvc.org/doc/user-guide/project-structure/dvcyaml-files",
            properties={"name": "dvc.yaml", "url": {"@id": "https://dvc.org"}},
        )
        self.crate.add(language)
        about = {"name": _WORKFLOW, "description": "The stages of the pipeline", "encodingFormat": "application/yaml"}
        workflow = self.crate.add_workflow(self._text(_WORKFLOW), _WORKFLOW, properties=about, main=True, lang=language)
        self._held[_WORKFLOW] = workflow
        return workflow

    def _text(self, name: str) -> StringIO | Path:
        """Return the text of one of the repository's own files, with credentials masked; for another file its path."""
        try:
            return StringIO(masked((self._root / name).read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            return self._root / name

    def _hold(self, item: Artifact) -> None:
        """Add an existing output to the crate."""
        path = self._root / item.path
        if item.path in self._held or "://" in item.path or item.path.startswith("../"):
            return
        about = {"name": item.path, "identifier": _urn("file", item.content)}
        if path.is_dir():
            self._held[item.path] = self.crate.add_dataset(path, f"{item.path}/", properties=about)
        elif path.is_file():
            size = {"contentSize": str(item.size)} if item.size is not None else {}
            kind = {"encodingFormat": _format(item.path)}
            self._held[item.path] = self.crate.add_file(path, item.path, properties=about | size | kind)

    def _item(self, item: Artifact) -> Any:
        """Return the entity of a file or folder: the crate's own, or one named by its hash."""
        if item.path in self._held:
            return self._held[item.path]
        about = {"@type": "CreativeWork", "name": masked(item.path), "identifier": _urn("file", item.content)}
        if item.size is not None:
            about["contentSize"] = str(item.size)
        return self._context(_urn("file", item.content), about)

    def _origin(self, origin: FetchedSource) -> Any:
        about = {
            "@type": "CreativeWork",
            "name": masked(origin.name),
            "additionalType": origin.kind,
            "version": origin.revision,
        }
        return self._context(_urn("source", origin.content), about)

    def _execution(self, stage: str, one: Execution) -> Any:
        step = self._lineage.step_of(stage, one)
        about = {"@type": "SoftwareApplication", "name": stage, "description": step and step.description}
        instrument = self._context(f"#stage-{quote(stage)}", about)
        name = f"#execution-{quote(f'{one.run}-{stage}-{one.began}{by_ledger(one)}')}"
        return self._action(name, instrument, [one], stage, step)

    def _runs(self) -> Iterator[Any]:
        """Yield an action of the whole workflow for each run; one without times if the ledger has none."""
        runs: dict[str, list[Execution]] = {}
        for one in (one for several in self._lineage.executions.values() for one in several):
            runs.setdefault(f"{one.run}{by_ledger(one)}", []).append(one)
        for name, several in runs.items():
            yield self._action(f"#run-{quote(name)}", self._workflow, several, f"run {name}", None)
        if not runs:
            about = {"@type": "CreateAction", "name": "run", "instrument": self._workflow}
            yield self._context("#run", about | self._touched(list(self._lineage.steps.values())))

    def _action(
        self, name: str, instrument: Any, several: list[Execution], title: str, step: LineageStep | None
    ) -> Any:
        failed = [one for one in several if one.result == Result.FAILED]
        about: dict[str, Any] = {
            "@type": "CreateAction",
            "name": title,
            "instrument": instrument,
            "startTime": min(one.began for one in several),
            "endTime": max(one.ended for one in several).isoformat(),
            "actionStatus": _FAILED if failed else _DONE,
            "description": ", ".join(dict.fromkeys(one.result for one in several)),
        }
        if step:
            about["description"] += f": {masked('; '.join(step.commands))}"
        if failed:
            about["error"] = masked("; ".join(f"{one.stage}: {one.why or 'failed'}" for one in failed))
        if users := dict.fromkeys(one.user for one in several if one.user):
            about["agent"] = [
                self._context(f"#user-{quote(user)}", {"@type": "Person", "name": user}) for user in users
            ]
        if ledgers := dict.fromkeys(one.ledger for one in several if one.ledger):
            about["description"] += f"; told by {', '.join(ledgers)}, a ledger of others"
        steps = [step] if step else [] if instrument is not self._workflow else self._steps_of(several)
        touched = self._touched(steps)
        environments = [self._environment(digest) for digest in dict.fromkeys(one.environment for one in several)]
        touched["object"] = [*touched.get("object", ()), *filter(None, environments)]
        return self._context(name, about | {key: value for key, value in touched.items() if value})

    def _steps_of(self, several: list[Execution]) -> list[LineageStep]:
        """Return the known steps of these executions, one per stage."""
        steps = {
            stage: self._lineage.step_of(stage, one)
            for stage, known in self._lineage.executions.items()
            for one in known
            if one in several
        }
        return [step for step in steps.values() if step]

    def _touched(self, steps: list[LineageStep]) -> dict[str, list[Any]]:
        """Return the steps' inputs from outside, with their parameters, and their outputs."""
        made = {item.path for step in steps for item in step.outputs}
        read = [self._item(item) for step in steps for item in step.inputs if item.path not in made]
        read += [self._origin(origin) for step in steps for origin in step.origins]
        read += [
            self._param(file, key, as_text(value))
            for step in steps
            for file, values in step.params.items()
            for key, value in values.items()
        ]
        return {
            "object": list({entity.id: entity for entity in read}.values()),
            "result": [self._item(item) for step in steps for item in step.outputs],
        }

    def _param(self, file: str, key: str, value: str) -> Any:
        about = {"@type": "PropertyValue", "name": masked(key), "value": value, "description": file}
        return self._context(f"#param-{quote(masked(f'{file}-{key}-{value}'))[:200]}", about)

    def _environment(self, digest: str) -> Any:
        """Return the description of an environment, as a file of the crate; None if it is lost."""
        path = environment_file(self._root / STATE_FOLDER, digest)
        name = f"environments/{path.name}"
        if name not in self._held and path.is_file():
            about = {"name": "packages, machine and libraries", "encodingFormat": "application/json"}
            self._held[name] = self.crate.add_file(path, name, properties=about)
        return self._held.get(name)

    def _context(self, name: str, about: dict[str, Any]) -> Any:
        """Return the entity with a name; add it if necessary."""
        entity = self.crate.dereference(name)
        given = {key: _single(value) for key, value in about.items() if value is not None}
        return entity or self.crate.add(ContextEntity(self.crate, name, properties=given))


def _single(value: Any) -> Any:
    """Return the value of a list with one item, as RO-Crate writes it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _format(name: str) -> str:
    return _FORMATS.get(Path(name).suffix) or guess_type(name)[0] or "text/plain"


def _urn(kind: str, name: str) -> str:
    return f"urn:dvcfleet:{identifier(kind, name)}"
