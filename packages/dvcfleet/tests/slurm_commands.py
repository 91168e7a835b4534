"""Stand-ins for the commands of SLURM, where there is none: `python slurm_commands.py sbatch ...`.

Jobs are processes of this machine, which has two threads. Their states are files in the folder that SLURM_STAND_IN
names.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FOLDER = Path(os.environ["SLURM_STAND_IN"])


def sbatch(*options: str) -> None:
    script = Path(options[-1]).read_text()
    if int(re.findall(r"--cpus-per-task=(\d+)", script)[0]) > 2:
        sys.exit("sbatch: error: Requested node configuration is not available")
    if "--test-only" in options:
        return
    number = len(list(FOLDER.glob("*.json"))) + 1
    shutil.copyfile(options[-1], FOLDER / f"{number}.sh")
    log = re.findall(r"-e (\S+)", script)[0].replace("%J", str(number))
    with open(log, "wb") as file:
        command = ["bash", str(FOLDER / f"{number}.sh")]
        job = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=os.environ
        )
    named = {"pid": job.pid, "name": re.findall(r"-J (\S+)", script)[0]}
    (FOLDER / f"{number}.json").write_text(json.dumps(named))
    print(f"Submitted batch job {number}")


def squeue(*options: str) -> None:
    for number, job in jobs(options[options.index("-n") + 1]).items():
        print(f"{number}|{'RUNNING' if is_running(job['pid']) else job.get('ended', 'FAILED')}|None")


def scancel(*options: str) -> None:
    name = "".join(option.partition("--name=")[2] for option in options)
    if "--state=PENDING" in options:
        return
    for number, job in jobs(name).items():
        if (name or number in options) and is_running(job["pid"]):
            (FOLDER / f"{number}.json").write_text(json.dumps(job | {"ended": "CANCELLED"}))
            with suppress(ProcessLookupError):
                os.killpg(job["pid"], signal.SIGTERM)


def sinfo(*options: str) -> None:
    print("normal*|8:00:00|127.0.0.1|2|up|idle\nlong|infinite|127.0.0.1|2|up|drained")


def jobs(name: str) -> dict[str, dict[str, object]]:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    return {number: job for number, job in found.items() if name in ("", job["name"])}


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


if __name__ == "__main__":
    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "sinfo": sinfo}[sys.argv[1]](*sys.argv[2:])
