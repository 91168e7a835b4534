"""Compare stages' recorded inputs with the present ones: code and sources by content, data by its writer's record."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator

from dvcfleet.dvc_adapter.listings import is_near_output
from dvcfleet.dvc_adapter.protocols import Dependency, Repo
from dvcfleet.errors import some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.contents import Contents, path_from_root
from dvcfleet.lineage.findings import Finding, FindingKind
from dvcfleet.lineage.steps import Artifact, Lineage
from dvcfleet.paths import overlap

_KINDS = {"code": FindingKind.CODE, "source": FindingKind.SOURCE}


def check_inputs(repo: Repo, lineage: Lineage, contents: Contents, found: Collection[str]) -> Iterator[Finding]:
    """Find inputs that differ from what a stage read, unless `found` already names the cause."""
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
        if contents.digest(dep.fs_path) == value or any(overlap(name, other) for other in {*found, *unknown}):
            continue
        if not os.path.lexists(dep.fs_path):
            yield Finding(FindingKind.MISSING, name, f"{some(stages)} read it", tuple(stages))
        elif item.kind == "data":
            strangers = _unknown_files(repo, dep.fs_path, contents)
            unknown.update(strangers)
            unknown_file = f"no stage makes it, and {some(stages)} read its folder; remove it"
            yield from (Finding(FindingKind.UNKNOWN, path, unknown_file, tuple(stages)) for path in strangers)
            if not strangers:
                message = f"{some(stages)} read what was there before; the next run brings them up to date"
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
    """Return the files at or in a path that differ from a commit, according to git."""
    changed = git_if_any(root, "diff", "--name-only", commit or "HEAD", "--", path)
    new = git_if_any(root, "ls-files", "--others", "--exclude-standard", "--", path)
    return [name for names in (changed, new) for name in (names or "").splitlines()]
