"""Look up the lineage of a target, and audit it: compare it with the record."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.run_cache import edited_entries, entry_files, read_entries
from dvcfleet.errors import UserError, some
from dvcfleet.lineage.contents import Contents
from dvcfleet.lineage.hidden import check_bytecode, check_strangers
from dvcfleet.lineage.hooks import find_target, hooks_of
from dvcfleet.lineage.rerun import Rerun, run_again
from dvcfleet.lineage.steps import Finding, FindingKind, Lineage, Target, check_witnesses, without_line
from dvcfleet.lineage.tree import read_lineage
from dvcfleet.lineage.verify import verify
from dvcfleet.planning.orphans import Orphan, find_orphans
from dvcfleet.record.chain import Anchor, Chain, check_chains
from dvcfleet.record.environments import changes_file, damaged_environments, environment_file, is_intact
from dvcfleet.record.ledger import entry_digest, made_entries
from dvcfleet.repository import audit_lock, opened, refuse_unfinished, state_folder

# With one of these findings, a stage would not do what was recorded.
_OTHERWISE = (FindingKind.CODE, FindingKind.SOURCE, FindingKind.PARAMS, FindingKind.STAGE, FindingKind.NEVER_RAN)


@dataclass(frozen=True)
class Audit:
    """An audit's findings and extent; `run_again` says whether the stages ran again. Its keys are stable as JSON."""

    findings: tuple[Finding, ...]
    stages: int
    files: int
    size: int
    seconds: float
    run_again: bool
    also: tuple[str, ...] = ()  # what else was compared, in words


def look_up(repo: Path, text: str) -> tuple[Target, Lineage]:
    """Return the target that `text` names, and its lineage; raise UserError if it names nothing that ran."""
    folder = repo.absolute()
    with opened(repo) as dvc_repo:
        target = find_target(dvc_repo, text, folder)
        lineage = read_lineage(dvc_repo, target.stages)
    missing = [stage for stage in target.stages if stage in lineage.never_ran]
    if missing:
        raise UserError(f"{text}: {missing[0]} has not run yet; run it first")
    return target, lineage


def audit(
    repo: Path,
    text: str | None = None,
    again: Rerun | None = None,
    left_out: Callable[[Lineage, str], bool] | None = None,
    anchor: Anchor | None = None,
) -> Audit:
    """Compare everything, or one target's lineage, with the record; `again`: how stages also run again.

    `left_out`: for a repository from somebody else: tells whether a missing file is meant to be missing, as in an
    archive without data. Nothing outside such a repository is read. `anchor`: the ledger's head at an earlier time.
    Raises UserError while a run is active, or if a run was killed and has not been continued.
    """
    started, folder = time.monotonic(), repo.absolute()
    with opened(repo) as dvc_repo, audit_lock(dvc_repo):
        refuse_unfinished(dvc_repo)
        names = find_target(dvc_repo, text, folder).stages if text else ()
        state, project = state_folder(dvc_repo), hooks_of(Path(dvc_repo.root_dir))
        damaged = damaged_environments(state)  # before reading the lineage writes that of this process anew
        lineage = read_lineage(dvc_repo, names)
        contents, made = Contents(dvc_repo, inside=left_out is not None), made_entries(state)
        kept = [] if text else list(read_entries(entry_files(dvc_repo)))
        findings = [
            difference
            for difference in verify(dvc_repo, lineage, contents)
            if not (difference.kind is FindingKind.MISSING and left_out and left_out(lineage, difference.name))
        ]
        if left_out is None:  # reading somebody else's compiled code can crash Python
            findings += check_bytecode(Path(dvc_repo.root_dir), lineage)
        findings += _lost_environments(state, lineage, damaged)
        findings += _lost_changes(state, lineage)
        chains = check_chains(state, anchor)
        findings += _broken_chains(chains)
        if not text:
            orphans = list(find_orphans(dvc_repo))
            findings += _beside_stages(dvc_repo, kept, orphans)
            outs = (os.path.relpath(out, dvc_repo.root_dir) for orphan in orphans for out in orphan.outs)
            known = [*(finding.name for finding in findings), *outs]
            findings += check_strangers(dvc_repo, lineage, project.written_by_stages(), known)
        findings += check_witnesses(dvc_repo, lineage, made, {stage for each in findings for stage in each.stages})
        findings += project.audit(lineage, findings)
        also = (
            *_lines_counted(chains),
            *([f"line {anchor.count} as anchored"] if anchor else ()),
            *_counted(len(without_line(lineage)), "stage", of=" without a line, as `dvc repro` runs them"),
            *_counted(len(lineage.environments), "environment"),
            *_entries_counted(kept, made),
            *project.audited(lineage),
        )
        runs = again is not None and not any(finding.kind in _OTHERWISE for finding in findings)
        if again and runs:
            findings += run_again(dvc_repo, lineage, names, again)
    seconds = round(time.monotonic() - started, 3)
    return Audit(tuple(findings), len(lineage.steps), contents.files, contents.size, seconds, runs, also)


def _broken_chains(chains: Mapping[Path, Chain]) -> Iterator[Finding]:
    cure = "it is not the record that runs kept; if you know why, move it away, and .dvcfleet/synced with it"
    for path, chain in chains.items():
        for fault in chain.faults:
            yield Finding(FindingKind.RECORD, os.path.relpath(path), f"{fault}; {cure}")


def _beside_stages(
    repo: Repo, kept: Iterable[tuple[Path, dict[str, Any]]], orphans: Iterable[Orphan]
) -> Iterator[Finding]:
    """Find edited run-cache entries, and dvc.lock entries of stages that no longer exist."""
    for path in edited_entries(repo, kept):
        yield Finding(FindingKind.CACHE, os.path.relpath(path), "not the entry that its name says; remove it")
    for orphan in orphans:
        message = f"dvc.lock has it, dvc.yaml does not; {'the next run' if orphan.by_run else 'run --prune'} removes it"
        yield Finding(FindingKind.UNDECLARED, orphan.name, message)


def _lines_counted(chains: Mapping[Path, Chain]) -> Iterator[str]:
    older = sum(chain.older for chain in chains.values())
    of = " of the ledger" + f" ({older} without a chain)" * bool(older)
    yield from _counted(sum(chain.lines for chain in chains.values()), "line", of=of)
    yield from _counted(sum(chain.elsewhere for chain in chains.values()), "experiment", of=" without a ledger here")


def _entries_counted(kept: Collection[tuple[Path, dict[str, Any]]], made: Collection[str]) -> Iterator[str]:
    """Return how many entries the run cache has, and how many of them are in no ledger."""
    unmade = sum(entry_digest(entry) not in made for _, entry in kept)
    of = " of the run cache" + f" ({unmade} made by no run in a ledger)" * bool(unmade)
    return _counted(len(kept), "entry", "entries", of)


def _counted(count: int, one: str, many: str = "", of: str = "") -> Iterator[str]:
    if count:
        yield f"{count} {one if count == 1 else many or one + 's'}{of}"


def _lost_environments(folder: Path, lineage: Lineage, damaged: Collection[Path]) -> Iterator[Finding]:
    """Find descriptions of environments that are lost, or that differ from the digest in their names."""
    stages: dict[str, list[str]] = {path.stem: [] for path in damaged}
    for step in lineage.steps.values():
        digest = step.execution.environment if step.execution else None
        if digest and (digest in stages or digest not in lineage.environments):
            stages.setdefault(digest, []).append(step.stage)
    for digest, names in stages.items():
        path = environment_file(folder, digest)
        if digest in lineage.environments:
            message = "did not match its name; it is this process's, and was rewritten"
        elif path.exists():
            ran = some(names) if names else "stages"
            message = f"damaged: the environment in which {ran} ran is not known any more; remove it"
        else:
            message = f"lost: the environment in which {some(names)} ran is not known any more; run again with --force"
        yield Finding(FindingKind.CHANGED, os.path.relpath(path), message, tuple(names))


def _lost_changes(folder: Path, lineage: Lineage) -> Iterator[Finding]:
    """Find patches of uncommitted changes that are lost, or that differ from the digest in their names."""
    stages: dict[str, list[str]] = {}
    for step in lineage.steps.values():
        if step.execution and step.execution.changes:
            stages.setdefault(step.execution.changes, []).append(step.stage)
    for digest, names in stages.items():
        path = changes_file(folder, digest)
        if not is_intact(path):
            message = (
                f"{'damaged' if path.exists() else 'lost'}: how the code of {some(names)} differed from its commit"
            )
            yield Finding(FindingKind.CHANGED, os.path.relpath(path), f"{message} is not known any more", tuple(names))
