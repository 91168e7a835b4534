"""The setup of stage processes: required libraries, preloaded modules, and environment variables."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from dvcfleet.planning.resources import thread_variables
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.config import CHECKED
from merganser.errors import InputError
from merganser.extras import EXTRAS, lacking
from merganser.limits import read_yaml
from merganser.plugins import FAMILIES, KINDS, constants

PRELOAD = (
    *("torch", "numba", "scipy.linalg", "open_clip", "datasets", "matplotlib.pyplot"),
    *("mlflow.store.tracking.sqlalchemy_store", "safetensors.torch", "pydantic", "ruamel.yaml", "threadpoolctl"),
)
WAITING = "OMP_WAIT_POLICY"
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
TRANSFORMERS = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")


def preloaded(path: Path) -> Sequence[str]:
    """Name third-party modules that the stages of a params.yaml import; fewer if it has mistakes."""
    library, modules = _needed(path)
    return (*PRELOAD, *(TRANSFORMERS if library == "transformers" else ()), *modules)


def _needed(path: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the library of a params.yaml's family, and the modules of its kinds of task."""
    try:
        params = read_yaml(path)
        library = constants(FAMILIES, params["base"]["family"]).get("LIBRARY")
        kinds = dict.fromkeys(
            task.get("kind") for task in (*params["tasks"].values(), *params.get("unseen", {}).values())
        )
    except (InputError, LookupError, TypeError, AttributeError):  # said when params.yaml is checked
        return None, ()
    return library, tuple(module for kind in kinds for module in constants(KINDS, kind).get("PRELOAD", ()))


def check_libraries(path: Path) -> Iterator[str]:
    """Yield a warning if stages are going to start slowly.

    Raises ExtraError for a missing library of the family or of a kind of task in params.yaml.
    """
    library, modules = _needed(path)
    for name in dict.fromkeys(module.partition(".")[0] for module in (library or "datasets", "datasets", *modules)):
        if name in EXTRAS and find_spec(name) is None:
            raise lacking(name)
    torch = find_spec("torch") if sys.dont_write_bytecode else None
    if torch and torch.origin and not Path(cache_from_source(torch.origin)).is_file():
        yield (
            "PYTHONDONTWRITEBYTECODE is set and the installed packages are not compiled, so that each stage takes "
            "seconds longer to start: unset it, or run `python -m compileall -q` on their folder once"
        )


def variables(checked: str, run: str) -> Mapping[str, str]:
    """Return the environment variables of stages; `checked`: the digest of params.yaml that was checked, `run`: a name.

    Libraries use one thread each, for as many stages run as there are cores; threads of a stage that has more sleep
    while they wait, since on a busy machine those that spin take the cores from those that work. Output is shown at
    once. A tracking server that is away is waited for half a minute, where MLflow waits for four.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {"PATH": path, CHECKED: checked, RUN_NAME_VARIABLE: run, "PYTHONUNBUFFERED": "1"}
    default = {WAITING: "PASSIVE", RETRIES: "4"}
    return own | thread_variables(1) | {name: os.environ.get(name, value) for name, value in default.items()}
