"""Find files that no stage wrote: those that DVC's ignore rules hide, and those in folders that stages alone write."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from dvcfleet.dvc_adapter.ignore_rules import hidden_files, rules_at
from dvcfleet.dvc_adapter.listings import is_near_output
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import some
from dvcfleet.lineage.contents import Contents, is_checked
from dvcfleet.lineage.findings import Finding, FindingKind
from dvcfleet.lineage.steps import Lineage
from dvcfleet.paths import overlap


def check_hidden(repo: Repo, lineage: Lineage, contents: Contents) -> Iterator[Finding]:
    """Find files in folders that stages read or wrote, which only a rule newer than these stages hides from DVC."""
    concerned: dict[str, list[str]] = defaultdict(list)
    for name in lineage.steps:
        for item in filter(is_checked, (*lineage.stages[name].outs, *lineage.stages[name].deps)):
            if os.path.isdir(item.fs_path):
                concerned[item.fs_path].append(name)
    is_ignored, seen = _rules(repo, lineage), set[str]()
    for folder, stages in concerned.items():
        for path in sorted(hidden_files(folder, contents.within(folder))):
            if path not in seen and not is_ignored(path) and not _leads_to_own_folder(repo, path):
                seen.add(path)
                message = f"{some(stages)} did not have it, and a rule of .dvcignore hides it from DVC; remove it"
                yield Finding(FindingKind.UNKNOWN, os.path.relpath(path, repo.root_dir), message, tuple(stages))


def _leads_to_own_folder(repo: Repo, path: str) -> bool:
    """Tell whether a path, which is no output, is a link to a folder of the repository, which DVC never follows."""
    root, target = os.path.realpath(repo.root_dir), os.path.realpath(path)
    is_link = os.path.islink(path) and os.path.isdir(path) and target.startswith(f"{root}{os.sep}")
    return is_link and not is_near_output(repo, path) and not is_near_output(repo, target)


def check_strangers(repo: Repo, lineage: Lineage, files: Iterable[Path], known: Collection[str]) -> Iterator[Finding]:
    """Find files, or folders with nothing else, that are no stage's outputs, where these alone are to be.

    `known`: outputs and files of which other findings tell.
    """
    is_ignored, seen = _rules(repo, lineage), set[str]()
    for path in files:
        full = os.path.join(repo.root_dir, path)
        if is_near_output(repo, full) or is_ignored(full):
            continue
        name = str(_highest(repo, path))
        if name not in seen and not any(overlap(name, each) for each in known):
            seen.add(name)
            yield Finding(FindingKind.UNKNOWN, name, "no stage makes it; remove it, or move it elsewhere")


def _highest(repo: Repo, path: Path) -> Path:
    """Return the highest folder around a path that has no stage's output, else the path."""
    folders = path.parents[:-1]  # but for the root
    above = [folder for folder in folders if not is_near_output(repo, os.path.join(repo.root_dir, folder))]
    return above[-1] if above else path


def _rules(repo: Repo, lineage: Lineage) -> Callable[[str], bool]:
    """Return what tells of a file whether the rules of a commit by which a stage ran ignore it."""
    commits = dict.fromkeys(step.execution.commit if step.execution else None for step in lineage.steps.values())
    rules: list[Callable[[str], bool]] = []

    def is_ignored(path: str) -> bool:
        if not rules:
            rules.extend(rules_at(repo, commit) for commit in commits)
        return any(ignores(path) for ignores in rules)

    return is_ignored
