"""Run the stages of a DVC repository that are not up to date, in parallel, as one Prefect flow run."""

import json
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console

from dvcfleet.console import Progress, exit_code, show_orphans, show_packages, show_plan, show_summary, show_unproven
from dvcfleet.crash_recovery import recovered_lock_files, sync
from dvcfleet.dvc_adapter.internals import DVC
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from dvcfleet.dvc_adapter.objects import pull_run_cache
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import git_refusal
from dvcfleet.dvc_adapter.repository_lock import DvcLock
from dvcfleet.dvc_adapter.stages import refuse_cached_elsewhere, varying
from dvcfleet.dvc_adapter.storing import refuse_without_cache
from dvcfleet.errors import FailedError, SkippedError, UserError, stage_count
from dvcfleet.git import without_git
from dvcfleet.lineage.live import open_events
from dvcfleet.loop import Listeners, Place, RunLoop, Work
from dvcfleet.messages import Ending, Result
from dvcfleet.options import EVERYTHING, Options
from dvcfleet.placement import Placement, check_profile_stages, choose_placement
from dvcfleet.planning.code_search import CodeSearch
from dvcfleet.planning.orphans import find_orphans, prune_orphans
from dvcfleet.planning.plan import ChecksFor, Plan, State, make_plan, validated_plan, workspace_checks
from dvcfleet.planning.resources import Resources
from dvcfleet.planning.validation import ProjectError, is_validated, note_validated, validate
from dvcfleet.process_settings import BESIDES, ENDING, PER_STAGE, Stop, room_for
from dvcfleet.project import project_of
from dvcfleet.record.experiments import keep_experiment
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import existing_state_folder, opened, state_folder, when_busy, write_lock
from dvcfleet.run_names import forget_run_name, is_begun, run_name
from dvcfleet.runners import RunnerRequest, load_runner, open_runner
from dvcfleet.scheduling.durations import Durations, last_durations
from dvcfleet.scheduling.resource_pool import local_pool
from dvcfleet.scheduling.retries import WRITERS, exclusive_groups, found_in_code
from dvcfleet.services import Services
from dvcfleet.terminal.failures import failure_of
from dvcfleet.terminal.secrets import masked
from dvcfleet.terminal.standard_streams import StandardOutput
from dvcfleet.waiting import said_if_long
from dvcfleet.worker.output import LOGS
from dvcfleet.worker.termination import LEAVE
from dvcfleet.workspaces.local import LocalWorkspace
from dvcfleet.workspaces.nodes.clone import refuse_node
from dvcfleet.workspaces.nodes.object_store import ObjectStore, has_remote
from dvcfleet.workspaces.nodes.workspace import NodeWorkspace, RecordedHashes, stays
from dvcfleet.workspaces.undeclared_files import UndeclaredFiles

STOPPED_EARLY = "stopped before any stage was started"


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
    stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP. Raises ProjectError for a mistake that the repository's project
    finds, and SkippedError for a skipped run.
    """
    output = StandardOutput(sys.stdout)
    console = console or Console(file=cast(TextIO, output), highlight=False, soft_wrap=True)
    stop, options = Stop(), replace(options, folder=repo.absolute())
    running: RepositoryRun | None = None
    try:
        if platform.system() != "Linux":
            raise UserError("runs need Linux: on other systems nothing ends the stages of a killed run")
        with opened(repo) as dvc_repo:
            root = Path(dvc_repo.root_dir)
            place = choose_placement(root, profile, runner=runner, address=address, workers=workers)
            if dry_run:
                recorded = _recorded(dvc_repo, place, _warner(console))
                validated = is_validated(dvc_repo)
                with said_if_long() as step:
                    current = validated_plan(dvc_repo, options, _checks_for(recorded), step)
                    if validated and current.work:  # as a run does: what the files name may have changed
                        validate(dvc_repo)
                    check_profile_stages(place, dvc_repo.index.stages, root)
                    step("estimating the time of the stages")
                    show_plan(current, place, root, console)
                return 0
            with write_lock(dvc_repo, when_busy(busy, console.print), console.print) as lock, stop.on_signals(*ENDING):
                refuse_node(root)
                DVC.report(_warner(console))
                running = RepositoryRun(dvc_repo, lock, options, place, stop, console)
                return running.execute()
    except (ProjectError, SkippedError):
        raise
    except KeyboardInterrupt:
        say = running.say_stopped if running else partial(console.print, STOPPED_EARLY)
        say()
        return stop.exit_code or 128 + signal.SIGINT
    except Exception as error:
        failure = failure_of(error, state_folder=partial(existing_state_folder, repo))
        again = failure.code == 1 and not isinstance(error, FailedError)
        more = ": fix that and run the same command again; finished stages are kept" if again else ""
        console.print(f"{failure.message}{more}", style="red", markup=False)
        return failure.code
    finally:
        output.close()


@dataclass
class RepositoryRun:
    """A run in an opened repository, whose `lock` of DVC's is held: what it is asked for, and where its stages run."""

    repo: Repo
    lock: DvcLock
    options: Options
    place: Placement
    stop: Stop
    console: Console
    services: Services = field(init=False)
    lock_files: LockFiles = field(init=False)
    recorded: RecordedHashes | None = field(init=False)
    plan: Plan = field(init=False)
    workspace: LocalWorkspace | NodeWorkspace = field(init=False)
    undeclared: UndeclaredFiles | None = field(init=False, default=None)
    _loop: RunLoop | None = None
    _is_summed_up: bool = False

    def __post_init__(self) -> None:
        self.root = Path(self.repo.root_dir)
        self.project = project_of(self.root)
        self._warn = _warner(self.console)

    def execute(self) -> int:
        """Bring the stages up to date; return the exit code."""
        endings: dict[str, Ending] = {}
        with ExitStack() as stack:
            self.services = Services(self.repo, stack)
            self._plan()
            if self.plan.work:
                self._make_room()
                resources = self._resources()
                with self.lock.released():
                    endings = self._run_flow(resources)
            if not any(ending.result is Result.STOPPED for ending in endings.values()):
                self.lock_files.settle()
                self.workspace.finish(self.options.fetch_results)
        has_lost = self.undeclared is not None and self.undeclared.any_lost
        code = self.stop.exit_code or exit_code(endings.values()) or int(has_lost)
        if code == 0:
            is_saved = self.options.save_experiment or self.project.saves_experiments
            # The run of this name may have been killed after its last stage.
            if is_saved and (self.plan.work or is_begun(self.repo)):
                keep_experiment(self.repo, run_name(self.repo), self.console)
            forget_run_name(self.repo)
        sync(self.repo, state_folder(self.repo))
        if not self.plan.work:
            self.console.print(f"nothing to do: {stage_count(len(self.plan.planned), ' is', ' are')} up to date")
        elif code == 0:
            self.project.after_running(endings.keys(), partial(self.console.print, markup=False))
        return code

    def say_stopped(self) -> None:
        """Print what was done until a signal that came while the loop was ending, or outside of it."""
        if self._loop is None:
            self.console.print(STOPPED_EARLY)
        elif not self._is_summed_up:
            stopped = {name: Ending(name, Result.STOPPED) for name in self.plan.planned}
            show_summary(stopped | self._loop.endings, self.console)
        elif not self._loop.stopping:
            self.console.print("stopped after the last stage had ended: run the same command again to go on")

    def _plan(self) -> None:
        """Check the repository, plan what to run, and prepare its workspace."""
        validated = is_validated(self.repo)
        if not validated:
            validate(self.repo)
        self.project.before_planning(self.repo, self.console.print)
        if not (self.root / "dvc.lock").exists():
            self.services.start()  # there will be work: the server starts while the run is planned
        self.lock_files = recovered_lock_files(self.repo, state_folder(self.repo))
        if self.options.prune:
            prune_orphans(self.repo, self.lock_files, self.console)
        elif not self.options.targets:
            self.project.follow_declared(self.repo, self.lock_files, partial(self.console.print, markup=False))
            show_orphans(find_orphans(self.repo), self.console)
        self.recorded = _recorded(self.repo, self.place, self._warn)
        _check_options(self.options, on_nodes=self.recorded is not None)
        if self.options.pull and not (self.options.no_run_cache or self.recorded):
            pull_run_cache(self.repo, self._warn)
        self.plan = make_plan(self.repo, self.options, self.services.start, _checks_for(self.recorded))
        if not (self.recorded or self.options.no_commit):
            refuse_without_cache(self.repo, [out for one in self.plan.work for out in self.plan.stages[one.name].outs])
        self.lock_files.order_as(self.plan.stages.values())
        self.workspace = here = LocalWorkspace(self.repo, self.plan, self._warn)
        if self.recorded:
            forced = self.options.force or self.options.no_run_cache
            self.workspace = NodeWorkspace(here, self.recorded, forced)
        if validated and self.plan.work:
            validate(self.repo)
        note_validated(self.repo)

    def _make_room(self) -> None:
        """Run fewer stages at once where this process may not open a file for each of them."""
        if load_runner(self.place.runner).TAKES_ADDRESS:
            return
        at_once = min(RunnerRequest(self.place.workers).threads_here, len(self.plan.work))
        if (room := room_for(at_once)) < at_once:
            self.place = replace(self.place, workers=room)
            needed = BESIDES + PER_STAGE * at_once
            self._warn(
                f"{room} instead of {at_once} stages at once: `ulimit -n` allows too few open files, they need {needed}"
            )

    def _resources(self) -> dict[str, Resources]:
        """Return what each stage that may run requests; check all stages' meta before anything runs."""
        check_profile_stages(self.place, self.repo.index.stages, self.root)
        for planned in self.plan.work:
            varying(self.plan.stages[planned.name])  # the ledger says it
            refuse_cached_elsewhere(self.plan.stages[planned.name])
        resources = {planned.name: self.place.resources(self.plan.stages[planned.name]) for planned in self.plan.work}
        self.project.check_gpus({name: each.gpus for name, each in resources.items()})
        return resources

    def _on_nodes(self, resources: dict[str, Resources]) -> dict[str, Resources]:
        """Return what stages take of the nodes: nothing if they stay here, where their requests must be met."""
        staying = {name for name in resources if self.recorded and stays(self.plan.stages[name])}
        if staying:
            local_pool(self.place.workers or 1, {name: resources[name] for name in staying})
        return {name: Resources(threads=0) if name in staying else each for name, each in resources.items()}

    def _groups(self) -> dict[str, str]:
        """Return which stages may not run at the same time; those that dvclive concerns are found in their code."""
        stages = [self.plan.stages[planned.name] for planned in self.plan.work]
        if self.recorded:  # each node has a dvc.yaml of its own, which the run writes for each stage
            return exclusive_groups(stages)
        outputs = {out.fs_path for out in self.repo.index.outs}
        groups = exclusive_groups(stages, CodeSearch(self.root, WRITERS, outputs))
        for line in found_in_code(stages, groups) if self.place.workers != 1 else ():
            self._warn(line)
        return groups

    def _run_flow(self, resources: dict[str, Resources]) -> dict[str, Ending]:
        """Run the stages as a flow run of Prefect's; return how each ended."""
        continues = is_begun(self.repo)
        name, state = run_name(self.repo), state_folder(self.repo)
        groups = self._groups()
        if refusal := git_refusal(self.repo):
            self._warn(without_git(refusal))
        self.project.before_running(state, self.plan.causes, name)
        servers = self.services.fork_servers(len(self.plan.work), name)
        with self.services.prefect():
            from dvcfleet.prefect_adapter.flow import PrefectExecutor, flow_run_id, run_flow

            self.services.check_prefect(self._warn)
            asked = RunnerRequest(self.place.workers, self.place.address, self.root, self._warn)
            with (
                open_runner(self.place.runner, asked) as runner,
                PrefectExecutor(runner, servers, name) as executor,
                self.repo.scm_context(quiet=True),
                open_events(self.repo, name, flow_run_id, self._warn) as events,
                UndeclaredFiles(self.repo, groups, self._warn) as self.undeclared,
            ):
                on_nodes = self._on_nodes(resources)
                pool = runner.pool(on_nodes)
                with Progress(self.plan, name, self.console) as progress:
                    restorable = [planned.name for planned in self.plan.work if planned.state is State.RESTORABLE]
                    work = Work(
                        self.plan,
                        resources,
                        Durations(last_durations(state), restorable),
                        groups,
                        self.project.wanted_first,
                        # With one worker no order is quicker, and DVC's may be what the stages need.
                        in_order=self.options.in_order or self.place.workers == 1,
                        halts=self.options.in_order,
                    )
                    here = Place(self.lock, self.lock_files, self.workspace, self.undeclared, executor, pool, on_nodes)
                    told = Listeners(
                        progress,
                        Ledger(state, name, flow_run_id, self.project.identity(self.root)),
                        events,
                        partial(self.project.while_running, say=partial(self.console.print, markup=False)),
                    )
                    self._loop = run = RunLoop(work, here, told, self.stop)
                    # Again: while a flow runs, Prefect installs its own handlers, which wait for the stages to end.
                    execute = self.stop.on_signals(*ENDING)(run.execute)
                    received = run_flow(name, runner.task_runner, execute, self._parameters(name, continues))
                    if not run.stopping:
                        servers.stop(LEAVE)
            show_summary(run.endings, self.console)
            show_unproven(told.ledger.unproven, self.console)
            show_packages(run.endings.values(), self.console)
            self._is_summed_up = True
            if not received:
                self._warn(f"Prefect's server did not receive all of this run; {LOGS} has all output.")
            return run.endings

    def _parameters(self, name: str, continues: bool) -> dict[str, Any]:
        """Say what this run is, for Prefect: what it was asked for and where, and what the project says of it."""
        asked = {key: value for key, value in asdict(self.options).items() if value}
        place = {"runner": self.place.runner, "workers": self.place.workers, "continues": continues}
        parameters = {"repository": str(self.root), **place, **asked, **self.project.describe(name)}
        shown: dict[str, Any] = json.loads(masked(json.dumps(parameters, default=str)))
        return shown


def _check_options(options: Options, on_nodes: bool) -> None:
    if options.fetch_results and not on_nodes:
        raise UserError("--fetch-results: it fetches from nodes, and takes a cluster's --address and a DVC remote")
    unknown = {"--no-commit": options.no_commit, "--force-downstream": options.force_downstream}
    for option in (name for name, is_given in unknown.items() if is_given and on_nodes):
        raise UserError(f"{option}: a run on nodes with their own clones has no such option")


def _recorded(repo: Repo, place: Placement, warn: Callable[[str], None]) -> RecordedHashes | None:
    """Return the recorded hashes of data that is on nodes; None if stages run on this machine's data."""
    if not (place.address and has_remote(repo)):
        return None
    store = ObjectStore(repo, warn)
    store.open()
    return RecordedHashes(repo, store)


def _checks_for(recorded: RecordedHashes | None) -> ChecksFor:
    """Return how stages' states are found: without their data if it is on nodes with their own clones."""
    return recorded.checks_for if recorded else workspace_checks


def _warner(console: Console) -> Callable[[str], None]:
    return partial(console.print, style="yellow", markup=False)
