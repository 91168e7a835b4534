"""The sides of a comparison of merges: each a process of its own, from checkpoints on disk to a checkpoint on disk."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import ROOT, Run
from benchmarks.models import TASKS, TOWER, make_models
from merganser import registry

CLASSES = ("cat", "dog", "ship", "lorry")  # dts_unseen asks for the tasks' class names
CHUNK = 2**24
COPY = """
import os, sys
*sources, out = sys.argv[1:]
buffer = memoryview(bytearray(2**24))
for source in sources:
    with open(source, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
with open(sources[0], "rb", buffering=0) as file, open(out, "wb", buffering=0) as copy:
    while count := file.readinto(buffer):
        copy.write(buffer[:count])
    os.fsync(copy.fileno())
"""
LOAD = """
import os, sys
from safetensors.torch import load_file, save_file
*sources, out = sys.argv[1:]
for source in reversed(sources):
    state = {name: tensor.clone() for name, tensor in load_file(source).items()}  # a mapped file is read when copied
save_file(state, out)
with open(out, "rb+") as file:
    os.fsync(file.fileno())
"""
PREPARE = """
import sys
from merganser.tasks import decompose, extract, fetch
fetch.main(["base"])
for task in sys.argv[1:]:
    fetch.main(["task", task])
    extract.main([task])
    decompose.main([task])
"""


@dataclass(frozen=True)
class Setting:
    """Models on disk, how many threads merge them, and a folder for what is written."""

    base: Path
    models: Mapping[str, Path]
    folder: Path
    threads: int

    @property
    def profile(self) -> Path:
        """Return the file in which a cold merge says what it did."""
        return self.folder / "profile.json"

    @property
    def inputs(self) -> list[Path]:
        """List the files of weights that are merged, the base's first."""
        paths = (self.base, *self.models.values())
        return [file for path in paths for file in (sorted(path.glob("*.safetensors")) if path.is_dir() else [path])]

    @property
    def words(self) -> list[str]:
        """Name the inputs as the command lines take them."""
        models = [f"--model={task}={path}" for task, path in self.models.items()]
        return ["--base", str(self.base), "--only", f"{TOWER}*", *models]


@contextmanager
def made(folder: Path | None, blocks: int, threads: int) -> Iterator[Setting]:
    """Make models of so many blocks, unless they are in the folder, and a temporary folder for what is written."""
    with tempfile.TemporaryDirectory(prefix="merganser-bench-") as temporary:
        base, models = make_models((folder or Path(temporary)).absolute(), TASKS, blocks)
        yield Setting(base, models, Path(temporary), threads)


def cold(method: str, setting: Setting) -> Run:
    """Merge by the command line."""
    command = [sys.executable, "-m", "merganser.flows", "merge", method, *setting.words, "--device", "cpu"]
    command += ["--threads", str(setting.threads), "--profile", str(setting.profile)]
    if registry.get(method).embeddings:
        for task in setting.models:
            file = setting.folder / f"{task}.txt"
            file.write_text("\n".join(f"{name} {task}" for name in CLASSES))
            command += ["--classes", f"{task}={file}"]
    return writing("cold", command, setting)


def plain(method: str, setting: Setting) -> Run:
    """Merge by the plain program."""
    return writing("plain", [sys.executable, "-m", "benchmarks.plain", method, *setting.words], setting)


def copying(setting: Setting) -> Run:
    """Read the bytes of all inputs, and write as many as the merged model has."""
    return writing("copy", [sys.executable, "-c", COPY, *map(str, setting.inputs)], setting, option=None)


def loading(setting: Setting) -> Run:
    """Do the same with tensors: load every state dict in turn, and save the base's."""
    return writing("load", [sys.executable, "-c", LOAD, *map(str, setting.inputs)], setting, option=None)


def cached(method: str, setting: Setting) -> Run:
    """Merge by the pipeline's own stage, from factors that `decompose` wrote before."""
    project = _project(method, setting)
    factors = [*project.glob("data/svd/*/*"), *project.glob("data/base/*.safetensors")]
    return Run(
        [sys.executable, "-m", "merganser.tasks.merge", method],
        project,
        threads_of(setting),
        before=lambda: warm(factors),
    )


def threads_of(setting: Setting) -> dict[str, str]:
    """Return the environment variables that limit torch to this many threads."""
    return {"OMP_NUM_THREADS": str(setting.threads)}


def warm(files: Sequence[Path]) -> None:
    """Read files, so that every side finds its input in the system's cache; leave no other side's output to write."""
    os.sync()
    buffer = memoryview(bytearray(CHUNK))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def writing(side: str, command: Sequence[str], setting: Setting, option: str | None = "--out") -> Run:
    """Make a run that writes what has its side's name, anew each time."""
    out = setting.folder / side

    def before() -> None:
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
        warm(setting.inputs)

    return Run([*command, *([option] if option else []), str(out)], ROOT, threads_of(setting), before)


def _project(method: str, setting: Setting) -> Path:
    """Make a project of the models, with this method as its one entry; its factors are computed once."""
    project = setting.folder / "project"
    fresh = not project.is_dir()
    (project / "data").mkdir(parents=True, exist_ok=True)
    (project / "params.yaml").write_text(yaml.safe_dump(choices(method, setting), sort_keys=False))
    if fresh:
        environment = os.environ | threads_of(setting)
        command = [sys.executable, "-c", PREPARE, *setting.models]
        subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.DEVNULL)
    return project


def choices(method: str, setting: Setting) -> dict[str, Any]:
    """Return the params.yaml of a project whose one entry is this method, with its defaults."""
    data = {"source": "none", "templates": ["{}"]}  # a merge sees no data
    return {
        "seed": 0,
        "base": {"source": str(setting.base), "family": "open_clip"},
        "parameters": {"merged": [f"{TOWER}*"], "matrices": "linear"},
        "tasks": {task: {"source": str(path), "data": data} for task, path in setting.models.items()},
        "decompose": {"rank_fraction": 0.5, "dtype": "float32"},
        "methods": {method: {"method": method, "reads": registry.get(method).reads}},
        "merge": {"device": "cpu"},
        "evaluation": {"split": "test"},
    }
