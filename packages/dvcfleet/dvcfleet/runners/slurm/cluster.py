"""SLURM as a runner: a Dask scheduler in the run's own process, whose workers are SLURM's jobs."""

import asyncio
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

import dask
from dask_jobqueue import SLURMCluster
from dask_jobqueue.slurm import SLURMJob
from distributed import Client
from prefect_dask import DaskTaskRunner

from dvcfleet.errors import UserError
from dvcfleet.messages import Job
from dvcfleet.planning.resources import Resources
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.runners import RunnerRequest
from dvcfleet.runners.dask.cluster import LOSSES, DaskCluster, DeclaredResources
from dvcfleet.runners.dask.frames import collect_no_garbage_while_listing_frames
from dvcfleet.runners.slurm.commands import ALIVE, SlurmError, cancel, jobs_named, read_site, test
from dvcfleet.runners.slurm.jobs import HELD, JobLostError, Jobs, Shape, request
from dvcfleet.runners.slurm.walltime import in_slurms_form, seconds_of
from dvcfleet.scheduling.durations import Durations, last_durations
from dvcfleet.scheduling.resource_pool import ResourcePool, check_nodes_reach_server

_MOST_THREADS = 64  # at once, if no number is given
_WORKERS_BYTES = "2GB"  # what Dask reckons its worker has, if a stage asks for no memory; nothing is held to it
_END_LIMIT_S = 120.0
_LEAVE_S = 10.0  # in which jobs end whose worker has ended


@dataclass
class SlurmCluster(DaskCluster):
    """SLURM, of whose jobs each runs one stage at a time."""

    scripts: "JobScripts" = field(kw_only=True)
    losses = (*LOSSES, JobLostError)

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return a pool of threads; raise UserError for a stage whose job SLURM could never run."""
        pool = ResourcePool(self.workers or 1)
        names = {_shape(pool.least(each)): name for name, each in resources.items()}
        for shape, name in names.items():
            self.scripts.check(name, shape)
        return pool

    def machines(self) -> None:
        """Return None: jobs come and go, and what they wait for is said as SLURM says it."""

    def requesting(self, job: Job) -> AbstractContextManager[Any]:
        """Request a job of SLURM's for a stage."""
        return dask.annotate(resources={HELD: 1}, slurm=request(job.name, job.resources))


@dataclass
class JobScripts:
    """The scripts of jobs whose workers join a cluster; `folder` holds the jobs' logs, `states` are the nodes'."""

    cluster: SLURMCluster
    job_name: str
    folder: Path
    unknown_s: float
    states: str

    def script(self, name: str, shape: Shape, seconds: float) -> SLURMJob:
        """Return the job of a shape whose worker has a name."""
        directives = [*(_configured("job-extra-directives") or ())]
        directives += [f"--gres=gpu:{shape.gpus}"] if shape.gpus else []
        skipped = [*(_configured("job-directives-skip") or ())]
        skipped += [] if shape.memory_bytes or _configured("job-mem") else ["--mem="]
        options = self.cluster.new_spec["options"] | {
            # In place of the script's shell, so that it gets the signals that SLURM sends to the job.
            "python": f"exec {_configured('python') or sys.executable}",
            "cores": shape.threads,
            "memory": f"{shape.memory_bytes}B" if shape.memory_bytes else _WORKERS_BYTES,
            "walltime": in_slurms_form(seconds),
            "job_extra_directives": directives,
            "job_directives_skip": skipped,
        }
        return SLURMJob(self.cluster.scheduler_address, name=name, **options)

    def check(self, name: str, shape: Shape) -> None:
        """Raise UserError if SLURM could never run a stage's job."""
        try:
            with self.script("test", shape, self.unknown_s).job_file() as script:
                test(Path(script))
        except SlurmError as error:
            raise UserError(f"stage {name}: SLURM refuses a job for it: {error} ({self.states})") from error

    async def submit(self, name: str, shape: Shape, seconds: float) -> str:
        """Submit a job; return its number."""
        job = self.script(name, shape, seconds)
        try:
            await job.start()
        except RuntimeError as error:
            raise SlurmError(str(error).partition("stderr:")[2].strip() or str(error)) from error
        return str(job.job_id)

    def log_end(self, number: str) -> str:
        """Return the last line of a job's log."""
        logs = self.folder.glob(f"{escape(self.job_name)}-{number}[!0-9]*err")
        lines = [line for path in logs for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        return next((line.strip() for line in reversed(lines) if line.strip()), f"nothing; {self.folder} has the logs")


@contextmanager
def opened(asked: RunnerRequest) -> Iterator[SlurmCluster]:
    """Start a scheduler on this machine, and let its workers be jobs of SLURM's; all end with the block."""
    try:
        site = read_site(_configured("queue"))
        name = job_name(asked.root)
        end_all(name)
    except SlurmError as error:
        raise UserError(f"SLURM does not answer: {error}") from error
    check_nodes_reach_server(site.addresses)
    collect_no_garbage_while_listing_frames()
    folder = asked.root / STATE_FOLDER / "slurm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    with _settings_refused():
        unknown_s = min(seconds_of(_configured("walltime")), site.most_s)
    with _cluster(name, folder) as cluster, Client(cluster, set_as_default=False) as client:
        client.register_plugin(DeclaredResources({"PREFECT_API_URL": os.environ["PREFECT_API_URL"]}))
        durations = Durations(last_durations(folder.parent))
        scripts = JobScripts(cluster, name, folder, unknown_s, site.states)
        scheduler = cluster.scheduler
        jobs = Jobs(scheduler, name, scripts.submit, scripts.log_end, site, unknown_s, durations, asked.say)
        scheduler.add_plugin(jobs)
        loop = cluster.loop.asyncio_loop
        watching = asyncio.run_coroutine_threadsafe(jobs.watch(), loop)
        runner = DaskTaskRunner(address=cluster.scheduler_address, client_kwargs={"security": cluster.security})
        try:
            workers = asked.workers or min(site.threads, _MOST_THREADS)
            slurm = SlurmCluster(runner, client, cluster.scheduler_address, workers, scripts=scripts)
            yield slurm
            slurm.wait_for_ends()
        finally:
            watching.cancel()
            with suppress(SlurmError, TimeoutError):  # jobs also end when their worker has no scheduler any more
                asyncio.run_coroutine_threadsafe(jobs.end(), loop).result(_END_LIMIT_S)
                end_all(name, patience_s=_LEAVE_S)


def job_name(root: Path) -> str:
    """Return the name of a repository's jobs: no other repository's have it."""
    return f"{root.name[:32]}-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def end_all(name: str, patience_s: float = 0.0) -> None:
    """Wait until no job of a name is left, as of a run whose machine has died; cancel those that do not end in time."""
    began = time.monotonic()
    while left := [number for number, each in jobs_named(name).items() if each.state in ALIVE]:
        if time.monotonic() - began > patience_s + _END_LIMIT_S:
            raise UserError(f"SLURM does not end the jobs {', '.join(left)} of this repository; end them and run again")
        if time.monotonic() - began >= patience_s:
            cancel(name, left)
        time.sleep(0.5)


def _cluster(name: str, folder: Path) -> SLURMCluster:
    """Start a scheduler that only the run and its jobs can reach: all connections are TLS, with keys of this run's."""
    options = {"dashboard_address": "127.0.0.1:0", "dashboard": False, **(_configured("scheduler-options") or {})}
    with _settings_refused():
        return SLURMCluster(
            cores=1,
            memory=_WORKERS_BYTES,
            processes=1,
            nanny=False,
            security=True,
            shared_temp_directory=str(folder),
            log_directory=str(folder),
            job_name=name,
            worker_extra_args=[*(_configured("worker-extra-args") or ()), "--no-dashboard"],
            scheduler_options=options,
        )


@contextmanager
def _settings_refused() -> Iterator[None]:
    """Raise UserError where a setting of dask-jobqueue's is refused in the block."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        where = "jobqueue.slurm, of ~/.config/dask/jobqueue.yaml or DASK_JOBQUEUE__SLURM__..."
        raise UserError(f"a setting of dask-jobqueue's does not fit ({where}): {error}") from error


def _configured(key: str) -> Any:
    """Return what dask-jobqueue's configuration says, of the user's files and variables."""
    return dask.config.get(f"jobqueue.slurm.{key}")


def _shape(resources: Resources) -> Shape:
    return Shape(resources.threads, resources.memory_bytes, resources.gpus)
