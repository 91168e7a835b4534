"""A home of the run's own: tests read and write no settings, caches or credentials of the user's.

One folder is shared by all processes of a run, so that what one of them cached serves the others.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

OWN_HOME = "MERGANSER_TESTS_HOME"  # set for the processes of a run that has its home
# Variables by which a user's shell tells these programs where things lie, and whom they are for.
PROGRAMS = [
    "DASK",
    "DATASETS",
    "DVC",
    "DVCFLEET",
    "GIT",
    "HF",
    "HUGGINGFACE",
    "MLFLOW",
    "NUMBA",
    "PREFECT",
    "RAY",
    "TORCH",
    "TRANSFORMERS",
    "TRITON",
    "XDG",
]
SETTINGS = (*(f"{program}_" for program in PROGRAMS), "MPLCONFIGDIR", "MATPLOTLIBRC", "TORCHINDUCTOR_CACHE_DIR")
KEPT = ("GIT_SSL_CAINFO",)
PREFIX = "merganser-tests-"
PIP_CONF = Path("~/.config/pip/pip.conf")


def live_apart() -> None:
    """Give this process, and all that it starts, an empty home that is removed at its end."""
    if OWN_HOME in os.environ:
        return
    _remove_those_of_killed_runs()
    pip, home = PIP_CONF.expanduser(), Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    if pip.is_file():  # drills install packages, from where this machine has them from
        os.environ.setdefault("PIP_CONFIG_FILE", str(pip))
    atexit.register(_remove, home, os.getpid())
    for name in [name for name in os.environ if name.startswith(SETTINGS) and name not in KEPT]:
        del os.environ[name]
    os.environ |= {
        OWN_HOME: str(home),
        "HOME": str(home),
        # What DVC keeps outside the home, and would read there.
        "DVC_SITE_CACHE_DIR": str(home / "dvc"),
        "DVC_SYSTEM_CONFIG_DIR": str(home / "dvc-system"),
        # What asks Prefect without a server's address is refused: it would start one of its own, which may live on.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    }


def _remove_those_of_killed_runs() -> None:
    for home in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        try:
            os.kill(int(home.name.removeprefix(PREFIX).partition("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(home, ignore_errors=True)
        except (ValueError, PermissionError):  # nothing of ours, or another user's
            continue


def _remove(home: Path, process: int) -> None:
    if os.getpid() == process:  # and not one that was forked
        shutil.rmtree(home, ignore_errors=True)
