"""A SLURM of one machine on loopback, from Debian's packages slurm-wlm and munge; its daemons end with the block."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.dvcfleet.cluster import free_port
from tests.support import LIMIT_S, wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={sockets}/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={controller}
SlurmdPort={node}
ReturnToService=2
MpiDefault=none
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={threads} RealMemory=4000 State=UNKNOWN
PartitionName=normal Nodes={host} Default=YES MaxTime=8:00:00 State=UP
"""


def skip_without_slurm() -> None:
    """Skip what needs SLURM's daemons and root where one of them lacks."""
    missing = [name for name in ("sbatch", *DAEMONS) if not shutil.which(name, path=_PATH)]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} (Debian's packages slurm-wlm and munge)")
    if os.geteuid():
        pytest.skip("SLURM's daemons start jobs of others, which takes root")


_PATH = f"{os.environ['PATH']}:/usr/sbin"


@dataclass
class Slurm:
    """The daemons of a machine, whose files are in a folder."""

    folder: Path
    host: str = field(default_factory=lambda: socket.gethostname().partition(".")[0])
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """What a run needs to know: where this SLURM is, and that all is on loopback."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "DASK_JOBQUEUE__SLURM__INTERFACE": "lo"}

    def ask(self, *command: str) -> str:
        """Run a command of SLURM's; return what it printed."""
        environment = os.environ | self.variables
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def start(self, name: str, *options: str) -> None:
        """Start a daemon."""
        with open(self.folder / f"{name}.out", "ab") as log:
            command = [str(shutil.which(name, path=_PATH)), *options]
            self.daemons[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        self.start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        wait_until(lambda: self._answers("sinfo"))

    def end(self, name: str) -> None:
        """End a daemon."""
        process = self.daemons.pop(name)
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def running(self) -> list[str]:
        """List the numbers of the jobs that run."""
        return self.ask("squeue", "-h", "-t", "running", "-o", "%i").split()

    def set_node(self, state: str) -> None:
        """Have the node take no more jobs (drain), or take them again (resume)."""
        self.ask("scontrol", "update", f"nodename={self.host}", f"state={state}", "reason=drill")

    def _answers(self, *command: str) -> bool:
        with suppress(subprocess.CalledProcessError):
            return bool(self.ask(*command))
        return False


@contextmanager
def slurm(folder: Path, threads: int = 2) -> Iterator[Slurm]:
    """Start a SLURM whose node has so many threads."""
    short = tempfile.TemporaryDirectory(prefix="slurm-")  # a socket's path has at most 107 bytes
    munged = Path(short.name, "munge")
    for place in (folder / "state", Path(short.name, "spool")):
        place.mkdir(parents=True)
    folder.chmod(0o755)
    made = Slurm(folder)
    text = CONFIGURATION.format(
        host=made.host, folder=folder, sockets=short.name, controller=free_port(), node=free_port(), threads=threads
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    munge = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    try:
        options = [f"--socket={munged}", *(f"--{name}={folder}/munge.{end}" for name, end in munge.items())]
        made.start("munged", "--foreground", "--force", *options)
        wait_until(munged.exists)
        made.start_controller()
        made.start("slurmd", "-D", "-f", str(folder / "slurm.conf"))
        wait_until(lambda: "idle" in made.ask("sinfo", "-h", "-o", "%T"))
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            made.ask("scancel", "--user=root")
            wait_until(lambda: not made.ask("squeue", "-h"))
        for name in reversed(list(made.daemons)):
            made.end(name)
        short.cleanup()
