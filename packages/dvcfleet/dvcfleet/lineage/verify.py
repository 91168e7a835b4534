"""Compare a repository's files with DVC's record: outputs, inputs, parameters and stages.

Inputs are compared with those that stages read: code and sources by content, data by its writer's record.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from dvcfleet.disk import overlap
from dvcfleet.dvc_adapter.lock_entries import read_again
from dvcfleet.dvc_adapter.lockfiles import lock_file_of
from dvcfleet.dvc_adapter.objects import cached_listing, is_near_output, output_cache
from dvcfleet.dvc_adapter.protocols import Dependency, Output, ParamsDependency, Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_params, varying
from dvcfleet.errors import some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.contents import Contents, digest_of, path_from_root
from dvcfleet.lineage.hidden import check_hidden
from dvcfleet.lineage.steps import Artifact, Finding, FindingKind, Lineage, LineageStep
from dvcfleet.planning.reasons import dependency_reasons

_KINDS = {"code": FindingKind.CODE, "source": FindingKind.SOURCE}


def check_inputs(repo: Repo, lineage: Lineage, contents: Contents, named: Collection[str]) -> Iterator[Finding]:
    """Find inputs that differ from those that a stage read, unless `named` already has the cause."""
    readers: dict[tuple[str, str], list[str]] = defaultdict(list)
    inputs: dict[tuple[str, str], tuple[Dependency, Artifact]] = {}
    for step in lineage.steps.values():
        items = {item.path: item for item in step.inputs}
        for dep in filter(contents.checks, lineage.stages[step.stage].deps):
            name = path_from_root(dep)
            if name in items:
                readers[name, dep.hash_info.value].append(step.stage)
                inputs[name, dep.hash_info.value] = (dep, items[name])
    unknown: set[str] = set()
    for (name, value), stages in readers.items():
        dep, item = inputs[name, value]
        if contents.digest(dep.fs_path) == value or any(overlap(name, other) for other in {*named, *unknown}):
            continue
        if not os.path.lexists(dep.fs_path):
            yield Finding(FindingKind.MISSING, name, f"{some(stages)} read it", tuple(stages))
        elif item.kind == "data":
            strangers = _unknown_files(repo, dep.fs_path, contents)
            unknown.update(strangers)
            unknown_file = f"no stage makes it, and {some(stages)} read its folder; remove it"
            yield from (Finding(FindingKind.UNKNOWN, path, unknown_file, tuple(stages)) for path in strangers)
            if not strangers:
                message = f"{some(stages)} read the previous version; the next run brings them up to date"
                yield Finding(FindingKind.OUTDATED, name, message, tuple(stages))
        else:
            yield _edited(repo, lineage, name, item, stages)


def _unknown_files(repo: Repo, folder: str, contents: Contents) -> list[str]:
    """Return the files of a folder that no stage wrote, without the .gitignore files that DVC writes."""
    files = [path for path in contents.within(folder) if os.path.basename(path) != ".gitignore"]
    lone = [path for path in files if not is_near_output(repo, path)]
    return [os.path.relpath(path, repo.root_dir) for path in lone]


def _edited(repo: Repo, lineage: Lineage, name: str, item: Artifact, stages: list[str]) -> Finding:
    execution = lineage.steps[stages[0]].execution
    files = _files_edited(repo.root_dir, name, execution.commit if execution else None)
    inside = f" ({some(files)})" if files and files != [name] else ""
    return Finding(_KINDS[item.kind], name, f"changed{inside} since {some(stages)} ran", tuple(stages))


def _files_edited(root: str, path: str, commit: str | None) -> list[str]:
    """Return files at or in a path that differ from a commit, by git."""
    changed = git_if_any(root, "diff", "--name-only", commit or "HEAD", "--", path)
    new = git_if_any(root, "ls-files", "--others", "--exclude-standard", "--", path)
    return [name for names in (changed, new) for name in (names or "").splitlines()]


def verify(repo: Repo, lineage: Lineage, contents: Contents) -> list[Finding]:
    """Return differences from a lineage's recorded steps; every byte of their inputs and outputs is read again."""
    stages = [lineage.stages[name] for name in lineage.steps]
    contents.read(_all_files(stages, contents))
    findings = [finding for stage in stages for out in stage.outs for finding in _check_output(stage, out, contents)]
    findings += _check_folders(lineage)
    findings += _check_origins(repo, lineage, {finding.name for finding in findings})
    findings += check_inputs(repo, lineage, contents, [finding.name for finding in findings])
    findings += check_hidden(repo, lineage, contents)
    findings += _check_sizes(repo, lineage, contents)
    findings += _check_params(stages)
    findings += [fault for step in lineage.steps.values() for fault in _check_stage(step, lineage.stages[step.stage])]
    findings += [Finding(FindingKind.NEVER_RAN, name, "the next run runs it", (name,)) for name in lineage.never_ran]
    return findings


def _all_files(stages: Sequence[Stage], contents: Contents) -> Iterator[str]:
    """List every file that the stages read or wrote, and its copies in DVC's cache."""
    for stage in stages:
        for item in filter(contents.checks, (*stage.outs, *stage.deps)):
            yield from contents.within(item.fs_path)
        for out in filter(contents.checks, stage.outs):
            for md5 in (_recorded_files(out) or {}).values():
                yield output_cache(out).oid_to_path(md5)


def _recorded_files(out: Output) -> dict[str, str] | None:
    """Return the recorded md5 of each file of an output by relative path; None if a folder's list is lost."""
    return cached_listing(out) if out.hash_info.isdir else {"": out.hash_info.value}


def _check_output(stage: Stage, out: Output, contents: Contents) -> Iterator[Finding]:
    if not contents.checks(out):
        return
    name, wrote = path_from_root(out), f"{stage.addressing} wrote"
    recorded = _recorded_files(out)
    if not os.path.lexists(out.fs_path):
        yield Finding(FindingKind.MISSING, name, f"{wrote} it; `dvc pull` or the next run brings it back", _only(stage))
    elif os.path.isdir(out.fs_path) != out.hash_info.isdir:
        yield Finding(
            FindingKind.CHANGED, name, f"{wrote} {'a folder' if out.hash_info.isdir else 'a file'}", _only(stage)
        )
    elif recorded is None:
        yield from _check_unlisted(stage, out, contents)
    else:
        now = contents.listing(out.fs_path) if out.hash_info.isdir else {"": contents.hash_of(out.fs_path)}
        for file, md5 in recorded.items():
            yield from _check_file(stage, out, os.path.join(name, file) if file else name, md5, now.get(file), contents)
        for file in sorted(now.keys() - recorded.keys()):
            message = f"none of the files that {wrote}; remove it"
            yield Finding(FindingKind.UNKNOWN, os.path.join(name, file), message, _only(stage))


def _check_unlisted(stage: Stage, out: Output, contents: Contents) -> Iterator[Finding]:
    """Check a folder as a whole if its list in DVC's cache is missing or damaged."""
    path = output_cache(out).oid_to_path(out.hash_info.value)
    if os.path.exists(path):
        message = f"the listing of {path_from_root(out)} in DVC's cache has changed; remove it"
        yield Finding(FindingKind.CACHE, os.path.relpath(path), message, _only(stage))
    if contents.digest(out.fs_path) != out.hash_info.value:
        message = (
            f"changed since {stage.addressing} wrote it; DVC's cache has no list of its files to name the changed ones"
        )
        yield Finding(FindingKind.CHANGED, path_from_root(out), message, _only(stage))


def _check_file(
    stage: Stage, out: Output, name: str, md5: str, now: str | None, contents: Contents
) -> Iterator[Finding]:
    path, wrote = output_cache(out).oid_to_path(md5), f"{stage.addressing} wrote"
    copy, kept = os.path.relpath(path), contents.hash_of(path)
    link = _foreign_link(out, name, path)
    if now != md5:
        cure = f"remove it, and `dvc checkout {path_from_root(out)}` restores it from DVC's cache"
        if kept is None:
            cure = "DVC's cache has no copy; remove it, and `dvc pull` or the next run brings it back"
        elif kept != md5:
            cure = f"so is the copy in DVC's cache; remove it and {copy}, and the next run makes it again"
        kind = FindingKind.CHANGED if now else FindingKind.MISSING
        what = f"{wrote} md5 {md5}, it is {now} now" if now else f"{wrote} md5 {md5}"
        yield Finding(kind, name, f"{what}; {cure}", _only(stage))
    elif kept not in (None, md5):
        yield Finding(FindingKind.CACHE, copy, f"this copy of {name} has changed; remove it", _only(stage))
    elif link:
        message = (
            f"a link to {link} instead of the file that {wrote}; remove it, and `dvc checkout {path_from_root(out)}`"
        )
        yield Finding(FindingKind.CHANGED, name, message, _only(stage))


def _check_folders(lineage: Lineage) -> Iterator[Finding]:
    """Find links that replace stages' output folders; a run never leaves one, plain DVC may."""
    for stage in (lineage.stages[step.stage] for step in lineage.steps.values() if step.execution):
        for out in stage.outs:
            if out.use_cache and out.hash_info.isdir and os.path.islink(out.fs_path) and os.path.isdir(out.fs_path):
                where = f"a link to {os.readlink(out.fs_path)} instead of the folder that {stage.addressing} wrote"
                message = f"{where}; remove it, and `dvc checkout {path_from_root(out)}`"
                yield Finding(FindingKind.CHANGED, path_from_root(out), message, _only(stage))


def _foreign_link(out: Output, name: str, copy: str) -> str | None:
    """Return a link's target for an output's file; None if it is no link, or DVC's to its cache.

    DVC replaces links that a stage writes, except uncached ones and links to folders.
    """
    path = os.path.join(out.repo.root_dir, name)
    is_foreign = out.use_cache and os.path.islink(path) and os.path.realpath(path) != os.path.realpath(copy)
    return os.readlink(path) if is_foreign else None


def _check_origins(repo: Repo, lineage: Lineage, named: set[str]) -> Iterator[Finding]:
    """Compare fetched files with the checksums recorded when they were fetched."""
    for step in lineage.steps.values():
        for origin in step.origins:
            for file, noted in origin.files.items():
                name = os.path.join(origin.path, file)
                path = Path(repo.root_dir, name)
                if name not in named and path.is_file() and digest_of(path, "sha256") != noted["sha256"]:
                    yield Finding(
                        FindingKind.CHANGED, name, "has another sha256 than when it was fetched", (step.stage,)
                    )


def _check_sizes(repo: Repo, lineage: Lineage, contents: Contents) -> Iterator[Finding]:
    """Compare the sizes in DVC's record with those of files and folders with the recorded content."""
    measured = cache(lambda path: (contents.digest(path), contents.size_of(path), len(contents.within(path))))
    for stage in (lineage.stages[name] for name in lineage.steps):
        record = os.path.relpath(lock_file_of(stage) if in_dvc_yaml(stage) else stage.path, repo.root_dir)
        for item in filter(contents.checks, (*stage.outs, *stage.deps)):
            if not os.path.exists(item.fs_path) or measured(item.fs_path)[0] != item.hash_info.value:
                continue
            _, size, count = measured(item.fs_path)
            for what, noted, now in (("size", item.meta.size, size), ("nfiles", item.meta.nfiles, count)):
                if noted not in (None, now):
                    mistake = f"{what} of {path_from_root(item)} is {now}, not {noted}"
                    message = f"{mistake}: `dvc commit {stage.addressing}` writes it"
                    yield Finding(FindingKind.RECORD, record, message, _only(stage))


def _check_params(stages: Iterable[Stage]) -> Iterator[Finding]:
    concerned: dict[tuple[str, str], list[str]] = defaultdict(list)
    for stage in stages:
        for dep in stage.deps:
            if is_params(dep):
                for reason in () if _is_as_yaml_reads(dep) else dependency_reasons(dep):
                    concerned[path_from_root(dep), reason.removeprefix("params ")].append(stage.addressing)
    for (file, reason), names in concerned.items():
        yield Finding(FindingKind.PARAMS, file, f"{reason} since {some(names)} ran", tuple(names))


def _is_as_yaml_reads(dep: ParamsDependency) -> bool:
    """Tell whether DVC's record differs from the parameters only in what YAML does not preserve, such as U+0085."""
    return bool(dep.hash_info) and dep.hash_info.value == read_again(dep.read_params())


def _check_stage(step: LineageStep, stage: Stage) -> Iterator[Finding]:
    """Compare a stage in dvc.yaml with the one that ran."""
    if in_dvc_yaml(stage) and stage.cmd_changed:
        yield Finding(
            FindingKind.STAGE, step.stage, "dvc.yaml gives it another command than the one that ran", _only(stage)
        )
    last = step.renamed or step.execution
    if last and last.varies not in (None, varying(stage)):
        message = "dvc.yaml marks other outputs as varying than when it ran: take it back, or run it again with --force"
        yield Finding(FindingKind.STAGE, step.stage, message, _only(stage))
    declared = {path_from_root(item) for item in (*stage.deps, *stage.outs) if item.protocol == "local"} - set(
        step.params
    )
    recorded = {item.path for item in (*step.inputs, *step.outputs) if "://" not in item.path}
    if declared != recorded:
        names = some(sorted(declared ^ recorded))
        yield Finding(
            FindingKind.STAGE, step.stage, f"dvc.yaml gives it other inputs or outputs: {names}", _only(stage)
        )


def _only(stage: Stage) -> tuple[str, ...]:
    return (stage.addressing,)
