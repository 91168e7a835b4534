"""A run of a comparison: its parameters, code, environment and outputs, read without a checkout.

A run is a name in `dvc exp show`, a git commit, a folder of a comparison such as a trial's, or the workspace.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.objects import is_torn
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import FailedError, some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.difference import leaves
from dvcfleet.record.environments import environment_file
from dvcfleet.record.ledger import Execution, executions
from dvcfleet.repository import STATE_FOLDER
from merganser.errors import InputError
from merganser.flows.evidence.kept_runs import own_experiments
from merganser.flows.repositories.identity import TRIALS
from merganser.limits import parse_yaml
from merganser.tasks.stages import METRICS

WORKSPACE = "workspace"
KEPT = ("params.yaml", "dvc.lock")  # what a folder or commit has of a run
_BUILDS = ("files", "records", "urls")  # of packages: `merganser lineage diff` tells builds of one version apart


class _Out(BaseModel):
    path: str
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}(\.dir)?$")] | None = None


class _Entry(BaseModel):
    params: dict[str, dict[str, Any]] = {}
    deps: list[_Out] = []
    outs: list[_Out] = []


class _Shape(BaseModel):
    """The parts of a run's params.yaml and dvc.lock that are used."""

    tasks: dict[str, Any] | None = None
    unseen: dict[str, Any] | None = None
    methods: dict[str, Any] | None = None
    stages: dict[str, _Entry] = {}


@dataclass(frozen=True)
class Run:
    """A run: its params.yaml, its dvc.lock entries by stage, and its commit.

    `folder`: that of its comparison or trial, None if the run is only in git; `state`: the folder with its ledger;
    `object_path`: returns the path of a content in DVC's cache, by its md5.
    """

    name: str
    params: Mapping[str, Any]
    stages: Mapping[str, Any]
    commit: str | None
    folder: Path | None
    state: Path
    object_path: Callable[[str], str]

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the values of params.yaml by dotted key, without the section of a trial."""
        return dict(leaves({key: each for key, each in self.params.items() if key != "trial"}))

    @cached_property
    def ledger(self) -> list[Execution]:
        """Return all lines of the ledger, including those of other runs."""
        return list(executions(self.state))

    @property
    def environment(self) -> dict[str, Any]:
        """Return the commit, and Python, packages and machine of the last stage that ran."""
        own = [line for line in self.ledger if self.folder or line.run == self.name]
        content = self.environment_of(own[-1].environment) if own else {}
        packages = content.pop("packages", {})
        return {"commit": self.commit} | {key: each for key, each in content.items() if key not in _BUILDS} | packages

    def environment_of(self, digest: str) -> dict[str, Any]:
        """Return the environment with this digest in the ledger; empty if it is lost."""
        return read_json(environment_file(self.state, digest)) or {}

    def cached(self, md5: str | None) -> Path | None:
        """Return the file of DVC's cache with this content; None if it is missing, FailedError if it is damaged."""
        path = Path(self.object_path(md5)) if md5 else None
        if not path or not path.is_file():
            return None
        if is_torn(path):
            raise FailedError(
                f"{path}: its bytes are not those that its name says; `merganser lineage verify` names what it is of, "
                "and after you remove it a run writes it again"
            )
        return path

    def in_data(self, name: str) -> Path | None:
        """Return the cached file that a stage wrote to this path in `data`; None if it is missing."""
        return self.cached(self._md5s.get((METRICS.parent / name).as_posix()))

    def listing(self, folder: Path) -> dict[str, str]:
        """Return the md5 of each file in a folder that a stage wrote; empty if DVC's cache lacks the list."""
        path = self.cached(self._md5s.get(folder.as_posix()))
        files = json.loads(path.read_text(encoding="utf-8")) if path else ()
        return {each["relpath"]: each["md5"] for each in files}

    @cached_property
    def _md5s(self) -> dict[str, str]:
        outs = (out for entry in self.stages.values() for out in entry.get("outs", ()))
        return {out["path"]: out["md5"] for out in outs if "md5" in out}


def read_run(repo: Repo, name: str, here: Path = Path()) -> Run:
    """Read a run of a repository; paths of folders are relative to `here`. Raises InputError for an unknown name."""
    root = Path(repo.root_dir)
    places = (root,) if name == WORKSPACE else (root / TRIALS / name, here.absolute() / name)
    folder = next((each for each in places if all((each / file).is_file() for file in KEPT)), None)
    if folder:
        texts = [(folder / file).read_text(encoding="utf-8") for file in KEPT]
        commit = git_if_any(folder, "rev-parse", "HEAD")
    else:
        saved = run_names(root)
        revision = saved.get(name, name)
        texts = [text for file in KEPT if (text := git_if_any(root, "show", f"{revision}:./{file}")) is not None]
        commit = git_if_any(root, "rev-parse", f"{revision}^" if name in saved else revision)
        if len(texts) < len(KEPT):
            raise InputError(_no_run(root, name, saved))
    contents = [parse_yaml(text, f"{name}: {file}") for file, text in zip(KEPT, texts, strict=True)]
    params, lock = (content if isinstance(content, dict) else {} for content in contents)
    try:
        _Shape.model_validate(params | lock)
    except ValidationError as error:
        wrong = some([".".join(map(str, each["loc"])) for each in error.errors()])
        raise FailedError(f"{name}: its params.yaml or dvc.lock is damaged, at {wrong}") from error
    state, object_path = (folder or root) / STATE_FOLDER, repo.cache.local.oid_to_path
    return Run(name, params, lock.get("stages", {}), commit and commit.strip(), folder, state, object_path)


def run_names(root: Path) -> dict[str, str]:
    """Return this comparison's runs in `dvc exp show`: git references by name, the newest first."""
    return {run.name: run.ref for run in reversed(own_experiments(root))}


def _no_run(root: Path, name: str, saved: Mapping[str, str]) -> str:
    there = ", ".join([WORKSPACE, *saved, *(each.name for each in (root / TRIALS).glob("*"))])
    return f"{name}: neither a run, a commit nor a comparison's folder with a dvc.lock; runs: {there}"
