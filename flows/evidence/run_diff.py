"""Two runs side by side: parameters, code, environment, and scores with paired tests on the same examples.

A run is a name that `dvc exp show` lists, a git commit, a folder of a comparison such as a trial's, or the workspace.
All is read from its params.yaml and dvc.lock and from DVC's cache: nothing is checked out, and nothing runs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json
from dvcfleet.git import git_if_any
from dvcfleet.record.environments import environment_file
from dvcfleet.record.ledger import Execution, executions
from dvcfleet.repository import STATE_FOLDER, opened
from merganser.errors import InputError
from merganser.flows.evidence.kept_runs import own_experiments
from merganser.flows.repositories.trials import TRIALS
from merganser.limits import parse_yaml
from merganser.outputs import write_whole
from merganser.report import formats
from merganser.report.paired import Files, Line, Measured, compare_runs
from merganser.report.templates import open_templates
from merganser.tasks.stages import CODE, EXAMPLES, METRICS, UNSEEN

WORKSPACE = "workspace"


@dataclass(frozen=True)
class Run:
    """A run: its choices, the md5 of each file that it wrote by path, and of which git commit and environment it is."""

    name: str
    params: Mapping[str, Any]
    files: Mapping[str, str]
    commit: str | None
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs; of parameters, code and packages each name with both sides, None for none."""

    first: str
    second: str
    parameters: dict[str, tuple[Any, Any]]
    code: list[str]
    environment: dict[str, tuple[Any, Any]]
    scores: list[Line]
    only: dict[str, list[str]] = field(default_factory=dict)  # entries that one run alone has, by its name


def diff_runs(root: Path, first: str, second: str) -> RunDiff:
    """Compare two runs; raise InputError for a name of no run."""
    with opened(root) as repo:
        runs = [read_run(root, name) for name in (first, second)]
        objects = {md5: Path(repo.cache.local.oid_to_path(md5)) for run in runs for md5 in run.files.values()}
    entries = [list(run.params.get("methods", {})) for run in runs]
    code = [_listed(run, objects) for run in runs]
    return RunDiff(
        runs[0].name,
        runs[1].name,
        _differing(*(dict(_flat(run.params)) for run in runs)),
        sorted(_differing(*code)),
        _differing(
            {"commit": runs[0].commit, **runs[0].environment}, {"commit": runs[1].commit, **runs[1].environment}
        ),
        compare_scores(runs[0], runs[1], objects),
        {
            run.name: only
            for run, own, other in zip(runs, entries, entries[::-1], strict=True)
            if (only := [name for name in own if name not in other])
        },
    )


@dataclass(frozen=True)
class KeptRun:
    """What is kept of a run: its params.yaml and dvc.lock, its commit, and its lines of the ledger in `state`."""

    params: Mapping[str, Any]
    lock: Mapping[str, Any]
    commit: str | None
    state: Path
    lines: list[Execution]


def kept_run(root: Path, name: str) -> KeptRun:
    """Find what is kept of a run; raise InputError with what there is, for a name of none."""
    folder = next((each for each in (root / TRIALS / name, Path(name)) if (each / "dvc.lock").is_file()), None)
    folder = root if name == WORKSPACE else folder
    if folder:
        texts = [(folder / file).read_text(encoding="utf-8") for file in ("params.yaml", "dvc.lock")]
        commit, state = git_if_any(folder, "rev-parse", "HEAD"), folder / STATE_FOLDER
        lines = list(executions(state))
    else:
        names = run_names(root)
        revision = names.get(name, name)
        shown = [git_if_any(root, "show", f"{revision}:./{file}") for file in ("params.yaml", "dvc.lock")]
        if None in shown:
            there = ", ".join([WORKSPACE, *names, *(each.name for each in (root / TRIALS).glob("*"))])
            raise InputError(
                f"{name}: neither a run, a commit nor a comparison's folder with a dvc.lock; runs: {there}"
            )
        texts = [text for text in shown if text is not None]
        commit, state = git_if_any(root, "rev-parse", f"{revision}{'^' if name in names else ''}"), root / STATE_FOLDER
        lines = [line for line in executions(state) if line.run == name]
    params, lock = (parse_yaml(text, name) or {} for text in texts)
    return KeptRun(params, lock, commit and commit.strip(), state, lines)


def read_run(root: Path, name: str) -> Run:
    """Read a run of a repository; raise InputError with what there is, for a name of none."""
    kept = kept_run(root, name)
    outs = [out for entry in kept.lock.get("stages", {}).values() for out in entry.get("outs", []) if "md5" in out]
    described = environment_file(kept.state, kept.lines[-1].environment) if kept.lines else None
    environment = (read_json(described) if described else None) or {}
    packages = environment.pop("packages", {})
    for key in ("files", "records", "urls"):  # by their versions: `merganser lineage diff` tells builds apart
        environment.pop(key, None)
    files = {out["path"]: out["md5"] for out in outs}
    return Run(name, kept.params, files, kept.commit, environment | packages)


def run_names(root: Path) -> dict[str, str]:
    """Return the git reference of each run of this comparison that `dvc exp show` lists, by name, the newest first."""
    newest_first = sorted(own_experiments(root), key=lambda run: run.saved, reverse=True)
    return {run.name: run.ref for run in newest_first}


def _listed(run: Run, objects: Mapping[str, Path]) -> dict[str, str]:
    """Return the digests of the code that a run's stages had, by their file."""
    md5 = run.files.get(str(CODE))
    path = objects[md5] if md5 else None
    return {each["relpath"]: each["md5"] for each in json.loads(path.read_text())} if path and path.is_file() else {}


def compare_scores(first: Run, second: Run, objects: Mapping[str, Path]) -> list[Line]:
    """Compare the entries that both have, on the tasks that both have, with a model and without."""
    entries, tasks, unseen = (
        [name for name in first.params.get(key) or () if name in (second.params.get(key) or ())]
        for key in ("methods", "tasks", "unseen")
    )
    held_out = partial(files_of, objects=objects, metrics=UNSEEN, examples=UNSEEN)
    measured = [
        Measured(tasks, files_of(first, objects), files_of(second, objects)),
        Measured(unseen, held_out(first), held_out(second), unseen=True),
    ]
    return compare_runs(entries, measured)


def files_of(run: Run, objects: Mapping[str, Path], metrics: Path = METRICS, examples: Path = EXAMPLES) -> Files:
    """Say where DVC's cache has a run's scores and results."""

    def find(folder: Path, suffix: str, entry: str, task: str) -> Path | None:
        found = objects.get(run.files.get((folder / entry / f"{task}{suffix}").as_posix(), ""))
        return found if found and found.is_file() else None

    return Files(partial(find, metrics, ".json"), partial(find, examples, ".safetensors"))


def _flat(content: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, Mapping) and content and place != "trial":
        for key, value in content.items():
            yield from _flat(value, f"{place}.{key}".lstrip("."))
    elif place != "trial":
        yield place, content


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (first.get(name), second.get(name))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    }


def diff_lines(found: RunDiff) -> Iterator[str]:
    """Say in the terminal what differs."""
    yield f"{found.first} -> {found.second}"
    for title, changes in (("parameters", found.parameters), ("commit, environment", found.environment)):
        yield f"{title}: {'' if changes else 'the same'}".rstrip()
        yield from (f"  {name}: {_said(a)} -> {_said(b)}" for name, (a, b) in changes.items())
    yield f"code: {', '.join(found.code) or 'the same'}"
    for run, names in found.only.items():
        yield f"only in {run}: {', '.join(names)}"
    yield "scores, times 100; p of paired tests on the same examples, two-sided, Holm's correction over all lines:"
    width = max((len(line.entry) + len(line.column) for line in found.scores), default=0) + 1
    for line in found.scores:
        p = "other examples" if line.p is None else f"p {formats.p_value(line.p)}"
        name = f"{line.entry}/{line.column}"
        values = f"{100 * line.first:6.2f} -> {100 * line.second:6.2f}  {formats.signed(line.difference):>7}"
        yield f"  {name:{width}}  {values}  {p}"


def _said(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def write_page(found: RunDiff, out: Path) -> None:
    """Write the page of two runs: one HTML file that loads nothing."""
    environment = open_templates("merganser.report")
    environment.filters |= {
        "said": _said,
        "signed": formats.signed,
        "p_value": formats.p_value,
        "percent": formats.percent,
    }
    write_whole(out, environment.get_template("run_diff.html.j2").render(found=found))
