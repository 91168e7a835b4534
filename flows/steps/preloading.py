"""What the processes of stages begin with: modules that are imported already, and variables."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dvcfleet.planning.resources import thread_variables
from dvcfleet.run_names import RUN_NAME_VARIABLE
from merganser.config import CHECKED
from merganser.errors import InputError
from merganser.limits import read_yaml
from merganser.plugins import FAMILIES, KINDS, constants

PRELOAD = (
    *("torch", "numba", "scipy.linalg", "open_clip", "datasets", "matplotlib.pyplot"),
    *("mlflow.store.tracking.sqlalchemy_store", "safetensors.torch", "pydantic", "ruamel.yaml", "threadpoolctl"),
)
TRANSFORMERS = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")


def preloaded(path: Path) -> Sequence[str]:
    """Name third-party modules that the stages of a params.yaml import; fewer where it has mistakes."""
    try:
        params = read_yaml(path)
        library = constants(FAMILIES, params["base"]["family"]).get("LIBRARY")
        kinds = dict.fromkeys(
            task.get("kind") for task in (*params["tasks"].values(), *params.get("unseen", {}).values())
        )
    except (InputError, LookupError, TypeError, AttributeError):  # said when params.yaml is checked
        return PRELOAD
    own = [module for kind in kinds for module in constants(KINDS, kind).get("PRELOAD", ())]
    return (*PRELOAD, *(TRANSFORMERS if library == "transformers" else ()), *own)


def variables(checked: str, run: str) -> Mapping[str, str]:
    """Return the environment variables of stages; `checked`: the digest of params.yaml that was checked, `run`: a name.

    Libraries use one thread each, for as many stages run as there are cores; output is shown at once.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    own = {"PATH": path, CHECKED: checked, RUN_NAME_VARIABLE: run, "PYTHONUNBUFFERED": "1"}
    return own | thread_variables(1)
