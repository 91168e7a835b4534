"""The flow of a comparison: check, plan, run, record, report, as the engine asks for it at each run.

`dvcfleet.run.run` runs dvc.yaml's stages as one Prefect flow and calls these hooks in their order here; `flows/steps`
has what a step does. Recording in MLflow and the report are stages like any other, `record` and `report`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.project import Expected, Project
from merganser.config import PARAMS, POINTS_FILE
from merganser.flows.evidence.lineage_hooks import MerganserLineage
from merganser.flows.pages.so_far import SoFar, first_evaluations
from merganser.hashes import sha256_of

if TYPE_CHECKING:
    from dvcfleet.dvc_adapter.lockfiles import LockFiles

_NAMED = rb"(?: \{\}\n|\n(?:  [\w-]+: \{(?:\"\w+\": \"[\w./-]*\"(?:, )?)+\}\n)+)"
_POINTS = re.compile(rb"(?:#.*\n)*points:" + _NAMED + rb"steps:" + _NAMED)  # as `write_points` writes them


class Merganser(MerganserLineage, Project):
    """The hooks of a comparison in the engine's runs: see `dvcfleet.project.Project`."""

    def __init__(self) -> None:
        """Begin with nothing checked."""
        self._checked = ""  # the digest of the last params.yaml
        self._so_far = SoFar(PARAMS)

    def identity(self, root: Path) -> str:
        """Return the comparison's id, folder and worktree."""
        from merganser.flows.repositories.identity import identity

        return identity(root)

    def before_reading(self) -> None:
        """Write the list of points if dvc.yaml reads one and it is missing or cut off."""
        pipeline = Path("dvc.yaml")
        if PARAMS.is_file() and pipeline.is_file():
            if POINTS_FILE.is_file() and _POINTS.fullmatch(POINTS_FILE.read_bytes()):
                return
            if f"- {POINTS_FILE}\n".encode() not in pipeline.read_bytes():
                return
            from merganser.flows.steps.checking import write_missing_points

            write_missing_points()

    @property
    def saves_experiments(self) -> bool:
        """Save each run: the history of a comparison is made of them."""
        return True

    # 1. Check.

    def digest(self) -> str:
        """Return a digest of params.yaml."""
        return sha256_of(PARAMS) if PARAMS.is_file() else "none"

    def validate(self, repo: Repo) -> None:
        """Check params.yaml, and the headers of the models it names, and complete it; raise InputError."""
        from merganser.flows.steps.checking import check_params_file

        self._checked = check_params_file(repo, self.digest)

    # 2. Plan.

    def before_planning(self, repo: Repo, say: Callable[[str], None]) -> None:
        """Refuse to begin without a library that stages need; bring the comparison to the installed version.

        Takes back a rename that was killed. Pins the sources that follow a branch to its latest commit.
        """
        from merganser.flows.repositories.comparisons import copy_ledgers
        from merganser.flows.steps import sources, updating
        from merganser.flows.steps.preloading import check_libraries
        from merganser.flows.steps.renames import take_back

        for line in (*take_back(repo), *check_libraries(PARAMS), *updating.renew(repo), *updating.carry_over(repo)):
            say(line)
        copy_ledgers(repo)
        sources.follow_sources(say)

    def follow_declared(self, repo: Repo, lock_files: "LockFiles", say: Callable[[str], None]) -> None:
        """Take out the outputs of entries that params.yaml no longer declares, and put back those declared again."""
        from merganser.flows.steps.undeclared import follow_declared

        follow_declared(repo, lock_files, say)

    def takes_out(self, lock_file: Path) -> bool:
        """Tell whether a lock file is the comparison's own, and not an example's."""
        return lock_file.parent == Path.cwd()

    def distrusted(self, stages: Sequence[Stage]) -> Mapping[str, str]:
        """Return the stages whose MLflow record is lost, and `code` if other code is installed."""
        from merganser.flows.evidence.lost_evidence import lost_evidence
        from merganser.flows.steps.updating import other_version

        return {**lost_evidence(stages), **other_version(Path())}

    def predict_outputs(self, stage: str) -> Mapping[str, str] | None:
        """Return the digests that the stage `code` will write; None for other stages, or if it will fail."""
        from merganser.flows.steps.updating import predicted_code

        return predicted_code() if stage == "code" else None

    def expect(self, needs: Mapping[str, Collection[str]]) -> Expected:
        """Return the expected downloads, by the hubs' answers, and the expected sizes and times of all stages."""
        from merganser.flows.steps.expected import expected_of

        return expected_of(PARAMS, needs)

    def is_download(self, path: Path) -> bool:
        """Tell whether a source is a file that names a model or data on a hub."""
        from merganser.flows.steps.expected import is_on_a_hub

        return is_on_a_hub(path)

    def check_gpus(self, gpus: Mapping[str, int]) -> None:
        """Refuse stages whose declared device is a GPU and that ask for none; raise InputError naming the first."""
        from merganser.flows.steps.devices import refuse_without_gpu

        refuse_without_gpu(PARAMS, gpus)

    # 3. Run and record.

    @property
    def preload(self) -> Sequence[str]:
        """Name the modules that stages import, given the family and the kinds of task in params.yaml."""
        from merganser.flows.steps.preloading import preloaded

        return preloaded(PARAMS)

    @property
    def packages(self) -> Collection[str]:
        """Return Merganser's own package; tests/flows/test_preload.py limits what importing it may do."""
        return ("merganser",)

    def variables(self, run: str) -> Mapping[str, str]:
        """Put Merganser's own interpreter first on the PATH; pass on which params.yaml was checked."""
        from merganser.flows.steps.preloading import variables

        return variables(self._checked, run)

    def describe(self, run: str) -> Mapping[str, Any]:
        """Return a description of the comparison, and where its numbers are shown besides Prefect."""
        from merganser.flows.steps.answer import about_run

        return about_run(PARAMS, run)

    def before_running(self, folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
        """Save the metrics before the run, for the report."""
        from merganser.flows.steps.answer import keep_previous_metrics

        keep_previous_metrics(folder, causes, run)
        self._so_far = SoFar(PARAMS)

    def wanted_first(self, needs: Mapping[str, Collection[str]]) -> Set[str]:
        """Return the evaluations of the cheapest entries, for the report so far."""
        return first_evaluations(PARAMS, needs)

    def while_running(self, ended: Set[str], latest: str, say: Callable[[str], None]) -> None:
        """Write the partial report again after each new score; print its path after the first one."""
        self._so_far.note(ended, latest, say)

    # 4. Report.

    def after_running(self, done: Set[str], say: Callable[[str], None]) -> None:
        """Say which entries are the best, what changed, and where the report is."""
        from merganser.flows.steps.answer import say_answer

        say_answer(done, say)
        self._so_far.end(done)


MERGANSER = Merganser()
