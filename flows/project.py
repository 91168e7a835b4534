"""Merganser's hooks in the runs of its own repository: see `dvcfleet.project.Project`."""

import hashlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.project import Expected, Project
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.flows.lineage_hooks import MerganserLineage
from merganser.flows.so_far import SoFar, first_evaluations

if TYPE_CHECKING:
    from dvcfleet.dvc_adapter.lockfiles import LockFiles

PARAMS = Path("params.yaml")

PRELOAD = (
    *("torch", "numba", "scipy.linalg", "open_clip", "datasets", "matplotlib.pyplot"),
    *("mlflow.store.tracking.sqlalchemy_store", "safetensors.torch", "pydantic", "ruamel.yaml", "threadpoolctl"),
)
TRANSFORMERS = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")


class Merganser(MerganserLineage, Project):
    """The hooks of a comparison: check params.yaml, follow sources' branches, say what a run came to."""

    def __init__(self) -> None:
        """Begin with nothing checked."""
        self._checked = ""  # the digest of the params.yaml that was checked last
        self._so_far = SoFar(PARAMS)

    @property
    def preload(self) -> Sequence[str]:
        """Name what stages import, and what only those of the family and the kinds of task in params.yaml do."""
        from merganser.limits import read_yaml
        from merganser.plugins import FAMILIES, KINDS, constants

        try:
            params = read_yaml(PARAMS)
            library = constants(FAMILIES, params["base"]["family"]).get("LIBRARY")
            kinds = dict.fromkeys(
                task.get("kind") for task in (*params["tasks"].values(), *params.get("unseen", {}).values())
            )
        except (InputError, LookupError, TypeError, AttributeError):  # said when params.yaml is checked
            return PRELOAD
        own = [module for kind in kinds for module in constants(KINDS, kind).get("PRELOAD", ())]
        return (*PRELOAD, *(TRANSFORMERS if library == "transformers" else ()), *own)

    def identity(self, root: Path) -> str:
        """Return the comparison's id, folder and worktree."""
        from merganser.flows.identity import identity

        return identity(root)

    @property
    def saves_experiments(self) -> bool:
        """Save each run: the history of a comparison is made of them."""
        return True

    def variables(self, run: str) -> Mapping[str, str]:
        """Put the folder of Merganser's own interpreter first on the PATH; say which params.yaml was checked here.

        Libraries use one thread each, for as many stages run as there are cores; output is shown at once.
        """
        from dvcfleet.planning.resources import thread_variables
        from merganser.config.loading import CHECKED

        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"PATH": path, CHECKED: self._checked, RUN_NAME_VARIABLE: run, "PYTHONUNBUFFERED": "1"}
        return own | thread_variables(1)

    def digest(self) -> str:
        """Return a digest of params.yaml."""
        return hashlib.sha256(PARAMS.read_bytes()).hexdigest() if PARAMS.is_file() else "none"

    def validate(self, repo: Repo) -> None:
        """Check params.yaml, and the headers of the models it names, and complete it; raise InputError."""
        from dvc.exceptions import DvcException

        from dvcfleet.dvc_adapter.listings import is_near_output
        from dvcfleet.dvc_adapter.repositories import forget_index
        from merganser.config.headers import check_sources
        from merganser.config.loading import complete_file, load_params
        from merganser.flows.licences import licence_notes

        notes: list[str] = []
        unknown: list[Path] = []

        def made(path: Path) -> bool:
            try:
                return is_near_output(repo, str(path.absolute()))
            except DvcException:  # it does not read a params.yaml that lacks something, or has a mistake
                unknown.append(path)
                return True

        def sources(params: Params) -> list[str]:
            try:
                notes[:] = [*check_sources(params, Path(), made), *licence_notes(params)]
            except InputError as error:
                return str(error).splitlines()
            return []

        checked = self.digest()  # of what is read now: stages check what is edited from here on
        load_params(PARAMS, sources)
        if note := complete_file(PARAMS):
            checked = self.digest()
            print(note, file=sys.stderr, flush=True)
            forget_index(repo)
        if unknown:
            load_params(PARAMS, sources)
        for said in notes:
            print(said, file=sys.stderr, flush=True)
        self._checked = checked

    def check_gpus(self, gpus: Mapping[str, int]) -> None:
        """Refuse stages whose declared device is a GPU and that ask for none; raise InputError naming the first."""
        from dvcfleet.dvc_adapter.stages import kind_of
        from merganser.flows.devices import declared_devices

        devices = declared_devices(PARAMS)
        for stage, count in gpus.items():
            if devices.of(stage) == "cuda" and not count:
                kind, place = kind_of(stage), f"{devices.place(stage)}.device"
                line = f"{kind}: {{resources: {{gpus: 1}}}}"
                remedy = f"run by a --profile that has `{line}` among its stages in profiles.yaml, or set it to cpu"
                raise InputError(f"{PARAMS}: {place} is cuda, and the stage {stage} is given no GPU; {remedy}")

    def before_planning(self, repo: Repo, say: Callable[[str], None]) -> None:
        """Bring the comparison to the installed version; pin the sources that follow a branch to its latest commit."""
        from merganser.flows.moving_sources import follow_sources
        from merganser.flows.older_lock import carry_over
        from merganser.flows.updating import renew

        for line in (*renew(repo), *carry_over(repo)):
            say(line)
        follow_sources(say)

    def follow_declared(self, repo: Repo, lock_files: "LockFiles", say: Callable[[str], None]) -> None:
        """Take out the outputs of entries that params.yaml no longer declares, and put back those declared again."""
        from merganser.flows.undeclared import follow_declared

        follow_declared(repo, lock_files, say)

    def takes_out(self, lock_file: Path) -> bool:
        """Tell that it is the comparison's own dvc.lock, and none of an example's."""
        return lock_file.parent == Path.cwd()

    def distrusted(self, stages: Sequence[Stage]) -> Mapping[str, str]:
        """Return the stages whose results MLflow lost its record of, and `code` where other code is installed."""
        from merganser.flows.lost_evidence import lost_evidence
        from merganser.flows.updating import other_version

        return {**lost_evidence(stages), **other_version(Path())}

    def is_download(self, path: Path) -> bool:
        """Tell whether a source is a file that names a model or data on a hub."""
        from merganser.sources.packages import lying

        try:
            return lying(path) is None
        except InputError:  # said when params.yaml is checked
            return False

    def wanted_first(self, needs: Mapping[str, Collection[str]]) -> Set[str]:
        """Return the evaluations of the entries that are the least work, for the report so far."""
        return first_evaluations(PARAMS, needs)

    def expect(self, needs: Mapping[str, Collection[str]]) -> Expected:
        """Return how much there is to download, by what the hubs say, what is made of it and how long that takes."""
        from merganser.config.loading import load_params
        from merganser.flows.expected import expect

        root = Path.cwd()
        try:
            found = expect(load_params(PARAMS), needs)
        except (InputError, ValueError):  # said when params.yaml is checked
            return Expected()
        return replace(found, downloads={root / source: size for source, size in found.downloads.items()})

    def predict_outputs(self, stage: str) -> Mapping[str, str] | None:
        """Return the digests that the stage `code` will write; None for other stages, and if it will fail."""
        if stage != "code":
            return None
        from merganser.flows.updating import updated_record
        from merganser.tasks.code import texts
        from merganser.tasks.stage import code_tree
        from merganser.tasks.stages import CODE

        try:
            found = texts(code_tree(), updated_record(Path()))
        except InputError:
            return None
        return {f"{CODE}/{name}": text for name, text in found.items()}

    def before_running(self, folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
        """Save the metrics before the run, for the report."""
        from merganser.flows.previous_metrics import keep_previous_metrics

        keep_previous_metrics(folder, causes, run)
        self._so_far = SoFar(PARAMS)

    def describe(self, run: str) -> Mapping[str, Any]:
        """Say what is compared, and where its numbers are shown beside Prefect."""
        from merganser.limits import read_yaml

        params = read_yaml(PARAMS)
        shown = {"tasks": list(params.get("tasks", {})), "entries": list(params.get("methods", {}))}
        chosen = {key: params[key] for key in ("base", "seed", "evaluation", "trial") if key in params}
        return {**shown, **chosen, "mlflow_run": run, "report": str(Path("report/index.html").absolute())}

    def while_running(self, ended: Set[str], latest: str, say: Callable[[str], None]) -> None:
        """Write the report so far each time there is a score more; say once where it is."""
        self._so_far.note(ended, latest, say)

    def after_running(self, done: Set[str], say: Callable[[str], None]) -> None:
        """Say which entries are the best, what changed, and where the report is."""
        from dvcfleet.repository import STATE_FOLDER
        from merganser.flows.answer import say_answer

        say_answer(done, Path(STATE_FOLDER), say)
        self._so_far.end(done)


MERGANSER = Merganser()
