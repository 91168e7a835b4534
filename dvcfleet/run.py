"""Run the stages of a DVC repository that are not up to date, in parallel, as one Prefect flow run."""

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dvcfleet.console import Progress, exit_code, rows, show_orphans, show_plan, show_summary
from dvcfleet.crash_recovery import sync
from dvcfleet.dvc_adapter.internals import check_fast_paths
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from dvcfleet.dvc_adapter.pulling import pull_run_cache
from dvcfleet.dvc_adapter.repository_lock import DvcLock
from dvcfleet.errors import FailedError, SkippedError, UserError
from dvcfleet.failures import failure_of
from dvcfleet.messages import Ending, Result
from dvcfleet.options import EVERYTHING, Options
from dvcfleet.placement import Placement, check_stages, choose_placement
from dvcfleet.planning.lock_files import recovered_lock_files
from dvcfleet.planning.orphans import find_orphans, prune_orphans
from dvcfleet.planning.plan import ChecksFor, Plan, State, make_plan, plan, workspace_checks
from dvcfleet.planning.resources import Resources
from dvcfleet.planning.validation import ProjectError, is_validated, note_validated, validate
from dvcfleet.project import note_of_unread, project_of
from dvcfleet.record.experiments import keep_experiment
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import existing_state_folder, opened, state_folder, when_busy, write_lock
from dvcfleet.run_names import forget_run_name, is_begun, run_name
from dvcfleet.runners import open_runner
from dvcfleet.scheduling.durations import Durations, seconds_before
from dvcfleet.scheduling.loop import Run
from dvcfleet.scheduling.protocols import Workspace
from dvcfleet.services import Services
from dvcfleet.stop_signals import Stop
from dvcfleet.worker.output import LOGS
from dvcfleet.worker.termination import LEAVE
from dvcfleet.workspaces.local import LocalWorkspace
from dvcfleet.workspaces.nodes.clone import refuse_node
from dvcfleet.workspaces.nodes.object_store import ObjectStore, has_remote
from dvcfleet.workspaces.nodes.recorded_hashes import RecordedHashes
from dvcfleet.workspaces.nodes.workspace import NodeWorkspace

if TYPE_CHECKING:
    from dvc.repo import Repo


def run(
    options: Options = EVERYTHING,
    *,
    repo: Path,
    runner: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    profile: str | None = None,
    dry_run: bool = False,
    busy: str = "refuse",
    console: Console | None = None,
) -> int:
    """Run what is not up to date in the DVC repository at `repo`: all of its dvc.yaml, or what the options name.

    `profile`, a name in profiles.yaml, says where; `runner`, `address` and `workers` override it. `busy` says what to
    do while another process writes to the repository: `refuse`, `wait` or `skip`. Prints progress and a summary.
    Returns the exit code: 0 success, 1 failure, 2 the user's mistake, 75 another process writes to the repository, 130
    stopped by Ctrl-C, 143 by SIGTERM. Raises ProjectError for a mistake that the repository's project finds, and
    SkippedError for a skipped run.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    stop = Stop()
    try:
        said = {"runner": runner, "address": address, "workers": workers}
        if dry_run:
            checks_in = partial(_checks_in, profile=profile, said=said, console=console)
            found = plan(repo, options, checks_in)
            root = next((Path(stage.repo.root_dir) for stage in found.stages.values()), repo)
            show_plan(found, choose_placement(root, profile, **said), console)
            return 0
        on_busy = when_busy(busy, console.print)
        with opened(repo) as dvc_repo, write_lock(dvc_repo, on_busy, console.print) as lock, stop.on_signals():
            refuse_node(Path(dvc_repo.root_dir))
            check_fast_paths(dvc_repo, partial(_warn, console))
            place = choose_placement(Path(dvc_repo.root_dir), profile, **said)
            return _run_locked(dvc_repo, lock, options, place, stop, console)
    except (ProjectError, SkippedError):
        raise
    except KeyboardInterrupt:
        console.print("stopped before any stage was started")
        return stop.exit_code or 128 + signal.SIGINT
    except Exception as error:
        failure = failure_of(error, state_folder=partial(existing_state_folder, repo))
        again = failure.code == 1 and not isinstance(error, FailedError)
        more = ": fix that and run the same command again; finished stages are kept" if again else ""
        console.print(f"{failure.message}{more}", style="red", markup=False)
        return failure.code


def _run_locked(repo: "Repo", lock: DvcLock, options: Options, place: Placement, stop: Stop, console: Console) -> int:
    with ExitStack() as stack:
        services = Services(repo, stack)
        project = project_of(Path(repo.root_dir))
        if note := note_of_unread(Path(repo.root_dir)):
            _warn(console, note)
        validated = is_validated(repo)
        if not validated:
            validate(repo)
        project.before_planning(console.print)
        if not (Path(repo.root_dir) / "dvc.lock").exists():
            services.start()  # there will be work: the server starts while the run is planned
        locks = recovered_lock_files(repo)
        if options.prune:
            prune_orphans(repo, locks, console)
        elif not options.targets:
            show_orphans(find_orphans(repo), console)
        recorded = _recorded(repo, place, console)
        _check_options(options, bool(recorded))
        if options.pull and not (options.no_run_cache or recorded):
            pull_run_cache(repo, partial(_warn, console))
        checks_for = recorded.checks_for if recorded else workspace_checks
        found = make_plan(repo, options, on_work=services.start, checks_for=checks_for)
        locks.order_as(found.stages.values())
        here = LocalWorkspace(repo, found, partial(_warn, console))
        workspace: Workspace = (
            NodeWorkspace(here, recorded, options.force or options.no_run_cache) if recorded else here
        )
        if validated and found.work:
            validate(repo)
        note_validated(repo)
        if not found.work:
            locks.settle()
            workspace.finish(options.fetch_results)
            if is_begun(repo):
                # The run of this name was killed after its last stage.
                keep_experiment(repo, run_name(repo), console)
            forget_run_name(repo)
            sync(repo, state_folder(repo))
            console.print(f"nothing to do: {len(found.nodes)} stages are up to date")
            return 0
        # Check all stages' meta before anything runs.
        check_stages(place, repo.index.stages, Path(repo.root_dir))
        resources = {node.name: place.resources(found.stages[node.name]) for node in found.work}
        project.check_gpus({name: each.gpus for name, each in resources.items()})
        with lock.released():
            endings = _run_flow(
                repo, found, workspace, services, (lock, locks), place, options, resources, stop, console
            )
        if not any(ending.result is Result.STOPPED for ending in endings.values()):
            locks.settle()
            workspace.finish(options.fetch_results)
    code = stop.exit_code or exit_code(endings.values())
    if code == 0:
        keep_experiment(repo, run_name(repo), console)
        forget_run_name(repo)
    sync(repo, state_folder(repo))
    if code == 0:
        project.after_running(endings.keys(), partial(console.print, markup=False))
    return code


def _check_options(options: Options, on_nodes: bool) -> None:
    if options.fetch_results and not on_nodes:
        raise UserError("--fetch-results: it fetches from nodes, and takes a cluster's --address and a DVC remote")
    unknown = {"--no-commit": options.no_commit, "--force-downstream": options.force_downstream}
    for option in (name for name, is_given in unknown.items() if is_given and on_nodes):
        raise UserError(f"{option}: a run on nodes with their own clones has no such option")


def _run_flow(
    repo: "Repo",
    plan: Plan,
    workspace: Workspace,
    services: Services,
    locks: tuple[DvcLock, LockFiles],
    place: Placement,
    options: Options,
    resources: dict[str, Resources],
    stop: Stop,
    console: Console,
) -> dict[str, Ending]:
    name = run_name(repo)
    project_of(Path(repo.root_dir)).before_running(state_folder(repo), plan, name)
    servers = services.fork_servers(len(plan.work), name)
    with services.prefect():
        from dvcfleet.prefect_adapter.flow import PrefectExecutor, flow_run_id, run_flow

        services.check_prefect(partial(_warn, console))
        with (
            open_runner(place.runner, place.workers, place.address) as runner,
            PrefectExecutor(runner, servers, name) as executor,
            repo.scm_context(quiet=True),
        ):
            pool = runner.pool(resources)
            with Progress(plan, name, console) as progress:
                ledger = Ledger(state_folder(repo), name, flow_run_id)
                restorable = [node.name for node in plan.work if node.state is State.RESTORABLE]
                durations = Durations(seconds_before(state_folder(repo)), restorable)
                # With one worker no order is quicker, and DVC's may be what the stages need.
                in_order = options.in_order or place.workers == 1
                run = Run(
                    plan,
                    *locks,
                    workspace,
                    executor,
                    pool,
                    resources,
                    progress,
                    ledger,
                    durations,
                    in_order=in_order,
                    halts=options.in_order,
                )
                # Again: while a flow runs, Prefect installs its own handlers, which wait for the stages to end.
                execute = stop.on_signals()(run.execute)
                told = run_flow(name, runner.task_runner, execute, rows)
                if not run.stopping:
                    servers.stop(LEAVE)
        show_summary(run.endings, console)
        if not told:
            console.print(f"Prefect's server did not receive all of this run; {LOGS} has all output.", style="yellow")
        return run.endings


def _checks_in(repo: "Repo", profile: str | None, said: dict[str, Any], console: Console) -> ChecksFor:
    """Return how stages' states are found: without their data if it is on nodes with their own clones."""
    recorded = _recorded(repo, choose_placement(Path(repo.root_dir), profile, **said), console)
    return recorded.checks_for if recorded else workspace_checks


def _recorded(repo: "Repo", place: Placement, console: Console) -> RecordedHashes | None:
    """Return the recorded hashes of data that is on nodes; None if stages run on this machine's data."""
    if not (place.address and has_remote(repo)):
        return None
    store = ObjectStore(repo, partial(_warn, console))
    store.open()
    return RecordedHashes(repo, store)


def _warn(console: Console, line: str) -> None:
    console.print(line, style="yellow", markup=False)
