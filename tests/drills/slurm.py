"""Run a comparison in jobs of SLURM's that are killed, requeued and drained, under a controller that is restarted."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.dvcfleet.toy import Toy
from tests.faults import nodes
from tests.faults.slurm import Slurm, skip_without_slurm, slurm
from tests.support import wait_until

AWAY_S = 5  # for how long the controller is away, and the node drained
LIMIT_S = 3600.0


def drill(folder: Path, sample: bool) -> None:
    """Run the tiny comparison through all faults, or a toy whose job is killed; hashes are those of a local run."""
    skip_without_slurm()
    source = (nodes.toy_source if sample else nodes.tiny_source)(folder / "source")
    local = Path(shutil.copytree(source, folder / "local", symlinks=True))
    if sample:  # without the seconds that a process of its own takes to start
        code, said = Toy(local, "", {}).run()
    else:
        process = nodes.run(local)
        said, _ = process.communicate()
        code = process.returncode
    assert code == 0, said
    with slurm(folder / "slurm") as one:
        run_through(one, source, {"kill": killed} if sample else FAULTS)
        assert not one.ask("squeue", "-h"), "the run has left jobs"
    wanted, got = nodes.hashes(local), nodes.hashes(source)
    different = [name for name in wanted if wanted[name] != got.get(name)]
    print(f"{len(wanted) - len(different)} of {len(wanted)} hashes agree")
    assert not different, different


def run_through(one: Slurm, flow: Path, faults: "dict[str, Fault]") -> None:
    """Run a repository, with a fault each time that some more stages have ended; after the run's own death, again."""
    began, said = time.monotonic(), ""
    process = nodes.run(flow, "--runner", "slurm", **one.variables)
    try:
        for number, (name, fault) in enumerate(faults.items(), 1):
            wait_until(lambda: process.poll() is not None or at_work(one, flow, number), LIMIT_S)  # noqa: B023
            assert process.poll() is None, process.communicate()[0]
            for step in fault(one, process.pid):
                print(f"{name} after {nodes.entries(flow)} stages: {step}", flush=True)
            if process.poll() is not None:
                said += process.communicate()[0]
                process = nodes.run(flow, "--runner", "slurm", **one.variables)
        said += process.communicate(timeout=LIMIT_S)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            print(process.communicate()[0])
    print(said)
    print(f"exit code {process.returncode} in {time.monotonic() - began:.0f} s", flush=True)
    assert process.returncode == 0


def at_work(one: Slurm, flow: Path, number: int) -> bool:
    """Tell whether so many stages have ended, and a job runs."""
    return nodes.entries(flow) >= number and bool(one.running())


Fault = Callable[[Slurm, int], Iterator[str]]


def killed(one: Slurm, run: int) -> Iterator[str]:
    """Kill all processes of a job."""
    job = one.running()[0]
    one.ask("scancel", "--signal=KILL", "--full", job)
    yield f"job {job} killed"


def requeued(one: Slurm, run: int) -> Iterator[str]:
    """End a job and queue it again, as preemption does."""
    job = one.running()[0]
    one.ask("scontrol", "requeue", job)
    yield f"job {job} requeued"


def drained(one: Slurm, run: int) -> Iterator[str]:
    """Let the node take no job for a while, and end one that it has."""
    one.set_node("drain")
    job = next(iter(one.running()), None)
    if job:
        one.ask("scancel", job)
    time.sleep(AWAY_S)
    yield f"node drained, and job {job} cancelled: {one.ask('sinfo', '-h', '-o', '%T').strip()}"
    one.set_node("resume")
    yield "node resumed"


def restarted(one: Slurm, run: int) -> Iterator[str]:
    """End the controller, and start it again later."""
    one.end("slurmctld")
    time.sleep(AWAY_S)
    yield "controller ended"
    one.start_controller()
    yield "controller started"


def dead(one: Slurm, run: int) -> Iterator[str]:
    """Kill the run with all its processes, as a login node that dies."""
    os.killpg(run, signal.SIGKILL)
    os.waitid(os.P_PID, run, os.WEXITED | os.WNOWAIT)
    yield f"run killed; jobs {', '.join(one.running())} run"


FAULTS: dict[str, Fault] = {
    "kill": killed,
    "requeue": requeued,
    "drain": drained,
    "controller": restarted,
    "login node": dead,
}
