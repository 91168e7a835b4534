"""Hooks by which a repository's project extends its lineage, and lineage targets: stages, files, or project names."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dvcfleet.disk import from_root, is_at_or_in, overlap
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.stages import called_from_here
from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.steps import FetchedSource, Finding, Lineage, Target, TrackingRun
from dvcfleet.project import project_of


class LineageHooks:
    """A project's hooks in lineage; the defaults do nothing, and a project's class overrides some.

    All are called in the repository's root folder, with the repository opened.
    """

    @property
    def elsewhere(self) -> Sequence[str]:
        """Return the variables that make stages write to services outside the repository; a rerun unsets them."""
        return ()

    def find(self, repo: Repo, text: str) -> Target | None:
        """Resolve a name that only the project knows; raise UserError for a near match."""
        return None

    def names(self) -> Iterable[str]:
        """List the names that `find` knows, for suggestions."""
        return ()

    def about(self, path: str, md5: str | None) -> str | None:
        """Describe a stage's input or output with these bytes in a few words; None for most."""
        return None

    def origin(self, path: Path) -> FetchedSource | None:
        """Return the source of a fetched output folder, if the folder records it."""
        return None

    def tracking_run(self, path: Path) -> TrackingRun | None:
        """Return the experiment tracker's run in an output file."""
        return None

    def written_by_stages(self) -> Iterable[Path]:
        """List files, relative to the repository's root, that should all be stages' outputs."""
        return ()

    def audit(self, lineage: Lineage, findings: Sequence[Finding]) -> list[Finding]:
        """Compare the project's external records with the lineage; `findings` lists the differences found so far."""
        return []

    def audited(self, lineage: Lineage) -> list[str]:
        """Describe what `audit` compares."""
        return []

    def tolerance(self, path: str, content: Any, place: tuple[str, ...]) -> float | None:
        """Return how far a metric may differ when stages run again with other parameters.

        `content`: the recorded metrics; `place`: the keys of the number. None: it is not compared.
        """
        return 0.0


def hooks_of(root: Path) -> LineageHooks:
    """Return the lineage hooks of the project that the repository at `root` declares; empty ones if it has none."""
    project = project_of(root)
    return project if isinstance(project, LineageHooks) else LineageHooks()


def find_target(repo: Repo, text: str, folder: Path) -> Target:
    """Find a stage, an output or a file in one, by a path relative to `folder`, or a name of the project.

    Raises UserError if nothing has that name, or if several stages wrote into a folder.
    """
    hooks = hooks_of(Path(repo.root_dir))
    stages = {stage.addressing: stage for stage in repo.index.stages}
    if text in stages:
        return Target(text, (text,), tuple(map(path_from_root, stages[text].outs)))
    target = target_of_file(repo, called_from_here(repo, folder, text)) or hooks.find(repo, text)
    if target:
        return target
    offer = did_you_mean(text, [*stages, *hooks.names()])
    raise UserError(f"{text}: no stage, output or name of the project{offer}; give a stage or a file that one wrote")


def target_of_file(repo: Repo, text: str) -> Target | None:
    """Return the target of a path: a stage's output, or a file in one."""
    name = from_root(repo.root_dir, os.path.abspath(text))
    near = {out: each for each in repo.index.stages for out in map(path_from_root, each.outs) if overlap(name, out)}
    holding = [stage for out, stage in near.items() if is_at_or_in(name, out)]
    if holding:
        return Target(text, (holding[0].addressing,), (name,))
    if near:
        some = f"{len(near)} outputs, such as {next(iter(near))}"
        raise UserError(f"{text}: a folder of {some}; name one of them")
    if os.path.exists(text):
        raise UserError(f"{text}: no stage wrote it; name an output that was made from it")
    return None
