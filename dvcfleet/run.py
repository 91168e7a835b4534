"""Run the stages of a DVC repository that are not up to date, in parallel, as one Prefect flow run."""

import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dvcfleet.console import Progress, exit_code, rows, show_plan, show_summary
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from dvcfleet.errors import UserError
from dvcfleet.execution.workspace import LocalWorkspace
from dvcfleet.executors.opening import open_runner
from dvcfleet.executors.profiles import Placement, check_stages, choose_placement
from dvcfleet.messages import Ending, Result
from dvcfleet.nodes.clone import refuse_node
from dvcfleet.nodes.object_store import AwayError, MissingError, ObjectStore, has_remote
from dvcfleet.nodes.recorded_hashes import RecordedHashes
from dvcfleet.nodes.workspace import NodeWorkspace
from dvcfleet.planning.lock_files import recovered_lock_files
from dvcfleet.planning.orphans import prune
from dvcfleet.planning.plan import ChecksFor, Plan, make_plan, plan, workspace_checks
from dvcfleet.planning.resources import Resources
from dvcfleet.planning.validation import ProjectError, is_validated, note_validated, validate
from dvcfleet.prefect_adapter.server import StartError
from dvcfleet.project import project_of
from dvcfleet.provenance.experiments import keep_experiment
from dvcfleet.provenance.ledger import Ledger
from dvcfleet.repository import held, opened, state_folder, when_busy
from dvcfleet.run_names import RUN_NAME_VARIABLE, forget_run_name, is_begun, run_name
from dvcfleet.scheduling.loop import Run, Workspace
from dvcfleet.services import Services

if TYPE_CHECKING:
    from dvc.repo import Repo


def run(
    targets: Sequence[str] = (),
    *,
    repo: Path,
    runner: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    profile: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    pull: bool = False,
    busy: str = "refuse",
    console: Console | None = None,
) -> int:
    """Run what is not up to date in the DVC repository at `repo`: all of its dvc.yaml, or the targets and their inputs.

    Where is what `profile` of profiles.yaml says, and in place of that `runner`, `address` and `workers`; with `pull`
    results on nodes with clones of their own are fetched at the end. `busy` says what to do while something else writes
    in the repository: `refuse`, `wait` or `skip`. Prints progress and a summary. Returns the exit code: 0 all is well,
    1 something failed, 2 the user's mistake. Raises ProjectError for a mistake that the repository's project finds,
    and SkippedError for a run that was skipped.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    try:
        said = {"runner": runner, "address": address, "workers": workers}
        if dry_run:
            checks_in = partial(_checks_in, profile=profile, said=said, console=console)
            show_plan(plan(repo, targets, force, checks_in), console)
            return 0
        on_busy = when_busy(busy, console.print)
        with opened(repo) as dvc_repo, held(dvc_repo, on_busy), _terminated_like_interrupted():
            refuse_node(Path(dvc_repo.root_dir))
            place = choose_placement(Path(dvc_repo.root_dir), profile, **said)
            return _run_held(dvc_repo, targets, force, pull, place, console)
    except ProjectError:
        raise
    except UserError as error:
        console.print(str(error), style="red", markup=False)
        return 2
    except (StartError, AwayError, MissingError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except (OSError, sqlite3.Error) as error:
        # The disk is full, or may not be written to: the place where that is noticed can be any.
        console.print(
            f"{error}: mend that and run the same command again; what is done is kept", style="red", markup=False
        )
        return 1
    except KeyboardInterrupt:
        console.print("stopped before any stage was started")
        return 1


def _run_held(repo: "Repo", targets: Sequence[str], force: bool, pull: bool, place: Placement, console: Console) -> int:
    with ExitStack() as stack:
        services = Services(repo, stack)
        if _surely_work(repo):
            services.start()
        project = project_of(Path(repo.root_dir))
        validated = is_validated(repo)
        if not validated:
            validate(repo)
        project.before_planning(console.print)
        locks = recovered_lock_files(repo)
        if not targets:
            prune(repo, locks, console)
        recorded = _recorded(repo, place, console)
        if pull and not recorded:
            raise UserError("--pull fetches results from nodes: it takes a cluster's --address, and a DVC remote")
        checks_for = recorded.checks_for if recorded else workspace_checks
        found = make_plan(repo, targets, force, on_work=services.start, checks_for=checks_for)
        here = LocalWorkspace(repo, found)
        workspace: Workspace = NodeWorkspace(here, recorded, force) if recorded else here
        if validated and found.work:
            validate(repo)
        note_validated(repo)
        if not found.work:
            workspace.finish(pull)
            if is_begun(repo):
                # The run that had it was killed after its last stage.
                keep_experiment(repo, run_name(repo), console)
            forget_run_name(repo)
            console.print(f"nothing to do: {len(found.nodes)} stages are up to date")
            return 0
        # A mistake in a stage's meta is better known before anything runs.
        check_stages(place, repo.index.stages)
        resources = {node.name: place.resources(found.stages[node.name]) for node in found.work}
        endings = _run_flow(repo, found, workspace, services, locks, place, resources, console)
        if not any(ending.result is Result.STOPPED for ending in endings.values()):
            workspace.finish(pull)
    code = exit_code(endings.values())
    if code == 0:
        keep_experiment(repo, run_name(repo), console)
        forget_run_name(repo)
    return code


def _run_flow(
    repo: "Repo",
    plan: Plan,
    workspace: Workspace,
    services: Services,
    locks: LockFiles,
    place: Placement,
    resources: dict[str, Resources],
    console: Console,
) -> dict[str, Ending]:
    name = run_name(repo)
    project_of(Path(repo.root_dir)).before_running(state_folder(repo), plan, name)
    with services.prefect():
        from dvcfleet.prefect_adapter.flow import PrefectExecutor, flow_run_id, run_flow

        with (
            open_runner(place.runner, place.workers, place.address) as runner,
            PrefectExecutor(runner, services.fork_servers, {RUN_NAME_VARIABLE: name}) as executor,
            repo.scm_context(quiet=True),
        ):
            pool = runner.pool(resources)
            with Progress(plan, name, console) as progress:
                ledger = Ledger(state_folder(repo), name, flow_run_id)
                run = Run(plan, locks, workspace, executor, pool, resources, progress, ledger)
                # Once more: while a flow runs, Prefect has a handler of its own, and would wait for the stages to end.
                execute = _terminated_like_interrupted()(run.execute)
                told = run_flow(name, runner.task_runner, execute, rows)
        show_summary(run.endings, console)
        if not told:
            console.print("Prefect's server went away before it had heard all of this run.", style="yellow")
        return run.endings


def _checks_in(repo: "Repo", profile: str | None, said: dict[str, Any], console: Console) -> ChecksFor:
    """Return how stages' states are found: without their data when nodes with clones of their own have it."""
    recorded = _recorded(repo, choose_placement(Path(repo.root_dir), profile, **said), console)
    return recorded.checks_for if recorded else workspace_checks


def _recorded(repo: "Repo", place: Placement, console: Console) -> RecordedHashes | None:
    """Return what is known of data that is elsewhere; None where stages run with the data of this machine."""
    if not (place.address and has_remote(repo)):
        return None
    store = ObjectStore(repo, lambda line: console.print(line, style="yellow", markup=False))
    store.open()
    return RecordedHashes(repo, store)


def _surely_work(repo: "Repo") -> bool:
    """Whether there is work as far as can be told without reading dvc.yaml: nothing ran yet, or a run did not end."""
    return not Path("dvc.lock").exists() or is_begun(repo)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
