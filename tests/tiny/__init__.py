"""A repository with two tiny tasks and the project's own stages, for tests of the whole pipeline."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import chdir, closing
from pathlib import Path

import torch
from dvc.repo import Repo

from merganser.checkpoints.writing import save_tensors
from merganser.config.loading import load_params
from merganser.config.points import write_points
from merganser.tasks.tracking import follow_artifacts
from tests.support import python
from tests.tiny_clip import write_clip, write_data_set
from tests.warm import program

ROOT = Path(__file__).resolve().parents[2]
BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")
CODE = ("merganser", "tasks", "flows", "dvc.yaml", "pyproject.toml", ".dvcignore", ".gitignore")


def make_repository(folder: Path, linked: bool = False) -> Path:
    """Make a git and DVC repository with the project's code, two random checkpoints around a base, and their data."""
    make_clone(folder, linked)
    shutil.copyfile(ROOT / "tests/tiny/params.yaml", folder / "params.yaml")
    write_points(load_params(folder / "params.yaml"), folder)
    make_models(folder / "hub")
    for seed, task in enumerate(("dark", "light")):
        write_data_set(folder / "datasets" / task, {"validation": 6, "test": 9 + seed})
    return folder


def make_clone(folder: Path, linked: bool = False) -> Path:
    """Make a git and DVC repository with the project's code, and no params.yaml.

    `linked`: links to the folders of code, where nothing changes them and much copies the repository.
    """
    folder.mkdir(parents=True)
    for name in CODE:
        source = ROOT / name
        if source.is_dir() and linked:
            (folder / name).symlink_to(source)
        elif source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=BEING_WRITTEN)
        else:
            shutil.copyfile(source, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    shutil.copyfile(ROOT / ".dvc/config", folder / ".dvc/config")
    return folder


def make_models(hub: Path) -> None:
    """Write a random dual encoder, and two copies of its image tower moved a little."""
    file = "open_clip_model.safetensors"
    base = write_clip(hub / "base", file)
    for seed, task in enumerate(("dark", "light")):
        (hub / task).mkdir()
        shutil.copyfile(hub / "base/open_clip_config.json", hub / task / "open_clip_config.json")
        generator = torch.Generator().manual_seed(seed)
        visual = {name: value for name, value in base.items() if name.startswith("visual.")}
        moved = {name: value + 0.02 * torch.randn(value.shape, generator=generator) for name, value in visual.items()}
        save_tensors(hub / task / file, moved)


def environment() -> dict[str, str]:
    """Return an environment whose `python` is the one that runs the tests, with one thread and no network."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DVC_NO_ANALYTICS": "1"}


def forking_environment() -> dict[str, str]:
    """Return that environment for a command of `python()`: what it starts is forked too."""
    found = environment()
    return found | {"PATH": f"{Path(program()).parent}{os.pathsep}{found['PATH']}"}


def dvc(folder: Path, *args: str) -> str:
    """Run DVC's own command line and return what it printed."""
    command = [*python(), "-m", "dvc", *args]
    return subprocess.run(
        command, cwd=folder, env=forking_environment(), check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def receipts(folder: Path) -> dict[str, str]:
    """Return the MLflow run of each entry that was recorded."""
    return {path.stem: json.loads(path.read_text())["run_id"] for path in sorted(folder.glob("data/records/*.json"))}


def delete_run(folder: Path, run: str) -> None:
    """Delete a run as MLflow does."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        store.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (run,))
        store.commit()


def move_artifacts(folder: Path) -> Path:
    """Tell a copied repository's MLflow store that its artifacts are in the copy; return the folder."""
    follow_artifacts(folder)
    return folder


def is_clean(folder: Path) -> bool:
    """Tell whether `dvc status` finds nothing changed."""
    with chdir(folder), Repo() as repo:
        return bool(repo.status() == {})


def merganser(folder: Path, *args: str, check: bool = True, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run the project's command line inside a repository, with these environment variables besides."""
    command = [*python(), "-m", "merganser.flows", *args]
    done = subprocess.run(command, cwd=folder, env=forking_environment() | variables, text=True, capture_output=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
